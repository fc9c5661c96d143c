// SPDX-License-Identifier: Apache-2.0
// The emulated GPU's memory: how much there is, how much of it other programs hold, and how much this one has taken.
// Counts device buffers by the bytes asked for; pinned host memory is no part of it. Thread: as emulator.h.
#pragma once

#include <cstdint>

namespace loralei::cuda_emulated {

inline constexpr int64_t kDefaultMemoryBytes = int64_t{1} << 30;

// Buffers that are there stay. What does not fit is refused from now on.
void set_memory(int64_t total_bytes, int64_t others_bytes);
int64_t allocated_bytes();
int64_t peak_allocated_bytes();  // since set_memory()

}  // namespace loralei::cuda_emulated

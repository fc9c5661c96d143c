// SPDX-License-Identifier: Apache-2.0
// The emulated GPUs and their memory: how much there is of each, how much of it other
// programs hold, and how much this one has taken. Counts device buffers by the bytes
// asked for; pinned host memory is no part of it. Thread: as emulator.h.
#pragma once

#include <cstdint>

namespace loralei::cuda_emulated {

inline constexpr int64_t kDefaultMemoryBytes = int64_t{1} << 30;

// One at first. Afterwards none has been opened (chosen by a thread, or used by one
// that chose none).
void set_device_count(int count);
bool is_opened(int ordinal);

// Of each device. Buffers that are there stay. What does not fit is refused from now on.
void set_memory(int64_t total_bytes, int64_t others_bytes);
int64_t allocated_bytes();       // on all of them
int64_t peak_allocated_bytes();  // since set_memory()

}  // namespace loralei::cuda_emulated

// SPDX-License-Identifier: Apache-2.0
// Which loaded adapter goes when another needs the room. Pure functions of plain values; the seam for further policies
// (mechanisms §3). Only versions that nobody uses and that are not pinned are offered.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"

namespace loralei {

struct EvictionCandidate {
  AdapterVersionId version;
  int64_t bytes = 0;
  int64_t last_use_ns = 0;
  int64_t uses = 0;
  uint64_t wanted = UINT64_MAX;  // arrival order of the oldest waiting request that wants it; UINT64_MAX: nobody
};

// Index of the victim; `candidates` is not empty.
using EvictionPolicy = size_t (*)(std::span<const EvictionCandidate> candidates, int64_t now_ns);

// Unwanted ones before wanted ones (of those the one wanted last), then the least recently used.
size_t lru_victim(std::span<const EvictionCandidate> candidates, int64_t now_ns);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// Which loaded adapter goes when another needs the room. Pure functions of plain values;
// the seam for further policies (mechanisms §3). Only versions that nobody uses and that
// are not pinned are offered.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace loralei {

struct EvictionCandidate {
  AdapterVersionId version;
  int64_t bytes = 0;
  int64_t last_use_ns = 0;
  int64_t uses = 0;
  uint64_t wanted = UINT64_MAX;  // arrival order of the oldest waiting request that wants it; UINT64_MAX: nobody
};

// Whether `a` leaves before `b`, of two that are wanted alike: a strict order of all
// candidates, so that they need to be sorted only once.
using EvictionPolicy = bool (*)(const EvictionCandidate& a, const EvictionCandidate& b);

// The least recently used first.
bool lru_leaves_before(const EvictionCandidate& a, const EvictionCandidate& b);

// Unwanted ones before wanted ones (of those the one wanted last), then as
// the policy says.
inline bool leaves_before(const EvictionCandidate& a, const EvictionCandidate& b, EvictionPolicy policy) {
  return a.wanted != b.wanted ? a.wanted > b.wanted : policy(a, b);
}

}  // namespace loralei

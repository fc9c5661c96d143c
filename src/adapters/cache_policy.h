// SPDX-License-Identifier: Apache-2.0
// Which loaded adapter goes when another needs the room. A pure function of plain values.
// Only versions that nobody uses and that are not pinned are offered.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace loralei {

struct EvictionCandidate {
  AdapterVersionId version;
  int64_t bytes = 0;
  int64_t last_use_ns = 0;
  // Arrival order of the oldest waiting request that wants it; UINT64_MAX: nobody does.
  uint64_t wanted = UINT64_MAX;
};

// Whether `a` leaves before `b`: unwanted ones before wanted ones, of those the one
// wanted last, of others the least recently used. A strict order of all candidates.
bool leaves_before(const EvictionCandidate& a, const EvictionCandidate& b);

}  // namespace loralei

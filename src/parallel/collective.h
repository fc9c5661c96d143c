// SPDX-License-Identifier: Apache-2.0
// Collective: what the ranks of a group do together. A group is one failure unit: what
// one rank fails of, all fail of, and for good.
//
// Thread: the rank's own; the calls of all ranks come in one order. fail() from any.
// Ownership: spans are the caller's, for the time of the call.
// Invariants: sums add the ranks in their order, lowest first, so every rank gets the
// same bits, and every implementation the same. No call allocates.
// Failure: a sentence. A rank that is late or gone ends the group (kUnavailable); every
// later call of any rank answers the same. What a failed call was to write is undefined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace loralei {

// Since the group was made, of one rank.
struct CollectiveTotals {
  uint64_t calls = 0;
  int64_t bytes = 0;  // that others sent to this rank
  int64_t ns = 0;     // in calls, waiting for slower ranks included; not while idle in broadcast()
};

// A seam: ranks are threads or processes.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // values[i] = sum over the ranks of theirs. As many in every rank.
  virtual Status all_reduce_sum(std::span<float> values) = 0;
  // Rank 0's bytes. The others wait for it as long as it takes: a group may be idle.
  virtual Status broadcast(std::span<std::byte> bytes) = 0;
  // Rank r's part to all[r * part.size()], at rank 0; the others' `all` is not looked at.
  virtual Status gather(std::span<const float> part, std::span<float> all) = 0;
  virtual Status barrier() = 0;
  // This rank cannot go on: every call of every rank answers that. The first one counts.
  virtual void fail(Error why) = 0;
  // Ok, or what the group has ended of.
  virtual Status health() const = 0;
  virtual CollectiveTotals totals() const = 0;
};

}  // namespace loralei

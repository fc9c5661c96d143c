// SPDX-License-Identifier: Apache-2.0
// Link: what brings bytes from host memory to memory that is treated as a device's. A
// seam with twins in tests, which fail and stall. ThrottledLink: memory that is as far
// away as one says: a copy is made when a link of that speed would have delivered it, and
// there as much later as memory takes for its bytes.
//
// Thread: one at a time. Ownership: parts are the caller's until copy() has returned.
// Invariant: copies are delivered in the order of the calls, one after the other; one
// that was asked for while others were under way follows them without a gap, however late
// the thread wakes.
// Failure: an error says why the parts are not there; kUnavailable, that nothing will be
// any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>

#include "base/clock.h"
#include "base/result.h"

namespace loralei {

struct LinkPart {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t bytes = 0;
};

class Link {
 public:
  virtual ~Link() = default;
  // All parts as one copy, wanted since `asked_ns`; they are there when it returns. Gives
  // up with kUnavailable when it is asked to stop.
  virtual Status copy(std::span<const LinkPart> parts, int64_t asked_ns, const std::stop_token& stop) = 0;
};

struct LinkSpeed {
  double bytes_per_s = 4e9;     // more than 0
  int64_t latency_ns = 10'000;  // of every copy, however small
};

// When a link delivers. A pure value.
class LinkTimes {
 public:
  explicit LinkTimes(const LinkSpeed& speed) : speed_(speed) {}
  // That the link is taken by a copy of so many bytes.
  int64_t copy_ns(int64_t bytes) const;
  // When the next copy, asked for at `asked_ns`, has been delivered.
  int64_t deliver_ns(int64_t asked_ns, int64_t bytes);

 private:
  LinkSpeed speed_;
  int64_t free_at_ns_ = INT64_MIN;
};

class ThrottledLink final : public Link {
 public:
  // The clock outlives it, and passes as the machine's time does.
  ThrottledLink(const LinkSpeed& speed, const Clock& clock) : times_(speed), clock_(clock) {}
  Status copy(std::span<const LinkPart> parts, int64_t asked_ns, const std::stop_token& stop) override;

 private:
  LinkTimes times_;
  const Clock& clock_;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// AdapterForesight: which adapters will be asked for soon, by when they were used so far
// (adapters/idle_times.h).
//
// A use lasts from the arrival of a request to its end; where several overlap, from the
// first arrival to the last end. While an adapter rests, its histogram says when it is to
// be expected. Until then its memory is better used by others; from then on until the end
// of that time it is worth keeping, and bringing back where it has left.
//
// Thread: the engine's alone. Ownership: of what it has learned, about 350 bytes for each
// adapter that was ever used; forget() drops an adapter's. Time is an argument; where it
// goes back, nothing is learned of that idle time and nothing said of it. Invariants
// (check()): an adapter that is in use is not expected, and one that rests is due once at
// most. Cost: the logarithm of the adapters that are due, for each arrival and end.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "adapters/idle_times.h"
#include "base/ids.h"
#include "memory/keep_order.h"

namespace loralei {

class AdapterForesight {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  // A request that names it has arrived, or has ended; once for each time it is named.
  void asked(AdapterSourceId source, int64_t now_ns);
  void ended(AdapterSourceId source, int64_t now_ns);
  // It is gone, or not known yet. Requests that name it may still end.
  void forget(AdapterSourceId source);
  // Whoever asked for `from` by its name asks for `to` from now on, which nobody has
  // asked for yet: what was learned goes over.
  void hand_over(AdapterSourceId from, AdapterSourceId to, int64_t now_ns);

  Foreseen foreseen(AdapterSourceId source, int64_t now_ns) const;
  bool in_use(AdapterSourceId source) const;          // a request names it that has not ended
  int64_t last_use_ns(AdapterSourceId source) const;  // its end; 0: none is known
  // When the next adapter begins to be expected, which take_due() then tells once.
  int64_t next_due_ns() const { return due_.empty() ? kNever : due_.begin()->first; }
  std::optional<AdapterSourceId> take_due(int64_t now_ns);  // one that is expected now
  void check() const;

 private:
  struct Known {
    IdleTimes times;
    int32_t uses = 0;            // under way
    int64_t rests_since_ns = 0;  // where there are none
    bool rested = false;         // since it is known
    bool gone = false;           // forgotten when it is not in use any more
    std::optional<IdleTimes::Window> window;
  };
  void cancel_due(AdapterSourceId source, const Known& known);

  std::unordered_map<AdapterSourceId, Known> known_;
  std::set<std::pair<int64_t, AdapterSourceId>> due_;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// ProcessShare: what the process itself takes of the memory budget (code, vocabulary,
// connections, what the heap keeps), as a grant that follows what is resident, both ways.
//
// What it has taken for kSettleNs is its own. What came since is a loan: load goes
// by, and the heap gives back what it took, so that whoever waits for room counts
// it as coming back.
// Thread: one; the engine's, between steps, once it runs.
// Ownership: owns the grants, whose ledger outlives it.
// Invariants: never less than at start; after follow() all grants together are no less
// than the process takes, unless a line in the log said so. Memory that others were
// granted and have not touched yet covers for it until they do.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "base/log.h"
#include "memory/ledger.h"

namespace loralei {

// So many bytes are to come free, as far as those who hold some without need can give.
using GiveWay = std::function<void(int64_t bytes)>;

class ProcessShare {
 public:
  static constexpr int64_t kSettleNs = 30'000'000'000;

  ProcessShare() = default;
  ProcessShare(Ledger& ledger, Grant grant);

  // `process_bytes` are resident at `now_ns`. What the grants do not cover is taken of
  // what is free, and of what gives way; what they cover without it is given back. True
  // when it holds more than at start: ask again soon.
  bool follow(int64_t process_bytes, int64_t now_ns, const GiveWay& give_way, LogSink& log);

 private:
  struct Look {
    int64_t at_ns = 0;
    int64_t bytes = 0;
  };
  int64_t settled_bytes(int64_t needed_bytes, int64_t now_ns);
  void take(int64_t own_bytes, int64_t lent_bytes);

  Ledger* ledger_ = nullptr;
  Grant own_, loan_;
  int64_t least_bytes_ = 0;
  std::deque<Look> looks_;  // of the last kSettleNs, those that may still be the least: rising
  bool told_ = false;       // that the budget has no room for it
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// StateSnapshots: the states that holdings have (kv/state_pool.h): what layers of linear
// attention kept of the text up to a holding's end, in the place of K and V.
//
// Thread: the engine's.
// Ownership: owns the leases of the slots that they lie in. Storage grows with
// set_capacity alone.
// Invariants (check()): those that are there stand in one list, by last use.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/holding_table.h"
#include "kv/state_pool.h"

namespace loralei {

class StateSnapshots {
 public:
  // Fewer than now changes nothing.
  void set_capacity(int32_t holdings);

  bool has(int32_t holding) const { return static_cast<bool>(at(holding).state); }
  const StateLease& state(int32_t holding) const { return at(holding).state; }
  // CHECKs that there is none. It is the one used last.
  void add(int32_t holding, StateLease state);
  StateLease remove(int32_t holding);
  void use(int32_t holding);
  int32_t least_used() const { return oldest_; }  // kNoHolding: there is none
  int32_t size() const { return size_; }
  void check() const;

 private:
  struct Snapshot {
    StateLease state;
    int32_t older = kNoHolding, newer = kNoHolding;
  };
  const Snapshot& at(int32_t holding) const { return snapshots_[static_cast<size_t>(holding)]; }
  Snapshot& at(int32_t holding) { return snapshots_[static_cast<size_t>(holding)]; }
  void link(int32_t holding);
  void unlink(int32_t holding);

  std::vector<Snapshot> snapshots_;  // by holding
  int32_t oldest_ = kNoHolding, newest_ = kNoHolding;
  int32_t size_ = 0;
};

}  // namespace loralei

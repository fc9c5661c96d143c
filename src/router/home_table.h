// SPDX-License-Identifier: Apache-2.0
// HomeTable: what a fleet knows of the homes of adapters (route/adapter_homes.h): which
// replicas they are, for picks, and how often adapters were asked for, for who plans.
//
// Adapters and replicas are a Fleet's places. Uses come from reports, which count them
// since their process began: all routers of a fleet see the same.
//
// Thread: one. Plain values.
// Invariants: homes_of() names replicas that are up; one, where any is. What left is
// forgotten with all that was known of it, for its place may be another's next.
// Failure: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "route/adapter_homes.h"

namespace loralei {

class HomeTable {
 public:
  using Given = std::unordered_map<uint32_t, std::vector<size_t>>;  // adapter to replicas

  void add_replica(size_t replica, uint64_t number);  // it is not up yet
  void set_up(size_t replica, bool up) { replicas_.at(replica).up = up; }
  void forget_replica(size_t replica);
  void forget_adapter(uint32_t adapter);

  // In the place of all that were given before.
  void give(Given given) { given_ = std::move(given); }
  // `number`: of the adapter's lot.
  void homes_of(uint32_t adapter, uint64_t number, std::vector<size_t>& homes) const;

  // A report on all that the replica has begins, or has been read to its end: what it
  // counted before this process looked is nobody's demand.
  void begin_uses(size_t replica);
  void end_uses(size_t replica) { uses_.at(replica).begins = false; }
  void count_uses(size_t replica, uint32_t adapter, int64_t so_far);
  void forget_uses(size_t replica, uint32_t adapter) { uses_.at(replica).so_far.erase(adapter); }
  // Of a replica that reports no uses.
  void asked(uint32_t adapter) { demand_[adapter] += 1; }
  std::unordered_map<uint32_t, double> take_demand() { return std::exchange(demand_, {}); }

  int64_t memory_bytes() const;

 private:
  struct Uses {
    bool begins = true;
    std::unordered_map<uint32_t, int64_t> so_far;  // of adapters that were used at all
  };
  std::vector<PlacedReplica> replicas_;
  std::vector<Uses> uses_;
  Given given_;
  std::unordered_map<uint32_t, double> demand_;  // requests since take_demand()
};

}  // namespace loralei

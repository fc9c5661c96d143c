// SPDX-License-Identifier: Apache-2.0
// Faults: what goes wrong in a simulated run, drawn from a seed. They lie in what the
// engine stands on (disk, link, clients, memory, clock), never in the engine; and, of a
// fleet that finds itself through etcd, in its replicas, in etcd and on the way there.
//
// Thread: one. Every kind draws from a stream of its own, so that a change of one leaves
// the others as they were. Without a seed nothing goes wrong.
#pragma once

#include <cstdint>
#include <optional>

#include "base/prng.h"

namespace loralei::sim {

struct FaultKinds {
  bool engine = true;    // what an engine stands on
  bool replicas = true;  // they die and come back
  bool etcd = true;      // it is away, slow, without a leader; its history is compacted
  bool cuts = true;      // replicas and routers are cut off from it
};

enum class EtcdTrouble : uint8_t { kAway, kNoLeader, kSlow, kCompaction };

class Faults {
 public:
  Faults() : Faults(std::nullopt) {}
  explicit Faults(std::optional<uint64_t> seed, const FaultKinds& kinds = {});

  bool any() const { return any_; }          // of an engine
  bool load_fails();                         // a read of an adapter ends with an error
  double load_slowness();                    // how many times as long it takes
  double upload_slowness();                  // the same of the link
  bool upload_fails();                       // the link is lost for one copy
  std::optional<int64_t> cancel_after_ns();  // a client leaves so long after it has asked
  int64_t next_budget_change_ns();           // from now
  double next_budget();                      // the share of the KV cache and the adapters' memory that is left
  int64_t next_churn_ns();                   // from now: an adapter is unloaded and registered again
  uint64_t churned(uint64_t adapters);       // which one
  int64_t next_app_change_ns();              // from now: an application says how it stands
  uint64_t app(uint64_t apps);               // which one
  uint64_t app_state(uint64_t states);       // how
  int64_t next_clock_step_ns();              // from now: the machine was asleep
  int64_t clock_step_ns();                   // for so long, which its clock shows at once

  // Of a fleet.
  const FaultKinds& fleet() const { return fleet_; }
  int64_t next_death_ns();                       // from now: a replica's process ends
  uint64_t dead(uint64_t replicas);              // which one
  int64_t down_ns();                             // until another one is started there
  int64_t next_etcd_trouble_ns();                // from now, or from the end of the one before
  EtcdTrouble etcd_trouble();                    // which
  int64_t etcd_trouble_ns(EtcdTrouble trouble);  // for so long
  int64_t slow_latency_ns();                     // each way, while it is slow
  int64_t next_cut_ns();                         // from now: somebody cannot reach etcd
  uint64_t cut_off(uint64_t of);                 // who
  int64_t cut_ns();                              // for so long

 private:
  const bool any_;
  const FaultKinds fleet_;
  Prng loads_, links_, clients_, budgets_, churn_, clocks_, copies_, apps_, deaths_, etcd_, cuts_;
};

}  // namespace loralei::sim

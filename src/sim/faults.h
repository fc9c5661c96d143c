// SPDX-License-Identifier: Apache-2.0
// Faults: what goes wrong in a simulated run, drawn from a seed. They lie in what the
// engine stands on (disk, link, clients, memory, clock), never in the engine.
//
// Thread: one. Every kind draws from a stream of its own, so that a change of one leaves
// the others as they were. Without a seed nothing goes wrong.
#pragma once

#include <cstdint>
#include <optional>

#include "base/prng.h"

namespace loralei::sim {

class Faults {
 public:
  Faults() : Faults(std::nullopt) {}
  explicit Faults(std::optional<uint64_t> seed);

  bool any() const { return any_; }
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

 private:
  const bool any_;
  Prng loads_, links_, clients_, budgets_, churn_, clocks_, copies_, apps_;
};

}  // namespace loralei::sim

// SPDX-License-Identifier: Apache-2.0
// ArrivingInputs: LayerInputs for steps on the cores: waits for the layers of adapters
// that are on their way, up to a bound for the step, and counts what it waited for.
//
// Thread: the executor's.
// Ownership: shares the arrivals of a step's adapters, borrows the adapters, from begin()
// to the end of the step.
// Invariants: no number of a layer is read before it is there; what an adapter has
// nothing of is not waited for.
// Failure: a step ends with kUnavailable for a layer that is late, or with the sentence of
// the arrival that failed; waits().ended_by says whose.
#pragma once

#include <memory>
#include <vector>

#include "adapters/adapter.h"
#include "base/arrivals.h"
#include "engine/step_batch.h"
#include "model/layer_inputs.h"

namespace loralei {

class ArrivingInputs final : public LayerInputs {
 public:
  explicit ArrivingInputs(int32_t layers) : layers_(layers) {}

  // A step of those that add() names, each once.
  void begin(int64_t wait_at_most_ns);
  void add(const Adapter& adapter, std::shared_ptr<const Arrivals> arrivals, bool whole_for_results);
  bool empty() const { return arriving_.empty(); }
  const StepWaits& waits() const { return waits_; }

  Status reach(int32_t layer) override;
  Status publish(const LayerInput&) override { return {}; }
  Status add(const OpTable& ops, OpContext& context, const LayerInput& input,
             std::span<const LoraTarget> targets) override;

 private:
  struct Arriving {
    const Adapter* adapter = nullptr;
    std::shared_ptr<const Arrivals> arrivals;
    bool whole_for_results = false;  // its numbers have been looked at only when all are there
  };
  Status wait(const Arriving& arriving, int32_t pieces);

  const int32_t layers_;
  std::vector<Arriving> arriving_;
  int64_t left_ns_ = 0;
  StepWaits waits_;
};

}  // namespace loralei

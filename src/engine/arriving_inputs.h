// SPDX-License-Identifier: Apache-2.0
// ArrivingInputs: LayerInputs for steps on the cores. Of an adapter that is on its way a
// layer that is there is computed as any; of one that is not helpers compute it, if they
// know the adapter and have time; else the step waits for it, up to a bound for the step.
// What came of that is counted.
//
// Thread: the executor's.
// Ownership: shares the arrivals of a step's adapters, borrows the adapters, from begin()
// to the end of the step.
// Invariants: no number of a layer is read before it is there; what an adapter has
// nothing of is not waited for; segments are added in their order, whoever computed them.
// Failure: where helpers fail the layer is waited for, and computed here. A step ends
// with kUnavailable for a layer that is late, or with the sentence of the arrival that
// failed; waits().ended_by says whose.
#pragma once

#include <memory>
#include <vector>

#include "adapters/adapter.h"
#include "base/arrivals.h"
#include "engine/layer_assist.h"
#include "engine/step_batch.h"
#include "model/layer_inputs.h"

namespace loralei {

class ArrivingInputs final : public LayerInputs {
 public:
  explicit ArrivingInputs(int32_t layers) : layers_(layers) {}

  // A step of those that add() names, each once. `assist` may be null.
  void begin(int64_t wait_at_most_ns, LayerAssist* assist);
  void add(int32_t slot, const Adapter& adapter, std::shared_ptr<const Arrivals> arrivals, bool whole_for_results);
  bool empty() const { return arriving_.empty(); }
  const StepWaits& waits() const { return waits_; }

  Status reach(int32_t layer) override;
  Status publish(const LayerInput& input) override;
  Status add(const OpTable& ops, OpContext& context, const LayerInput& input,
             std::span<const LoraTarget> targets) override;

 private:
  struct Arriving {
    int32_t slot = 0;
    const Adapter* adapter = nullptr;
    std::shared_ptr<const Arrivals> arrivals;
    bool whole_for_results = false;  // its numbers have been looked at only when all are there
  };
  // Segments that helpers work on, in their order.
  struct Elsewhere {
    size_t segment = 0;
    const Arriving* arriving = nullptr;
    AssistTicket ticket;
  };
  const Arriving* find(int32_t slot) const;
  Status wait(const Arriving& arriving, int32_t pieces);
  Status add_here(const OpTable& ops, OpContext& context, const LayerInput& input, std::span<const LoraTarget> targets,
                  std::span<const LoraSegment> segments);
  void count(int32_t layer);

  const int32_t layers_;
  std::vector<Arriving> arriving_;
  std::vector<Elsewhere> elsewhere_;  // of the input published last
  LayerAssist* assist_ = nullptr;
  int64_t left_ns_ = 0;
  int32_t assisted_layer_ = -1;  // the last one
  StepWaits waits_;
};

}  // namespace loralei

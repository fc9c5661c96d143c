// SPDX-License-Identifier: Apache-2.0
// ModelStep: a StepBatch in the form that models read, and what executors need for it:
// the table of announced adapters, which of them are still arriving, and where results
// go.
//
// Thread: the engine's.
// Ownership: owns the table of sources and the outputs; borrows announced adapters until
// they are withdrawn, and the batch until the next fill().
// Invariants: a batch names announced versions alone: another is a defect (CHECK).
// Version ids are never reused, so nothing is ever found by an address. It allocates when
// a step is larger than all before or another set of adapters comes together.
// Failure: reserve_vocab() only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "adapters/adapter.h"
#include "base/arrivals.h"
#include "engine/arriving_inputs.h"
#include "engine/step_batch.h"
#include "engine/step_outputs.h"
#include "kv/state_pool.h"
#include "model/model.h"

namespace loralei {

class ModelStep {
 public:
  // As StepOutputs.
  ModelStep(const ModelLimits& limits, const ModelConfig& config, Ledger& ledger)
      : tables_(limits.kv_tables.count()), outputs_(limits, config.hidden, ledger), inputs_(config.layers) {}

  // As Executor. `arrivals`: of one whose layers are still arriving; `whole_for_results`:
  // and of which nothing may be answered before all have.
  void announce(const Adapter& adapter, std::shared_ptr<const Arrivals> arrivals = nullptr,
                bool whole_for_results = false) {
    adapters_.emplace(adapter.version, Announced{&adapter, std::move(arrivals), whole_for_results});
  }
  void withdraw(AdapterVersionId version);
  Status reserve_vocab(int32_t vocab) { return outputs_.reserve_vocab(vocab); }
  void use_states(const StateView& states) { state_view_ = states; }

  // `streams`: rows keep theirs.
  // `assist`: who helps with what is not there; may be null.
  const ModelBatch& fill(const StepBatch& batch, bool streams = false, LayerAssist* assist = nullptr);
  StepResult result() const { return outputs_.result(); }
  // Of the batch filled last.
  const StepWaits& waits() const { return inputs_.waits(); }

 private:
  struct Announced {
    const Adapter* adapter = nullptr;
    std::shared_ptr<const Arrivals> arrivals;  // null: all of it is there
    bool whole_for_results = false;
  };
  const Adapter& announced(AdapterVersionId version) const;
  void expect(int32_t slot, AdapterVersionId version);
  void fill_sources(std::span<const AdapterVersionId> slots, std::span<const int32_t> first_layers);

  const int32_t tables_;  // of a sequence
  std::unordered_map<AdapterVersionId, Announced> adapters_;
  StepOutputs outputs_;
  ArrivingInputs inputs_;
  ModelBatch batch_;
  std::vector<RowGroup> groups_;
  std::vector<int32_t> table_strides_;  // [groups_]
  std::vector<RowOverride> overrides_;
  std::vector<GroupStream> streams_;
  StateView state_view_;
  std::vector<float*> states_;               // [groups_], or empty
  std::vector<AdapterVersionId> slots_;      // of sources_
  std::vector<int32_t> first_layers_;        // beside them
  std::vector<LoraSource> sources_;          // [modules][slots_]
  std::vector<const ExpertPairs*> experts_;  // [slots_], or empty: none has any
};

}  // namespace loralei

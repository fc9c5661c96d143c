// SPDX-License-Identifier: Apache-2.0
// ModelStep: a StepBatch in the form that models read, and what executors need for it:
// the table of announced adapters, and where results go.
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
#include <span>
#include <unordered_map>
#include <vector>

#include "adapters/adapter.h"
#include "engine/step_batch.h"
#include "engine/step_outputs.h"
#include "model/model.h"

namespace loralei {

class ModelStep {
 public:
  // As StepOutputs.
  ModelStep(const ModelLimits& limits, int32_t hidden, Ledger& ledger) : outputs_(limits, hidden, ledger) {}

  // As Executor.
  void announce(const Adapter& adapter) { adapters_.emplace(adapter.version, &adapter); }
  void withdraw(AdapterVersionId version);
  Status reserve_vocab(int32_t vocab) { return outputs_.reserve_vocab(vocab); }

  // `streams`: rows keep theirs.
  const ModelBatch& fill(const StepBatch& batch, bool streams = false);
  StepResult result() const { return outputs_.result(); }

 private:
  const Adapter& announced(AdapterVersionId version) const;
  void fill_sources(std::span<const AdapterVersionId> slots, std::span<const int32_t> first_layers);

  std::unordered_map<AdapterVersionId, const Adapter*> adapters_;
  StepOutputs outputs_;
  ModelBatch batch_;
  std::vector<RowGroup> groups_;
  std::vector<RowOverride> overrides_;
  std::vector<GroupStream> streams_;
  std::vector<AdapterVersionId> slots_;  // of sources_
  std::vector<int32_t> first_layers_;    // beside them
  std::vector<LoraSource> sources_;      // [modules][slots_]
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// BatchSlot: the step in the form kernels read, made from a StepPlan. Reused from step to
// step: it allocates only when a step is larger than all before (positions, groups) or a
// new set of adapters comes together (source table).
//
// Thread: the engine's. Ownership: owns logits and hidden buffers (a scratch grant) and
// the source table; borrows the plan's tokens, the leases' block tables and the adapters'
// pairs until the next fill(). Failure: only growing the logits for a larger vocabulary
// can fail.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/host/arena.h"
#include "engine/request.h"
#include "memory/ledger.h"
#include "model/model.h"
#include "sched/step_plan.h"

namespace loralei {

class BatchSlot {
 public:
  BatchSlot(const ModelLimits& limits, int32_t layers, int32_t hidden, Ledger& ledger)
      : limits_(limits), layers_(layers), hidden_(hidden), ledger_(ledger) {}

  // What reserve_vocab(vocab) takes of a fresh slot.
  static int64_t bytes(const ModelLimits& limits, int32_t hidden, int32_t vocab);
  // Sees to it that rows of `vocab` logits fit; those of the last step are gone when it
  // answers. Call before planning a request of that vocabulary. What it takes is bytes()
  // for the largest so far.
  Status reserve_vocab(int32_t vocab);
  // `sequences` stand beside plan.groups. With `choices` rows whose token needs nothing
  // but logits are left to whoever executes the batch (row_sampler.h: choice_of).
  const ModelBatch& fill(const StepPlan& plan, std::span<Sequence* const> sequences, bool choices = false);

  std::span<const float> logits(size_t index, int32_t vocab) const {
    return {batch_.logits + static_cast<int64_t>(index) * batch_.logits_stride, static_cast<size_t>(vocab)};
  }
  bool is_chosen(size_t index) const { return batch_.is_chosen(index); }
  TokenId chosen(size_t index) const { return chosen_[index]; }
  // Hidden states of rows in the order of the plan's want_hidden groups. [hidden]
  std::span<const float> hidden(size_t index) const {
    return {batch_.hidden + static_cast<int64_t>(index) * hidden_, static_cast<size_t>(hidden_)};
  }

 private:
  struct Slot {
    AdapterVersionId version;
    const Adapter* adapter = nullptr;
  };

  void collect_slots(const StepPlan& plan, std::span<Sequence* const> sequences);
  void fill_sources();
  void add_segments(const StepPlan& plan);
  void add_rows(const PlanGroup& group, const Sequence& sequence);
  void add_choices(const StepPlan& plan, std::span<Sequence* const> sequences);
  int32_t slot_of(AdapterVersionId version) const;

  const ModelLimits limits_;
  const int32_t layers_, hidden_;
  Ledger& ledger_;
  ModelBatch batch_;
  std::vector<int32_t> positions_;
  std::vector<RowGroup> groups_;
  std::vector<LoraSegment> segments_;
  std::vector<RowOverride> overrides_;
  std::vector<int32_t> hidden_rows_;
  std::vector<RowChoice> choices_;
  std::vector<TokenId> chosen_;
  std::vector<Slot> slots_, wanted_slots_;  // sorted by version
  std::vector<AdapterVersionId> versions_;  // of slots_
  std::vector<LoraSource> sources_;         // [modules][slots_]
  HostBuffer logits_buffer_, hidden_buffer_;
  Grant logits_grant_, hidden_grant_;
};

}  // namespace loralei

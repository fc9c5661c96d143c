// SPDX-License-Identifier: Apache-2.0
// BatchSlot: a StepPlan turned into a StepBatch. Reused from step to step: it allocates
// only when a step is larger than all before (block tables: when its sequences may become
// longer together than those of all steps before).
//
// Thread: the engine's. Ownership: owns what the batch names, but for the plan's tokens
// and rows of logits; all of it until the next fill(). No failure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "engine/step_batch.h"
#include "sched/step_plan.h"

namespace loralei {

class BatchSlot {
 public:
  // `sequences` stand beside plan.groups. With `choices` rows whose token needs nothing
  // but logits are left to whoever executes the batch (row_sampler.h: choice_of).
  const StepBatch& fill(const StepPlan& plan, std::span<Sequence* const> sequences, bool choices = false,
                        int64_t arrivals_wait_ns = 0);
  const StepBatch& batch() const { return batch_; }  // of the last fill()

 private:
  void make_room(std::span<Sequence* const> sequences);
  void collect_slots(const StepPlan& plan, std::span<Sequence* const> sequences);
  void add_segments(const StepPlan& plan);
  void add_tables(const KvLease& lease, int32_t places);
  void add_rows(const PlanGroup& group, const Sequence& sequence);
  void add_replaced(const PlanGroup& group, const Request& request);
  void add_choices(const StepPlan& plan, std::span<Sequence* const> sequences);
  // What a slot of adapters has: a version, from one layer on.
  struct Slot {
    AdapterVersionId version;
    int32_t first_layer = 0;
    friend auto operator<=>(const Slot&, const Slot&) = default;
  };
  int32_t slot_of(const Slot& slot) const;

  StepBatch batch_;
  std::vector<int32_t> positions_, blocks_;
  std::vector<BatchGroup> groups_;
  std::vector<LoraSegment> segments_;
  std::vector<Slot> slots_;  // ascending
  std::vector<AdapterVersionId> versions_;
  std::vector<int32_t> first_layers_;
  std::vector<VersionRows> replaced_;
  std::vector<RowChoice> choices_;
  std::vector<int32_t> hidden_rows_;
};

}  // namespace loralei

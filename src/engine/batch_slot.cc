// SPDX-License-Identifier: Apache-2.0
#include "engine/batch_slot.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/row_sampler.h"
#include "kv/block_count.h"

namespace loralei {

int32_t BatchSlot::slot_of(const Slot& slot) const {
  const auto found = std::lower_bound(slots_.begin(), slots_.end(), slot);
  CHECK(found != slots_.end() && *found == slot);
  return static_cast<int32_t>(found - slots_.begin());
}

// For the block tables of these sequences, however long they become.
void BatchSlot::make_room(std::span<Sequence* const> sequences) {
  size_t blocks = 0;
  for (const Sequence* sequence : sequences) {
    const Request& request = *sequence->request;
    const int32_t places = kv_blocks_for(request.prompt_size() + request.max_output);
    blocks += static_cast<size_t>(places) * static_cast<size_t>(sequence->lease.tables());
  }
  if (blocks > blocks_.capacity()) blocks_.reserve(std::max(blocks, 2 * blocks_.capacity()));
}

// Of all that these sequences apply, in whichever rows: the slots stay while the company
// does.
void BatchSlot::collect_slots(const StepPlan& plan, std::span<Sequence* const> sequences) {
  slots_.clear();
  versions_.clear();
  first_layers_.clear();
  if (plan.segments.empty()) return;
  for (const Sequence* sequence : sequences) {
    for (const SeqAdapter& segment : sequence->request->segments)
      slots_.push_back({segment.version, segment.first_layer});
  }
  std::sort(slots_.begin(), slots_.end());
  slots_.erase(std::unique(slots_.begin(), slots_.end()), slots_.end());
  for (const Slot& slot : slots_) {
    versions_.push_back(slot.version);
    first_layers_.push_back(slot.first_layer);
  }
}

// Neighbouring segments of one adapter and scale become one, unless rows lie in several
// segments: those keep the request's order; or begin at other layers.
void BatchSlot::add_segments(const StepPlan& plan) {
  auto group = plan.groups.begin();
  int32_t begin_layer = 0;
  for (const PlanSegment& segment : plan.segments) {
    while (group->row_begin + group->row_count <= segment.row_begin) ++group;
    const bool begins_alike = std::exchange(begin_layer, group->begin_layer) == group->begin_layer;
    CHECK(segment.row_count > 0 && segment.row_begin + segment.row_count <= static_cast<int32_t>(plan.tokens.size()));
    const LoraSegment next{segment.row_begin, segment.row_count, slot_of({segment.adapter, segment.first_layer}),
                           segment.scale};
    if (begins_alike && !segments_.empty()) {
      LoraSegment& last = segments_.back();
      if (last.slot == next.slot && last.scale == next.scale && last.row_begin + last.row_count == next.row_begin) {
        last.row_count += next.row_count;
        continue;
      }
    }
    segments_.push_back(next);
  }
}

void BatchSlot::add_replaced(const PlanGroup& group, const Request& request) {
  if (!request.saved) return;
  const int32_t skipped = std::max(0, request.saved_first_position - group.position);
  if (skipped >= group.row_count) return;
  const VersionRows run{group.row_begin + skipped, group.row_count - skipped, *request.saved};
  if (!replaced_.empty()) {
    VersionRows& last = replaced_.back();
    if (last.version == run.version && last.row_begin + last.row_count == run.row_begin) {
      last.row_count += run.row_count;
      return;
    }
  }
  replaced_.push_back(run);
}

static GroupStream stream_of(const PlanGroup& group, const Request& request) {
  return {.begin_layer = group.begin_layer,
          .base_layers = request.lower.layers,
          .rows = std::clamp(request.lower.until - group.position, 0, group.row_count)};
}

// A lease has the blocks of a place side by side, kernels read one table at a time.
void BatchSlot::add_tables(const KvLease& lease, int32_t places) {
  const std::span<const int32_t> blocks = lease.blocks();
  const auto tables = static_cast<size_t>(lease.tables());
  if (tables == 1) {
    blocks_.insert(blocks_.end(), blocks.begin(), blocks.begin() + places);
    return;
  }
  for (size_t table = 0; table < tables; ++table) {
    size_t first = static_cast<size_t>(places);  // in front of it a sliding table has no more
    while (first > 0 && blocks[(first - 1) * tables + table] != kNoBlock) --first;
    blocks_.insert(blocks_.end(), first, kNoBlock);
    for (size_t place = first; place < static_cast<size_t>(places); ++place)
      blocks_.push_back(blocks[place * tables + table]);
  }
}

void BatchSlot::add_rows(const PlanGroup& group, const Sequence& sequence) {
  CHECK(group.row_count > 0);
  const int32_t places = kv_blocks_for(group.position + group.row_count);
  CHECK(sequence.lease.places() >= places);
  groups_.push_back({group.row_begin, group.row_count, group.position, static_cast<int32_t>(blocks_.size()), places,
                     stream_of(group, *sequence.request), sequence.lease.state()});
  add_tables(sequence.lease, places);
  for (int32_t row = 0; row < group.row_count; ++row) positions_.push_back(group.position + row);
  add_replaced(group, *sequence.request);
  if (!group.want_hidden) return;
  const int32_t first = sequence.request->submit.pooling == Pooling::kMean ? 0 : group.row_count - 1;
  for (int32_t row = first; row < group.row_count; ++row) hidden_rows_.push_back(group.row_begin + row);
}

void BatchSlot::add_choices(const StepPlan& plan, std::span<Sequence* const> sequences) {
  for (size_t index = 0; index < plan.groups.size(); ++index) {
    const PlanGroup& group = plan.groups[index];
    for (int32_t i = 0; i < group.logits_count; ++i) {
      const int32_t row = plan.logits_rows[static_cast<size_t>(group.logits_begin + i)];
      choices_.push_back(choice_of(*sequences[index], group.predicted_position(row)));
    }
  }
}

const StepBatch& BatchSlot::fill(const StepPlan& plan, std::span<Sequence* const> sequences, bool choices,
                                 int64_t arrivals_wait_ns) {
  CHECK(sequences.size() == plan.groups.size());
  positions_.clear();
  blocks_.clear();
  groups_.clear();
  segments_.clear();
  replaced_.clear();
  hidden_rows_.clear();
  choices_.clear();
  make_room(sequences);
  collect_slots(plan, sequences);
  for (size_t group = 0; group < plan.groups.size(); ++group) add_rows(plan.groups[group], *sequences[group]);
  add_segments(plan);
  if (choices) add_choices(plan, sequences);
  CHECK(positions_.size() == plan.tokens.size() && groups_.size() == plan.groups.size());
  CHECK(choices_.empty() || choices_.size() == plan.logits_rows.size());
  batch_ = {.step = plan.step,
            .tokens = plan.tokens,
            .positions = positions_,
            .blocks = blocks_,
            .groups = groups_,
            .segments = segments_,
            .adapters = versions_,
            .first_layers = first_layers_,
            .replaced = replaced_,
            .logits_rows = plan.logits_rows,
            .choices = choices_,
            .hidden_rows = hidden_rows_,
            .arrivals_wait_ns = arrivals_wait_ns};
  return batch_;
}

}  // namespace loralei

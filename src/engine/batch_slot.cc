// SPDX-License-Identifier: Apache-2.0
#include "engine/batch_slot.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "engine/row_sampler.h"

namespace loralei {
namespace {

// Puts a larger `buffer` in the place of what is there, which is not kept. Pages are used
// when they are first touched, so both together take what is granted for the new one.
Status enlarge(HostBuffer& buffer, Grant& grant, int64_t bytes, const char* what, Ledger& ledger) {
  const int64_t held = grant.bytes();
  if (held == 0) grant = ledger.try_grant(MemoryUse::kScratch, 0).value();
  if (!grant.grow_to(bytes)) {
    const bool lent = bytes - held <= ledger.available_after_loans_bytes(MemoryUse::kScratch);
    return Error{lent ? ErrorCode::kOverloaded : ErrorCode::kTooLarge,
                 std::string(what) + " need " + format_bytes(bytes - held) + (held > 0 ? " more" : "") +
                     " of scratch memory, but only " + format_bytes(ledger.available_bytes(MemoryUse::kScratch)) +
                     " of the memory budget are left" +
                     (lent ? " while the model is laid out for another budget; try again when that is done" : "")};
  }
  auto allocated = HostBuffer::allocate(bytes);
  if (!allocated.ok()) {
    grant.shrink_to(held);
    return allocated.error();
  }
  buffer = std::move(*allocated);
  return {};
}

constexpr int64_t kFloat = sizeof(float);

int64_t hidden_bytes(const ModelLimits& limits, int32_t hidden) { return int64_t{limits.rows_max} * hidden * kFloat; }
int64_t stride_of(int32_t vocab) { return (int64_t{vocab} + 15) / 16 * 16; }
int64_t logits_bytes(const ModelLimits& limits, int64_t stride) { return limits.logits_rows_max * stride * kFloat; }

}  // namespace

int64_t BatchSlot::bytes(const ModelLimits& limits, int32_t hidden, int32_t vocab) {
  return hidden_bytes(limits, hidden) + logits_bytes(limits, stride_of(vocab));
}

Status BatchSlot::reserve_vocab(int32_t vocab) {
  if (batch_.hidden == nullptr) {
    TRY(enlarge(hidden_buffer_, hidden_grant_, hidden_bytes(limits_, hidden_), "hidden states", ledger_));
    batch_.hidden = reinterpret_cast<float*>(hidden_buffer_.data());
  }
  const int64_t stride = stride_of(vocab);
  if (stride <= batch_.logits_stride) return {};
  TRY(enlarge(logits_buffer_, logits_grant_, logits_bytes(limits_, stride), "logits", ledger_));
  batch_.logits = reinterpret_cast<float*>(logits_buffer_.data());
  batch_.logits_stride = stride;
  return {};
}

int32_t BatchSlot::slot_of(AdapterVersionId version) const {
  const auto found = std::lower_bound(slots_.begin(), slots_.end(), version,
                                      [](const Slot& slot, AdapterVersionId id) { return slot.version < id; });
  CHECK(found != slots_.end() && found->version == version);
  return static_cast<int32_t>(found - slots_.begin());
}

void BatchSlot::collect_slots(const StepPlan& plan, std::span<Sequence* const> sequences) {
  wanted_slots_.clear();
  if (!plan.segments.empty()) {
    for (const Sequence* sequence : sequences) {
      for (const SeqAdapter& segment : sequence->request->segments) {
        for (const AdapterPin& pin : sequence->request->pins) {
          if (pin->version == segment.version) wanted_slots_.push_back({pin->version, &*pin});
        }
      }
    }
  }
  std::sort(wanted_slots_.begin(), wanted_slots_.end(),
            [](const Slot& a, const Slot& b) { return a.version < b.version; });
  const auto same = [](const Slot& a, const Slot& b) { return a.version == b.version; };
  wanted_slots_.erase(std::unique(wanted_slots_.begin(), wanted_slots_.end(), same), wanted_slots_.end());
  // Version ids are never reused, so an equal list means that the table still holds.
  if (std::equal(slots_.begin(), slots_.end(), wanted_slots_.begin(), wanted_slots_.end(), same)) return;
  std::swap(slots_, wanted_slots_);
  fill_sources();
}

void BatchSlot::fill_sources() {
  const size_t modules = static_cast<size_t>(layers_) * kLayerModules + 2;
  sources_.resize(modules * slots_.size());
  versions_.clear();
  for (const Slot& slot : slots_) versions_.push_back(slot.version);
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const auto& pairs = slots_[slot].adapter->pairs;
    CHECK(pairs.size() == modules);
    for (size_t module = 0; module < modules; ++module) {
      const bool present = pairs[module].rank > 0 || pairs[module].bias_delta != nullptr;
      sources_[module * slots_.size() + slot].pair = present ? &pairs[module] : nullptr;
    }
  }
}

// Neighbouring segments of one adapter and scale become one, unless rows lie in several
// segments: those keep the request's order.
void BatchSlot::add_segments(const StepPlan& plan) {
  for (const PlanSegment& segment : plan.segments) {
    const LoraSegment next{segment.row_begin, segment.row_count, slot_of(segment.adapter), segment.scale};
    if (!segments_.empty()) {
      LoraSegment& last = segments_.back();
      if (last.slot == next.slot && last.scale == next.scale && last.row_begin + last.row_count == next.row_begin) {
        last.row_count += next.row_count;
        continue;
      }
    }
    segments_.push_back(next);
  }
}

void BatchSlot::add_rows(const PlanGroup& group, const Sequence& sequence) {
  groups_.push_back({group.row_begin, group.row_count, group.position, sequence.lease.blocks().data()});
  for (int32_t row = 0; row < group.row_count; ++row) positions_.push_back(group.position + row);
  const Request& request = *sequence.request;
  if (request.saved != nullptr) {
    const int32_t skipped = std::max(0, request.saved_first_position - group.position);
    if (skipped < group.row_count) {
      const RowOverride run{group.row_begin + skipped, group.row_count - skipped, request.saved,
                            request.pins.front()->version};  // alone: what replaces tensors is never summed
      const bool joins = !overrides_.empty() && overrides_.back().saved == run.saved &&
                         overrides_.back().row_begin + overrides_.back().row_count == run.row_begin;
      if (joins) {
        overrides_.back().row_count += run.row_count;
      } else {
        overrides_.push_back(run);
      }
    }
  }
  if (!group.want_hidden) return;
  const int32_t first = request.submit.pooling == Pooling::kMean ? 0 : group.row_count - 1;
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
  chosen_.assign(choices_.size(), kNoToken);
}

const ModelBatch& BatchSlot::fill(const StepPlan& plan, std::span<Sequence* const> sequences, bool choices) {
  CHECK(sequences.size() == plan.groups.size());
  positions_.clear();
  groups_.clear();
  segments_.clear();
  overrides_.clear();
  hidden_rows_.clear();
  choices_.clear();
  collect_slots(plan, sequences);
  for (size_t group = 0; group < plan.groups.size(); ++group) add_rows(plan.groups[group], *sequences[group]);
  add_segments(plan);
  batch_.tokens = plan.tokens;
  batch_.positions = positions_;
  batch_.groups = groups_;
  batch_.segments = segments_;
  batch_.sources = segments_.empty() ? nullptr : sources_.data();
  batch_.slots = segments_.empty() ? 0 : static_cast<int32_t>(slots_.size());
  batch_.versions =
      batch_.slots > 0 ? std::span<const AdapterVersionId>(versions_) : std::span<const AdapterVersionId>();
  batch_.overrides = overrides_;
  batch_.logits_rows = plan.logits_rows;
  if (choices) add_choices(plan, sequences);
  batch_.choices = choices_;
  batch_.chosen = chosen_.data();
  batch_.hidden_rows = hidden_rows_;
  return batch_;
}

}  // namespace loralei

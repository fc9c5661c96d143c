// SPDX-License-Identifier: Apache-2.0
#include "weights/expert_use.h"

#include <utility>

#include "base/check.h"
#include "weights/weight_store_state.h"

namespace loralei {

ExpertUse::ExpertUse(WeightStore& store, std::span<const ExpertSlots> experts, std::span<const int32_t> chosen,
                     std::span<ExpertView> room)
    : store_(store), experts_(experts), chosen_(chosen), room_(room) {
  CHECK(chosen.size() <= room.size());
  WeightStore::State& state = *store.state_;
  if (state.experts == nullptr || chosen.empty() || !state.pass_failure.ok()) return;
  const int32_t layer = state.matrices[static_cast<size_t>(experts[0][0])].planned.layer;
  state.experts->begin(state.expert_layer[static_cast<size_t>(layer)], chosen);
  cached_ = true;
}

ExpertUse::~ExpertUse() { end(); }

void ExpertUse::end() {
  views_ = {};
  if (std::exchange(cached_, false)) store_.state_->experts->end();
}

// Whole where it is resident, else without panels.
ExpertView ExpertUse::view_of(int32_t expert) const {
  const ExpertSlots& slots = experts_[static_cast<size_t>(expert)];
  return {expert, store_.view(slots[0]), store_.view(slots[1]), store_.view(slots[2])};
}

Result<bool> ExpertUse::next() {
  WeightStore::State& state = *store_.state_;
  if (!state.pass_failure.ok()) return state.pass_failure.error();
  if (state.plan.expert_bytes > 0) return next_cached();
  views_ = {};
  if (std::exchange(began_, true)) return false;
  for (size_t i = 0; i < chosen_.size(); ++i) room_[i] = view_of(chosen_[i]);
  views_ = room_.first(chosen_.size());
  return !views_.empty();
}

Result<bool> ExpertUse::next_cached() {
  WeightStore::State& state = *store_.state_;
  if (state.experts == nullptr) return state.stream_failure.error();
  if (!cached_) return false;
  const auto some = state.experts->next();
  if (!some.ok()) {
    end();
    state.pass_failure = state.packed_failure(some.error());
    return state.pass_failure.error();
  }
  size_t count = 0;
  for (const HeldExpert& held : *some) {
    ExpertView& view = room_[count++] = view_of(held.expert);
    auto& panels = state.expert_panels[static_cast<size_t>(held.expert)];
    const std::array<WeightView*, kExpertParts> parts = {&view.gate, &view.up, &view.down};
    for (size_t part = 0; part < parts.size(); ++part) {
      panels[part] = {held.data[part], 0, parts[part]->rows};
      parts[part]->panels = {&panels[part], 1};
    }
  }
  views_ = room_.first(count);
  if (count == 0) end();
  return count > 0;
}

}  // namespace loralei

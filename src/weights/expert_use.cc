// SPDX-License-Identifier: Apache-2.0
#include "weights/expert_use.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "weights/weight_store_state.h"

namespace loralei {

ExpertUse::ExpertUse(WeightStore& store, std::span<const ExpertSlots> experts, std::span<const int32_t> chosen,
                     std::span<ExpertView> room)
    : store_(store), experts_(experts), chosen_(chosen), room_(room) {
  CHECK(chosen.size() <= room.size());
}

bool ExpertUse::is_resident(const ExpertSlots& expert) const {
  return std::all_of(expert.begin(), expert.end(),
                     [this](TensorSlot slot) { return store_.state_->matrices[static_cast<size_t>(slot)].resident(); });
}

// Reads what is streamed of an expert that nobody has chosen.
Status ExpertUse::pass_over(const ExpertSlots& expert) {
  for (const TensorSlot slot : expert) {
    WeightUse use(store_, {&slot, 1});
    for (;;) {
      TRY_ASSIGN(const bool more, use.next());
      if (!more) break;
    }
  }
  return {};
}

Result<bool> ExpertUse::next() {
  if (!std::exchange(began_, true)) {
    size_t count = 0;
    for (const int32_t chosen : chosen_) {
      const ExpertSlots& expert = experts_[static_cast<size_t>(chosen)];
      if (!is_resident(expert)) continue;
      room_[count++] = {chosen, false, store_.view(expert[0]), store_.view(expert[1]), store_.view(expert[2])};
    }
    if (!store_.state_->plan.streams()) expert_ = experts_.size();
    views_ = room_.first(count);
    if (count > 0) return true;
  }
  views_ = {};
  for (; expert_ < experts_.size(); ++expert_) {
    const ExpertSlots& expert = experts_[expert_];
    while (next_chosen_ < chosen_.size() && static_cast<size_t>(chosen_[next_chosen_]) < expert_) ++next_chosen_;
    if (is_resident(expert)) continue;
    if (next_chosen_ == chosen_.size() || static_cast<size_t>(chosen_[next_chosen_]) != expert_) {
      TRY(pass_over(expert));
      continue;
    }
    room_[0] = {.expert = static_cast<int32_t>(expert_++), .streamed = true};
    views_ = room_.first(1);
    return true;
  }
  return false;
}

}  // namespace loralei

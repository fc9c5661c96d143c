// SPDX-License-Identifier: Apache-2.0
#include "sched/admission.h"

#include "base/check.h"

namespace loralei {

void Admission::arrive(const Waiting& waiting) {
  CHECK(waiting.rows > 0);
  CHECK(by_order_.emplace(waiting.order, waiting.id).second);
  CHECK(by_rows_.insert({waiting.rows, waiting.order, waiting.id}).second);
}

void Admission::leave(const Waiting& waiting) {
  CHECK(by_order_.erase({waiting.order, waiting.id}) == 1);
  CHECK(by_rows_.erase({waiting.rows, waiting.order, waiting.id}) == 1);
}

void Admission::begin() {
  stage_ = Stage::kOldest;
  offers_ = 0;
  asked_.reset();
}

std::optional<SeqId> Admission::next() {
  if (stage_ == Stage::kOver || by_order_.empty() || offers_ == kOffersMax) return std::nullopt;
  ++offers_;
  if (stage_ == Stage::kOldest) return by_order_.begin()->second;
  const auto next = asked_ ? by_rows_.upper_bound(*asked_) : by_rows_.begin();
  if (next == by_rows_.end()) return std::nullopt;
  asked_ = *next;
  return next->id;
}

void Admission::refused(Lack lack) {
  CHECK(stage_ != Stage::kOver);
  stage_ = stage_ == Stage::kOldest && lack == Lack::kRows ? Stage::kShortest : Stage::kOver;
}

void Admission::check() const {
  CHECK(by_order_.size() == by_rows_.size());
  for (const ByRows& waiting : by_rows_) {
    CHECK(waiting.rows > 0);
    CHECK(by_order_.count({waiting.order, waiting.id}) == 1);
  }
}

}  // namespace loralei

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
  asked_oldest_.reset();
  asked_shortest_.reset();
}

std::optional<SeqId> Admission::next() {
  if (stage_ == Stage::kOver || offers_ == kOffersMax) return std::nullopt;
  if (stage_ == Stage::kOldest) {
    const auto next = asked_oldest_ ? by_order_.upper_bound(*asked_oldest_) : by_order_.begin();
    if (next == by_order_.end()) return std::nullopt;
    asked_oldest_ = *next;
    ++offers_;
    return next->second;
  }
  const auto next = asked_shortest_ ? by_rows_.upper_bound(*asked_shortest_) : by_rows_.begin();
  if (next == by_rows_.end()) return std::nullopt;
  asked_shortest_ = *next;
  ++offers_;
  return next->id;
}

void Admission::refused(Lack lack) {
  CHECK(stage_ != Stage::kOver && offers_ > 0);
  if (lack == Lack::kAdapter) {
    --offers_;  // however many are skipped, those behind them are asked
    return;
  }
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

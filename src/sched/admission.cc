// SPDX-License-Identifier: Apache-2.0
#include "sched/admission.h"

#include "base/check.h"

namespace loralei {

void Admission::arrive(const Waiting& waiting) {
  CHECK(waiting.rows > 0);
  CHECK(all_.insert(waiting).second);
  CHECK(by_order_.insert(waiting).second && by_rows_.insert(waiting).second);
}

void Admission::leave(const Waiting& waiting) {
  CHECK(all_.erase(waiting) == 1);
  if (aside_.erase(waiting) == 1) return;
  CHECK(by_order_.erase(waiting) == 1 && by_rows_.erase(waiting) == 1);
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
    return next->id;
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
    const Waiting& waiting = stage_ == Stage::kOldest ? *asked_oldest_ : *asked_shortest_;
    CHECK(by_order_.erase(waiting) == 1 && by_rows_.erase(waiting) == 1);
    aside_.insert(waiting);
    --offers_;  // however many are set aside, those behind them are asked
    return;
  }
  stage_ = stage_ == Stage::kOldest && lack == Lack::kRows ? Stage::kShortest : Stage::kOver;
}

void Admission::places_changed() {
  for (const Waiting& waiting : aside_) {
    by_order_.insert(waiting);
    by_rows_.insert(waiting);
  }
  aside_.clear();
}

void Admission::check() const {
  CHECK(by_order_.size() == by_rows_.size() && by_order_.size() + aside_.size() == all_.size());
  for (const Waiting& waiting : by_rows_) {
    CHECK(waiting.rows > 0);
    CHECK(by_order_.count(waiting) == 1 && all_.count(waiting) == 1);
  }
  for (const Waiting& waiting : aside_) CHECK(by_order_.count(waiting) == 0 && all_.count(waiting) == 1);
}

}  // namespace loralei

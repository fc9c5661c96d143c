// SPDX-License-Identifier: Apache-2.0
#include "sched/admission.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace loralei {

void Admission::put(const Waiting& waiting) {
  CHECK(waiting.queue >= 0 && waiting.queue < kQueuesMax);
  Queue& queue = queues_[static_cast<size_t>(waiting.queue)];
  CHECK(queue.first.insert(waiting).second && queue.shortest.insert(waiting).second);
}

void Admission::arrive(const Waiting& waiting) {
  CHECK(waiting.rows > 0 && waiting.tokens >= 0);
  put(waiting);
  CHECK(in_order_[static_cast<size_t>(waiting.queue)].insert(waiting).second);
  ++size_;
}

void Admission::leave(const Waiting& waiting) {
  Queue& queue = queues_[static_cast<size_t>(waiting.queue)];
  CHECK(in_order_[static_cast<size_t>(waiting.queue)].erase(waiting) == 1);
  --size_;
  if (asked_ && asked_->order == waiting.order) {
    queue.left -= std::min(waiting.tokens, queue.quota);
    spare_ -= waiting.tokens;
    asked_.reset();
  }
  if (const auto aside = aside_.find(Aside{waiting}); aside != aside_.end()) {
    queue.places_ns.erase(queue.places_ns.find(aside->place_ns));
    aside_.erase(aside);
    return;
  }
  CHECK(queue.first.erase(waiting) == 1 && queue.shortest.erase(waiting) == 1);
}

void Admission::begin(const AdmissionRooms& rooms) {
  CHECK(rooms.queues.size() <= kQueuesMax);
  stage_ = Stage::kQuota;
  count_ = std::max<int32_t>(1, static_cast<int32_t>(rooms.queues.size()));
  at_ = offers_ = passed_over_ = 0;
  by_rows_ = lent_ = short_ = passed_ = false;
  bypass_ = rooms.bypass;
  now_ns_ = rooms.now_ns;
  spare_ = rooms.spare;
  asked_.reset();
  for (size_t i = 0; i < kQueuesMax; ++i) {
    const AdmissionRooms::Queue room = i < rooms.queues.size() ? rooms.queues[i] : AdmissionRooms::Queue{};
    CHECK(i < static_cast<size_t>(count_) || in_order_[i].empty());
    queues_[i].quota = room.quota;
    queues_[i].left = room.quota - room.taken;
    queues_[i].no_rows = false;
    queues_[i].asked_first.reset();
    queues_[i].asked_shortest.reset();
  }
}

template <typename Set>
const Waiting* Admission::behind(const Set& set, const std::optional<Waiting>& last) {
  const auto found = last ? set.upper_bound(*last) : set.begin();
  return found == set.end() ? nullptr : &*found;
}

// Rules 1 and 2.
bool Admission::fits(const Queue& queue, const Waiting& waiting) {
  const int64_t need = std::min(waiting.tokens, queue.quota);
  if (stage_ == Stage::kSpare) return need <= spare_;
  if (need > queue.left) return false;
  lent_ = lent_ || need > spare_;
  return need <= spare_;
}

// Rule 4.
bool Admission::may_pass(const Queue& queue, const Waiting& waiting) const {
  if (!bypass_ || queue.places_ns.empty()) return true;
  const int64_t place_ns = *queue.places_ns.begin();
  return place_ns == INT64_MAX || waiting.run_ns <= place_ns - now_ns_;
}

void Admission::next_queue() {
  by_rows_ = false;
  if (++at_ < count_) return;
  at_ = 0;
  stage_ = stage_ == Stage::kQuota && count_ > 1 && !lent_ ? Stage::kSpare : Stage::kOver;
}

std::optional<SeqId> Admission::next() {
  while (stage_ != Stage::kOver && offers_ < kOffersMax) {
    Queue& queue = queues_[static_cast<size_t>(at_)];
    std::optional<Waiting>& last = by_rows_ ? queue.asked_shortest : queue.asked_first;
    const Waiting* const waiting = by_rows_ ? behind(queue.shortest, last) : behind(queue.first, last);
    const bool out = waiting == nullptr || (stage_ == Stage::kSpare && queue.no_rows);
    if (out || !fits(queue, *waiting)) {
      short_ = short_ || !out;
      next_queue();
      continue;
    }
    last = *waiting;
    if (!may_pass(queue, *waiting)) {
      if (++passed_over_ == kOffersMax) stage_ = Stage::kOver;
      continue;
    }
    asked_ = *waiting;
    passed_ = bypass_ && !queue.places_ns.empty();
    ++offers_;
    return waiting->id;
  }
  return std::nullopt;
}

void Admission::refused(Lack lack, int64_t place_ns) {
  CHECK(stage_ != Stage::kOver && asked_);
  Queue& queue = queues_[static_cast<size_t>(at_)];
  switch (lack) {
    case Lack::kAdapter:
      CHECK(queue.first.erase(*asked_) == 1 && queue.shortest.erase(*asked_) == 1);
      aside_.insert({*asked_, place_ns});
      queue.places_ns.insert(place_ns);
      --offers_;  // however many are set aside, those behind them are asked
      break;
    case Lack::kRows:
      if (by_rows_ || stage_ == Stage::kSpare) {
        queue.no_rows = true;
        next_queue();
      } else {
        by_rows_ = true;
      }
      break;
    case Lack::kMemory:
    case Lack::kSlots:
      stage_ = Stage::kOver;
      break;
  }
  asked_.reset();
}

void Admission::places_changed() {
  for (const Aside& aside : aside_) put(aside.waiting);
  aside_.clear();
  for (Queue& queue : queues_) queue.places_ns.clear();
}

void Admission::lay_out(const std::function<void(Waiting&)>& place) {
  std::vector<Waiting> all;
  for (auto& queue : in_order_) {
    all.insert(all.end(), queue.begin(), queue.end());
    queue.clear();
  }
  aside_.clear();
  queues_ = {};
  stage_ = Stage::kOver;
  asked_.reset();
  size_ = 0;
  for (Waiting& waiting : all) {
    place(waiting);
    arrive(waiting);
  }
}

void Admission::check() const {
  size_t all = 0, may_be_asked = 0, places = 0;
  for (size_t i = 0; i < kQueuesMax; ++i) {
    const Queue& queue = queues_[i];
    CHECK(queue.first.size() == queue.shortest.size());
    all += in_order_[i].size();
    may_be_asked += queue.first.size();
    places += queue.places_ns.size();
    for (const Waiting& waiting : queue.shortest) {
      CHECK(waiting.rows > 0 && static_cast<size_t>(waiting.queue) == i);
      CHECK(queue.first.count(waiting) == 1 && in_order_[i].count(waiting) == 1);
    }
  }
  CHECK(all == size_ && may_be_asked + aside_.size() == all && places == aside_.size());
  for (const Aside& aside : aside_) {
    const auto queue = static_cast<size_t>(aside.waiting.queue);
    CHECK(queues_[queue].first.count(aside.waiting) == 0 && in_order_[queue].count(aside.waiting) == 1);
    CHECK(queues_[queue].places_ns.count(aside.place_ns) > 0);
  }
}

}  // namespace loralei

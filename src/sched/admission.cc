// SPDX-License-Identifier: Apache-2.0
#include "sched/admission.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace loralei {
namespace {

constexpr double kNewestGap = 0.25;  // the weight of the newest one

}  // namespace

Admission::Queue& Admission::queue_of(const Waiting& waiting) {
  CHECK(waiting.queue >= 0 && waiting.queue < kQueuesMax);
  return queues_[static_cast<size_t>(waiting.queue)];
}

// Among those that may be asked.
void Admission::put(Queue& queue, const Waiting& waiting) {
  Client& client = queue.clients.at(waiting.client);
  if (client.line.empty()) queue.may_be_asked.insert({client.served, waiting.client});
  client.line.put(waiting);
}

void Admission::take_out(Queue& queue, const Waiting& waiting) {
  Client& client = queue.clients.at(waiting.client);
  client.line.take_out(waiting);
  if (client.line.empty()) queue.may_be_asked.erase({client.served, waiting.client});
}

void Admission::arrive(const Waiting& waiting, int64_t served) {
  CHECK(waiting.rows > 0 && waiting.tokens >= 0 && served >= 0);
  Queue& queue = queue_of(waiting);
  const auto [at, is_new] = queue.clients.try_emplace(waiting.client);
  if (is_new) {
    at->second.served = served;
    queue.turns.insert({served, waiting.client});
  }
  CHECK(at->second.served == served && at->second.all.insert(waiting).second);
  put(queue, waiting);
  queue.unserved_ns = queue.size == 0 ? waiting.since_ns : std::min(queue.unserved_ns, waiting.since_ns);
  ++queue.size;
  ++size_;
}

void Admission::set_served(ClientId client, int64_t served) {
  for (Queue& queue : queues_) {
    const auto found = queue.clients.find(client);
    if (found == queue.clients.end() || found->second.served == served) continue;
    const ClientTurn before{found->second.served, client}, now{served, client};
    move_turn(queue.turns, before, now);
    if (!found->second.line.empty()) move_turn(queue.may_be_asked, before, now);
    found->second.served = served;
  }
}

void Admission::leave(const Waiting& waiting) {
  Queue& queue = queue_of(waiting);
  const auto client = queue.clients.find(waiting.client);
  CHECK(client != queue.clients.end() && client->second.all.erase(waiting) == 1);
  --queue.size;
  --size_;
  if (asked_ && asked_->order == waiting.order) {
    queue.left -= std::min(waiting.tokens, queue.quota);
    spare_ -= waiting.tokens;
    asked_.reset();
    note_begun(queue);
  }
  if (queue.size == 0) queue.began_ns.reset();
  if (const auto aside = aside_.find(Aside{waiting}); aside != aside_.end()) {
    queue.places_ns.erase(queue.places_ns.find(aside->place_ns));
    aside_.erase(aside);
  } else {
    take_out(queue, waiting);
  }
  if (!client->second.all.empty()) return;
  queue.turns.erase({client->second.served, waiting.client});
  queue.clients.erase(client);
}

// Whoever was asked and leaves has begun, but for few.
void Admission::note_begun(Queue& queue) {
  if (queue.began_ns) queue.gap_ns += kNewestGap * (static_cast<double>(now_ns_ - *queue.began_ns) - queue.gap_ns);
  queue.began_ns = queue.unserved_ns = now_ns_;
}

bool Admission::has(const Waiting& waiting) const {
  const auto& clients = queues_[static_cast<size_t>(waiting.queue)].clients;
  const auto found = clients.find(waiting.client);
  return found != clients.end() && found->second.all.count(waiting) != 0;
}

size_t Admission::begin_visit(Lines& lines) const {
  size_t count = 0;
  for (const Queue& queue : queues_) {
    int32_t left = kOffersMax;
    for (auto turn = queue.turns.begin(); turn != queue.turns.end() && left > 0; ++turn, --left) {
      const InOrder& all = queue.clients.at(turn->client).all;
      lines[count++] = {all.begin(), all.end()};
    }
  }
  return count;
}

void Admission::begin(const AdmissionRooms& rooms) {
  CHECK(rooms.queues.size() <= kQueuesMax);
  count_ = std::max<int32_t>(1, static_cast<int32_t>(rooms.queues.size()));
  at_ = offers_ = passed_over_ = 0;
  lent_ = short_ = passed_ = false;
  bypass_ = rooms.bypass;
  now_ns_ = rooms.now_ns;
  spare_ = rooms.spare;
  asked_.reset();
  ++planning_;
  for (size_t i = 0; i < kQueuesMax; ++i) {
    const AdmissionRooms::Queue room = i < rooms.queues.size() ? rooms.queues[i] : AdmissionRooms::Queue{};
    CHECK(i < static_cast<size_t>(count_) || queues_[i].size == 0);
    queues_[i].quota = room.quota;
    queues_[i].left = room.quota - room.taken;
    queues_[i].rows = Rows::kLeft;
  }
  find_late(rooms);
  stage_ = late_count_ > 0 ? Stage::kLate : Stage::kQuota;
  if (late_count_ > 0) at_ = late_[0];
}

// Rule 6.
void Admission::find_late(const AdmissionRooms& rooms) {
  late_count_ = late_at_ = 0;
  late_asked_ = false;
  std::array<int64_t, kQueuesMax> overdue_ns{};
  for (int32_t at = 0; at < count_ && count_ > 1; ++at) {
    const auto index = static_cast<size_t>(at);
    const int64_t waited_ns = now_ns_ - queues_[index].unserved_ns, wanted_ns = rooms.queues[index].wanted_ns;
    if (queues_[index].size == 0 || waited_ns <= wanted_ns) continue;
    overdue_ns[index] = waited_ns - wanted_ns;
    late_[static_cast<size_t>(late_count_++)] = at;
  }
  std::sort(late_.begin(), late_.begin() + late_count_, [&](int32_t a, int32_t b) {
    const int64_t a_ns = overdue_ns[static_cast<size_t>(a)], b_ns = overdue_ns[static_cast<size_t>(b)];
    return a_ns != b_ns ? a_ns > b_ns : a < b;
  });
}

// Of the client that has had least, as far as it has one that was not passed over. Those
// that were are kOffersMax at most, so no more clients are looked at in vain.
const Waiting* Admission::first_of(Queue& queue) {
  for (const ClientTurn& turn : queue.may_be_asked) {
    Client& client = queue.clients.at(turn.client);
    if (client.planning != planning_) {
      client.planning = planning_;
      client.asked_first.reset();
      client.asked_shortest.reset();
    }
    const bool by_rows = queue.rows != Rows::kLeft;
    const Waiting* const urgent =
        by_rows || waits_for_place(queue) ? nullptr : client.line.urgent(now_ns_, static_cast<int64_t>(queue.gap_ns));
    if (urgent != nullptr) return urgent;
    std::optional<Waiting>& last = by_rows ? client.asked_shortest : client.asked_first;
    const Waiting* const next = by_rows ? client.line.shortest(last) : client.line.first(last);
    if (next != nullptr) return next;
  }
  return nullptr;
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
  if (!waits_for_place(queue)) return true;
  const int64_t place_ns = *queue.places_ns.begin();
  return place_ns == INT64_MAX || waiting.run_ns <= place_ns - now_ns_;
}

void Admission::next_queue() {
  if (stage_ == Stage::kLate) {
    if (++late_at_ == late_count_) stage_ = Stage::kQuota;
    at_ = stage_ == Stage::kLate ? late_[static_cast<size_t>(late_at_)] : 0;
    return;
  }
  if (++at_ < count_) return;
  at_ = 0;
  stage_ = stage_ == Stage::kQuota && count_ > 1 && !lent_ ? Stage::kSpare : Stage::kOver;
}

std::optional<SeqId> Admission::next() {
  if (stage_ == Stage::kLate && std::exchange(late_asked_, false)) next_queue();
  while (stage_ != Stage::kOver && offers_ < kOffersMax) {
    Queue& queue = queues_[static_cast<size_t>(at_)];
    const Waiting* const waiting = queue.rows == Rows::kNone ? nullptr : first_of(queue);
    if (waiting == nullptr || !fits(queue, *waiting)) {
      short_ = short_ || waiting != nullptr;
      next_queue();
      continue;
    }
    if (!may_pass(queue, *waiting)) {
      if (stage_ == Stage::kLate) {
        next_queue();
        continue;
      }
      Client& client = queue.clients.at(waiting->client);
      (queue.rows == Rows::kLeft ? client.asked_first : client.asked_shortest) = *waiting;
      if (++passed_over_ == kOffersMax) stage_ = Stage::kOver;
      continue;
    }
    asked_ = *waiting;
    passed_ = waits_for_place(queue);
    ++offers_;
    late_asked_ = stage_ == Stage::kLate;
    return waiting->id;
  }
  return std::nullopt;
}

void Admission::refused(Lack lack, int64_t place_ns) {
  CHECK(stage_ != Stage::kOver && asked_);
  Queue& queue = queues_[static_cast<size_t>(at_)];
  switch (lack) {
    case Lack::kAdapter:
      take_out(queue, *asked_);
      aside_.insert({*asked_, place_ns});
      queue.places_ns.insert(place_ns);
      --offers_;  // however many are set aside, those behind them are asked
      break;
    case Lack::kRows:
      queue.rows = queue.rows == Rows::kLeft && stage_ != Stage::kSpare ? Rows::kFew : Rows::kNone;
      if (queue.rows == Rows::kNone) next_queue();
      break;
    case Lack::kMemory:
    case Lack::kSlots:
      stage_ = Stage::kOver;
      break;
  }
  asked_.reset();
}

void Admission::places_changed() {
  for (const Aside& aside : aside_) put(queue_of(aside.waiting), aside.waiting);
  aside_.clear();
  for (Queue& queue : queues_) queue.places_ns.clear();
}

void Admission::lay_out(const std::function<void(Waiting&)>& place) {
  std::vector<std::pair<Waiting, int64_t>> all;
  for (const Queue& queue : queues_) {
    for (const auto& [id, client] : queue.clients)
      for (const Waiting& waiting : client.all) all.emplace_back(waiting, client.served);
  }
  aside_.clear();
  queues_ = {};
  stage_ = Stage::kOver;
  asked_.reset();
  size_ = 0;
  for (auto& [waiting, served] : all) {
    place(waiting);
    arrive(waiting, served);
  }
}

void Admission::check() const {
  size_t all = 0, may_be_asked = 0, places = 0;
  for (size_t i = 0; i < kQueuesMax; ++i) {
    const Queue& queue = queues_[i];
    size_t size = 0, lines = 0;
    for (const auto& [id, client] : queue.clients) {
      client.line.check();
      CHECK(!client.all.empty() && queue.turns.count({client.served, id}) == 1);
      CHECK((queue.may_be_asked.count({client.served, id}) == 1) == !client.line.empty());
      size += client.all.size();
      lines += client.line.empty() ? 0 : 1;
      may_be_asked += client.line.size();
      size_t in_line = 0;
      for (const Waiting& waiting : client.all) {
        CHECK(static_cast<size_t>(waiting.queue) == i && waiting.client == id);
        in_line += client.line.has(waiting) ? 1 : 0;
      }
      CHECK(in_line == client.line.size());
    }
    CHECK(size == queue.size && queue.turns.size() == queue.clients.size() && queue.may_be_asked.size() == lines);
    all += size;
    places += queue.places_ns.size();
  }
  CHECK(all == size_ && may_be_asked + aside_.size() == all && places == aside_.size());
  for (const Aside& aside : aside_) {
    const Queue& queue = queues_[static_cast<size_t>(aside.waiting.queue)];
    const Client& client = queue.clients.at(aside.waiting.client);
    CHECK(!client.line.has(aside.waiting) && client.all.count(aside.waiting) == 1);
    CHECK(queue.places_ns.count(aside.place_ns) > 0);
  }
}

}  // namespace loralei

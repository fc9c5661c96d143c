// SPDX-License-Identifier: Apache-2.0
#include "dashboard/event_listeners.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "http/query.h"

namespace loralei {
namespace {

constexpr int64_t kMsNs = 1'000'000;
constexpr int64_t kCountMax = 1'000'000;
constexpr std::string_view kEnd = "event: end\ndata: {\"why\":\"The server is shutting down.\"}\n\n";

Status read_number(std::string_view query, const char* name, int64_t from, int64_t to, int64_t& value) {
  const auto text = query_value(query, name);
  if (!text) return {};
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error == std::errc() && end == text->data() + text->size() && value >= from && value <= to) return {};
  return invalid_argument(std::string(name) + " is a whole number from " + std::to_string(from) + " to " +
                          std::to_string(to) + ".");
}

// Whole steps that are not before it, from the clock's beginning on: so those of one
// interval meet.
int64_t next_multiple(int64_t now_ns, int64_t step_ns) { return (now_ns + step_ns - 1) / step_ns * step_ns; }

void end_stream(ResponseWriter& writer) {
  if (writer.wants_more()) (void)writer.write(kEnd);
  writer.finish();
}

}  // namespace

Result<EventQuery> parse_event_query(std::string_view query) {
  EventQuery out;
  TRY(read_number(query, "interval_ms", EventListeners::kStepMs, EventListeners::kIntervalMsMax, out.interval_ms));
  TRY(read_number(query, "count", 1, kCountMax, out.count));
  out.interval_ms = next_multiple(out.interval_ms, EventListeners::kStepMs);
  return out;
}

Status EventListeners::open() {
  const std::lock_guard lock(mutex_);
  if (draining_) return Error{ErrorCode::kUnavailable, "The server is shutting down."};
  if (listeners_.size() + opening_ >= kListenersMax) {
    return Error{ErrorCode::kOverloaded,
                 std::to_string(kListenersMax) + " streams of events are open already; close one, or try again later."};
  }
  ++opening_;
  return {};
}

void EventListeners::give_back() {
  const std::lock_guard lock(mutex_);
  --opening_;
}

void EventListeners::add(std::shared_ptr<ResponseWriter> writer, const EventQuery& query, int64_t now_ns) {
  auto listener = std::make_shared<Listener>();
  listener->writer = std::move(writer);
  listener->interval_ns = query.interval_ms * kMsNs;
  listener->due_ns = next_multiple(now_ns, kStepMs * kMsNs);  // the first one soon, with whoever else is due
  listener->left = query.count;
  {
    const std::lock_guard lock(mutex_);
    --opening_;
    if (!draining_) return listeners_.push_back(std::move(listener));
  }
  end_stream(*listener->writer);
}

void EventListeners::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

std::optional<int64_t> EventListeners::next_ns() const {
  const std::lock_guard lock(mutex_);
  if (listeners_.empty()) return std::nullopt;
  if (draining_) return 0;
  const auto first = std::min_element(listeners_.begin(), listeners_.end(),
                                      [](const auto& a, const auto& b) { return a->due_ns < b->due_ns; });
  return (*first)->due_ns;
}

size_t EventListeners::size() const {
  const std::lock_guard lock(mutex_);
  return listeners_.size();
}

void EventListeners::end_all() {
  std::vector<ListenerPtr> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(listeners_);
  }
  for (const ListenerPtr& one : all) end_stream(*one->writer);
}

std::vector<EventListeners::ListenerPtr> EventListeners::take_due(int64_t now_ns) {
  // Destroyed without the lock: what comes of a writer is its connection's business.
  std::vector<ListenerPtr> due, gone;
  const std::lock_guard lock(mutex_);
  std::erase_if(listeners_, [&](ListenerPtr& one) {
    if (!one->ended && !one->writer->closed()) return false;
    gone.push_back(std::move(one));
    return true;
  });
  for (const ListenerPtr& one : listeners_) {
    if (one->due_ns > now_ns) continue;
    one->due_ns = next_multiple(now_ns + 1, one->interval_ns);
    due.push_back(one);
  }
  return due;
}

void EventListeners::tick(int64_t now_ns, const std::function<std::string()>& snapshot) {
  {
    std::unique_lock lock(mutex_);
    if (draining_) {
      lock.unlock();
      return end_all();
    }
  }
  const std::vector<ListenerPtr> due = take_due(now_ns);
  if (due.empty()) return;
  const std::string frame = "data: " + snapshot() + "\n\n";
  for (const ListenerPtr& one : due) {
    if (!one->writer->wants_more()) continue;  // it has not taken the last one
    bool ended = !one->writer->write(frame);
    if (!ended && one->left == 1) {
      one->writer->finish();
      ended = true;
    }
    if (one->left > 0) --one->left;
    if (!ended) continue;
    const std::lock_guard lock(mutex_);
    one->ended = true;
  }
}

}  // namespace loralei

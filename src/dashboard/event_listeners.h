// SPDX-License-Identifier: Apache-2.0
// EventListeners: who follows GET /v1/admin/events, and when whom is told. It makes no
// snapshots: event_feed.h does, on a thread of its own.
//
// Thread-safe. tick() by one thread.
// Ownership: shares the writers until their streams end.
// Invariants: one snapshot serves everybody who is due at a tick, however many these are,
// and none is made for nobody. Streams of one interval are due at the same ticks. Who has
// not taken what came before is told nothing at a tick: nothing is queued for it, and
// nobody waits for it. After drain() no stream goes on.
// Failure: parse_event_query() and open() answer a sentence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "http/server.h"

namespace loralei {

struct EventQuery {
  int64_t interval_ms = 1000;
  int64_t count = 0;  // events until the stream ends; 0: it goes on
};
// "interval_ms=500&count=1"; names that mean nothing here are passed over.
Result<EventQuery> parse_event_query(std::string_view query);

class EventListeners {
 public:
  static constexpr int64_t kStepMs = 250;  // intervals are whole ones of these
  static constexpr int64_t kIntervalMsMax = 60'000;
  static constexpr size_t kListenersMax = 256;

  // A place for a stream that is about to begin: add() or give_back() comes next.
  Status open();
  void add(std::shared_ptr<ResponseWriter> writer, const EventQuery& query, int64_t now_ns);
  void give_back();
  // Ends all streams, at the next tick, with an event that says so.
  void drain();

  // When somebody is due; none: nobody listens, and nothing is to be ended.
  std::optional<int64_t> next_ns() const;
  // Tells whoever is due what `snapshot` says, which is called once, or not at all.
  void tick(int64_t now_ns, const std::function<std::string()>& snapshot);
  size_t size() const;  // streams

 private:
  struct Listener {
    std::shared_ptr<ResponseWriter> writer;
    int64_t interval_ns = 0;
    int64_t due_ns = 0;  // guarded by the mutex; the rest is tick()'s
    int64_t left = 0;    // events that it is still to get; 0: no end
    bool ended = false;  // guarded by the mutex
  };
  using ListenerPtr = std::shared_ptr<Listener>;
  std::vector<ListenerPtr> take_due(int64_t now_ns);
  void end_all();

  mutable std::mutex mutex_;
  std::vector<ListenerPtr> listeners_;
  size_t opening_ = 0;
  bool draining_ = false;
};

}  // namespace loralei

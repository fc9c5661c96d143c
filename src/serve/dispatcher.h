// SPDX-License-Identifier: Apache-2.0
// Dispatcher: takes what the engine sends up and hands it to the objects that wait for
// it: news of adapters to the board, replies to whoever sent the command, token events to
// requests. The one consumer of Engine::wait_output.
//
// Thread: add(), remove(), command() from any thread; EventSink and replies are
// called on the dispatcher's own thread, which also ticks every sink about once a
// second (for pings).
// Ownership: shares the sinks; the engine outlives it.
// Invariants: a sink gets events in the engine's order, and after the replies that
// came up with them: who is told that an adapter was replaced finds the new one; news of
// adapters are on the board before either; after remove() of its last id a sink gets
// none; events of unknown ids (cancelled requests) are dropped; every command that was
// accepted gets exactly one reply, at the latest when stop() answers "unavailable".
// Failure: command() when the engine takes none.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/adapter_board.h"
#include "engine/api.h"

namespace loralei {

class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(TokenEvent event) = 0;
  virtual void on_tick(int64_t now_ns) = 0;
  virtual const std::string& request_id() const = 0;  // X-Request-Id of who asked; any thread
};

class Dispatcher {
 public:
  using ReplyCallback = std::function<void(const CommandReply&)>;

  Dispatcher(Engine& engine, const Clock& clock, Heartbeats* beats = nullptr);
  ~Dispatcher();  // stop()

  RequestId next_id();  // never reused
  void add(RequestId id, std::shared_ptr<EventSink> sink);
  void remove(RequestId id);
  size_t running() const;                      // ids with a sink
  std::string request_id(RequestId id) const;  // its sink's; empty: there is none
  const AdapterBoard& adapters() const { return adapters_; }
  // The ticket is set here.
  Status command(AdapterCommand command, ReplyCallback done) {
    TRY(send(std::move(command), std::move(done)));
    return {};
  }
  Status command(QueuesCommand command, ReplyCallback done) {
    TRY(send(command, std::move(done)));
    return {};
  }
  Status command(KvCommand command, ReplyCallback done) {
    TRY(send(command, std::move(done)));
    return {};
  }
  Status command(AppCommand command, ReplyCallback done) {
    TRY(send(std::move(command), std::move(done)));
    return {};
  }
  // Answers the ticket, for Engine::cancel_memory.
  Result<uint64_t> command(MemoryCommand command, ReplyCallback done) { return send(command, std::move(done)); }
  // Waits until no sink is left and no reply is owed, or the time is over; true
  // when that is so.
  bool wait_idle(int64_t timeout_ms);
  void stop();

 private:
  template <typename Command>
  Result<uint64_t> send(Command command, ReplyCallback done);
  void run();
  bool idle() const { return sinks_.empty() && replies_.empty(); }
  void deliver(EngineOutput output);
  void tick(int64_t now_ns);

  Engine& engine_;
  const Clock& clock_;
  Heartbeats* const beats_;
  AdapterBoard adapters_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;  // idle() holds
  std::unordered_map<RequestId, std::shared_ptr<EventSink>> sinks_;
  std::unordered_map<uint64_t, ReplyCallback> replies_;
  uint64_t last_id_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace loralei

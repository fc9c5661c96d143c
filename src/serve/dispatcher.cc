// SPDX-License-Identifier: Apache-2.0
#include "serve/dispatcher.h"

#include <chrono>
#include <set>
#include <utility>

#include "sys/threads.h"

namespace loralei {
namespace {

constexpr int64_t kWaitNs = 200'000'000;
constexpr int64_t kTickNs = 1'000'000'000;

}  // namespace

Dispatcher::Dispatcher(Engine& engine, const Clock& clock, Heartbeats* beats)
    : engine_(engine), clock_(clock), beats_(beats), thread_([this] { run(); }) {}

Dispatcher::~Dispatcher() { stop(); }

RequestId Dispatcher::next_id() {
  std::lock_guard lock(mutex_);
  return {++last_id_};
}

void Dispatcher::add(RequestId id, std::shared_ptr<EventSink> sink) {
  std::lock_guard lock(mutex_);
  sinks_.emplace(id, std::move(sink));
}

void Dispatcher::remove(RequestId id) {
  std::shared_ptr<EventSink> last;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  const auto known = sinks_.find(id);
  if (known == sinks_.end()) return;
  last = std::move(known->second);
  sinks_.erase(known);
  if (idle()) idle_.notify_all();
}

size_t Dispatcher::running() const {
  std::lock_guard lock(mutex_);
  return sinks_.size();
}

std::string Dispatcher::request_id(RequestId id) const {
  std::lock_guard lock(mutex_);
  const auto known = sinks_.find(id);
  return known == sinks_.end() ? "" : known->second->request_id();
}

template <typename Command>
Result<uint64_t> Dispatcher::send(Command command, ReplyCallback done) {
  uint64_t ticket = 0;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return Error{ErrorCode::kUnavailable, "The server is shutting down."};
    ticket = command.ticket = ++last_id_;
    replies_.emplace(ticket, std::move(done));
  }
  Status status = engine_.command(std::move(command));
  if (status.ok()) return ticket;
  std::lock_guard lock(mutex_);
  replies_.erase(ticket);
  if (idle()) idle_.notify_all();
  return std::move(status).error();
}

template Result<uint64_t> Dispatcher::send(AdapterCommand, ReplyCallback);
template Result<uint64_t> Dispatcher::send(MemoryCommand, ReplyCallback);
template Result<uint64_t> Dispatcher::send(QueuesCommand, ReplyCallback);
template Result<uint64_t> Dispatcher::send(KvCommand, ReplyCallback);
template Result<uint64_t> Dispatcher::send(AppCommand, ReplyCallback);

bool Dispatcher::wait_idle(int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return idle(); });
}

void Dispatcher::stop() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  thread_.join();
  std::unordered_map<uint64_t, ReplyCallback> open;
  {
    std::lock_guard lock(mutex_);
    open.swap(replies_);
  }
  for (auto& [ticket, done] : open)
    done({.ticket = ticket, .status = Error{ErrorCode::kUnavailable, "The server is shutting down."}});
}

void Dispatcher::run() {
  name_this_thread("dispatcher");
  int64_t next_tick_ns = clock_.now_ns() + kTickNs;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    EngineOutput output = engine_.wait_output(kWaitNs);
    const Heartbeats::Mark mark(beats_, "dispatcher");
    deliver(std::move(output));
    if (const int64_t now_ns = clock_.now_ns(); now_ns >= next_tick_ns) {
      tick(now_ns);
      next_tick_ns = now_ns + kTickNs;
    }
  }
  deliver(engine_.wait_output(0));  // what was under way when the engine stopped
}

void Dispatcher::deliver(EngineOutput output) {
  adapters_.put(output.adapters, clock_.now_ns());
  for (const CommandReply& reply : output.replies) {
    ReplyCallback done;
    {
      std::lock_guard lock(mutex_);
      const auto known = replies_.find(reply.ticket);
      if (known == replies_.end()) continue;
      done = std::move(known->second);  // its place is kept: until it has run, and sent what it sends, nothing is idle
    }
    done(reply);
    std::lock_guard lock(mutex_);
    replies_.erase(reply.ticket);
    if (idle()) idle_.notify_all();
  }
  for (TokenEvent& event : output.tokens) {
    std::shared_ptr<EventSink> sink;
    {
      std::lock_guard lock(mutex_);
      const auto known = sinks_.find(event.id);
      if (known != sinks_.end()) sink = known->second;
    }
    if (sink) sink->on_event(std::move(event));
  }
}

void Dispatcher::tick(int64_t now_ns) {
  std::set<std::shared_ptr<EventSink>> all;  // a request of many parts is one
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, sink] : sinks_) all.insert(sink);
  }
  for (const auto& sink : all) sink->on_tick(now_ns);
}

}  // namespace loralei

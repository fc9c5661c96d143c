// SPDX-License-Identifier: Apache-2.0
// LoopEngine: the engine's loop over the fake model and device as an Engine that a server
// can stand on. Requests come from the server's threads; turns are made by the test's,
// one at a time, on a clock that the test moves.
//
// Thread-safe: a mutex makes everything one at a time. Ownership: owns its world.
// Commands are answered at once, in turns of their own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/fixed_byte_budget.h"
#include "engine/api.h"
#include "sim/loop_world.h"

namespace loralei::test {

class LoopEngine final : public Engine {
 public:
  explicit LoopEngine(const sim::WorldOptions& options, int64_t step_ns) : world_(options) {
    world_.executor.clock = &world_.clock;
    world_.executor.step_ns = step_ns;
  }

  // --- of the test
  sim::FakeFiles& files() { return world_.files; }
  // So many requests have come in all; the id of the last of them.
  RequestId wait_submits(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return submits_ >= count; }));
    return last_;
  }
  // What has arrived is taken in and a step computed, if there is one; the oldest load
  // and upload end, unless they are to wait.
  void turn(bool finish = true) {
    const std::lock_guard lock(mutex_);
    turn_locked();
    if (!finish) return;
    world_.finish_load();
    (void)world_.finish_upload();
  }
  void pass_time(int64_t ns) {
    const std::lock_guard lock(mutex_);
    world_.clock.advance_ns(ns);
  }
  int tokens(RequestId id) {  // of all its choices
    const std::lock_guard lock(mutex_);
    return tokens_[id];
  }
  int open_choices() {  // of all requests
    const std::lock_guard lock(mutex_);
    return open_;
  }

  // --- of the server
  Status submit(Submit request) override {
    const std::lock_guard lock(mutex_);
    last_ = request.id;
    open_ += request.choices;
    world_.queued.fetch_add(1);
    world_.messages.emplace_back(Arrival{std::move(request), world_.clock.now_ns()});
    ++submits_;
    changed_.notify_all();
    return {};
  }
  using Engine::cancel;
  void cancel(RequestId id, int32_t choice) override { put(Cancel{id, choice}); }
  void hold(RequestId id, bool held) override { put(Hold{id, held}); }
  Status command(AdapterCommand command) override { return answer(std::move(command)); }
  Status command(QueuesCommand command) override { return answer(command); }
  Status command(KvCommand command) override { return answer(command); }
  Status command(AppCommand command) override { return answer(std::move(command)); }
  Status command(MemoryCommand) override { return unsupported("the fake engine has one budget"); }
  void cancel_memory(uint64_t) override {}
  Status check_adapter(const AdapterSourceSpec&) override { return {}; }
  EngineOutput wait_output(int64_t timeout_ns) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return !output_.empty() || stopped_; });
    return std::exchange(output_, {});
  }
  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    return world_.stats();
  }
  Status health() const override { return {}; }
  std::shared_ptr<ByteBudget> request_memory() const override { return memory_; }
  const Heartbeats& heartbeats() const override { return beats_; }
  int64_t max_model_len() const override { return world_.max_model_len(); }
  const std::string& fingerprint() const override { return fingerprint_; }
  void drain() override {}
  void stop() override {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    world_.loop->end_all(world_.messages, output_);
    changed_.notify_all();
  }

 private:
  void put(Message&& message) {
    const std::lock_guard lock(mutex_);
    world_.messages.push_back(std::move(message));
  }
  Status answer(Message&& command) {
    const std::lock_guard lock(mutex_);
    world_.messages.push_back(std::move(command));
    turn_locked();
    return {};
  }
  void turn_locked() {
    const size_t seen = output_.tokens.size();
    world_.turn(output_);
    world_.loop->check();
    for (size_t i = seen; i < output_.tokens.size(); ++i) {
      tokens_[output_.tokens[i].id] += output_.tokens[i].has_token ? 1 : 0;
      open_ -= output_.tokens[i].end != EndReason::kNone ? 1 : 0;
    }
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  sim::LoopWorld world_;
  SteadyClock steady_;
  Heartbeats beats_{steady_};
  const std::shared_ptr<ByteBudget> memory_ = std::make_shared<FixedByteBudget>(int64_t{1} << 40);
  const std::string fingerprint_ = "fake";
  EngineOutput output_;
  size_t submits_ = 0;
  RequestId last_;
  std::map<RequestId, int> tokens_;
  int open_ = 0;
  bool stopped_ = false;
};

}  // namespace loralei::test

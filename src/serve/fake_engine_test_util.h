// SPDX-License-Identifier: Apache-2.0
// FakeEngine: an Engine for serve's tests that answers from a script instead of a model.
// Thread-safe as the real one. By itself it answers each Submit at once with `script`'s
// tokens; with `hold_tokens` set requests wait until the test emits their events.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/fixed_byte_budget.h"
#include "engine/api.h"

namespace loralei {

class FakeEngine final : public Engine {
 public:
  std::function<std::vector<TokenId>(const Submit&, int choice)> script;
  TokenId eos = 0;
  bool hold_tokens = false;
  bool hold_replies = false;                                  // of adapter commands, until release_replies()
  Status next_command;                                        // when not ok: the answer to every adapter command
  std::map<std::string, std::string> versions;                // what loads answer, by path
  QueuesState queues;                                         // what it says of them
  KvState kv;                                                 // and of the KV cache
  std::vector<std::pair<std::string, AppState>> apps_stated;  // AppCommand, in order
  bool hold_memory = false;                                   // a budget change ends when it is cancelled
  int64_t length = 64;
  std::string device;  // of stats()
  size_t max_running = 1000;
  std::vector<float> embedding = {3.0f, 4.0f};
  Status next_submit;  // when not ok: the answer to every submit
  Status next_health;
  std::vector<std::pair<uint64_t, bool>> holds;  // ids, and whether they are held now
  std::function<void()> on_check;                // before it
  std::map<std::string, int> checks;             // check_adapter(), by name
  std::map<std::string, Status> next_checks;     // what it says of some
  SteadyClock clock;
  Heartbeats beats{clock};
  std::shared_ptr<ByteBudget> memory = std::make_shared<FixedByteBudget>(int64_t{1} << 40);

  Status submit(Submit request) override {
    std::lock_guard lock(mutex_);
    if (draining_ && !request.follows) return Error{ErrorCode::kUnavailable, "draining"};
    if (!next_submit.ok()) return next_submit;
    if (submits_.size() - ended_.size() >= max_running) return Error{ErrorCode::kOverloaded, "The queue is full."};
    submits_.push_back(request);
    changed_.notify_all();
    if (!hold_tokens) answer(request);
    return {};
  }
  using Engine::cancel;
  void cancel(RequestId id, int32_t choice) override {
    std::lock_guard lock(mutex_);
    if (choice != kAllChoices) {
      cancelled_choices_.insert({id.value, choice});
      changed_.notify_all();
      return;
    }
    cancelled_.insert(id.value);
    if (std::any_of(submits_.begin(), submits_.end(), [&](const Submit& submit) { return submit.id == id; }))
      ended_.insert(id.value);
    changed_.notify_all();
  }
  void hold(RequestId id, bool held) override {
    std::lock_guard lock(mutex_);
    holds.emplace_back(id.value, held);
    changed_.notify_all();
  }
  bool wait_for_holds(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return holds.size() >= count; });
  }
  Status command(AdapterCommand command) override {
    std::lock_guard lock(mutex_);
    if (!next_command.ok()) return next_command;
    CommandReply reply;
    reply.ticket = command.ticket;
    reply.version =
        versions.contains(command.source.path) ? versions[command.source.path] : "v-" + command.source.label;
    if (command.source.path.find("broken") != std::string::npos) reply.status = corrupt("The file is broken.");
    const std::string& expected = command.source.expected_digest;
    if (command.action == AdapterAction::kLoad && !expected.empty() && expected != reply.version) {
      reply.status = corrupt("the files at " + command.source.path + " are others than those that were loaded");
      if (const auto known = adapters_.find(command.source.id); known != adapters_.end()) {
        known->second.tier = AdapterTier::kFailed;
        known->second.error = reply.status.error().message;
        tell(known->second);
      }
    }
    if (command.action == AdapterAction::kDrop) {
      reply.bytes_freed = 123;
      adapters_.erase(command.source.id);
      output_.adapters.push_back({command.source.id, nullptr});
    } else if (reply.status.ok()) {
      AdapterStatus& adapter = adapters_[command.source.id];
      adapter.source = command.source;
      if (command.action != AdapterAction::kAdd) adapter.tier = AdapterTier::kResident;
      tell(adapter);
    }
    commands.push_back(std::move(command));
    (hold_replies ? held_replies_ : output_.replies).push_back(std::move(reply));
    changed_.notify_all();
    return {};
  }
  void release_replies() {
    std::lock_guard lock(mutex_);
    for (CommandReply& reply : held_replies_) output_.replies.push_back(std::move(reply));
    held_replies_.clear();
    changed_.notify_all();
  }
  bool wait_for_commands(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return commands.size() >= count; });
  }
  Status command(MemoryCommand command) override {
    std::lock_guard lock(mutex_);
    CommandReply reply;
    reply.ticket = command.ticket;
    if (hold_memory) {
      held_memory_ = command.ticket;
      changed_.notify_all();
      return {};
    }
    if (command.budget_bytes < 1000) reply.status = too_large("The least that would do is 1000 bytes.");
    if (reply.status.ok()) budget_bytes_ = command.budget_bytes;
    output_.replies.push_back(std::move(reply));
    changed_.notify_all();
    return {};
  }
  Status command(KvCommand command) override {
    std::lock_guard lock(mutex_);
    if (!next_command.ok()) return next_command;
    output_.replies.push_back({.ticket = command.ticket, .kv = std::make_shared<const KvState>(kv)});
    changed_.notify_all();
    return {};
  }
  std::vector<std::pair<std::string, AppState>> stated() {
    std::lock_guard lock(mutex_);
    return apps_stated;
  }
  Status command(AppCommand command) override {
    std::lock_guard lock(mutex_);
    if (!next_command.ok()) return next_command;
    apps_stated.emplace_back(command.id, command.state);
    output_.replies.push_back({.ticket = command.ticket, .bytes_freed = 4096});
    changed_.notify_all();
    return {};
  }
  Status command(QueuesCommand command) override {
    std::lock_guard lock(mutex_);
    if (!next_command.ok()) return next_command;
    output_.replies.push_back({.ticket = command.ticket, .queues = std::make_shared<const QueuesState>(queues)});
    changed_.notify_all();
    return {};
  }
  // "broken" in the path: it is; a test may say it of others.
  Status check_adapter(const AdapterSourceSpec& source) override {
    if (on_check) on_check();
    std::lock_guard lock(mutex_);
    const std::string& name = source.label;
    ++checks[name];
    Status status = next_checks.count(name) != 0                      ? next_checks[name]
                    : source.path.find("broken") != std::string::npos ? Status(corrupt("The file is broken."))
                                                                      : Status();
    AdapterStatus& adapter = adapters_[source.id];
    adapter.source = source;
    if (adapter.tier != AdapterTier::kResident) {
      adapter.tier = status.ok() ? AdapterTier::kSource : AdapterTier::kFailed;
      adapter.error = status.ok() ? "" : status.error().message;
    }
    tell(adapter);
    changed_.notify_all();
    return status;
  }
  void cancel_memory(uint64_t ticket) override {
    std::lock_guard lock(mutex_);
    if (ticket != held_memory_) return;
    CommandReply reply;
    reply.ticket = ticket;
    reply.status = Error{ErrorCode::kUnavailable, "It was stopped."};
    output_.replies.push_back(std::move(reply));
    changed_.notify_all();
  }
  EngineOutput wait_output(int64_t timeout_ns) override {
    std::unique_lock lock(mutex_);
    ++looks;
    changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return !output_.empty() || stopped_; });
    EngineOutput out = std::move(output_);
    output_ = {};
    return out;
  }
  EngineStats stats() const override {
    std::lock_guard lock(mutex_);
    EngineStats stats;
    stats.ready = next_ready_;
    stats.running = static_cast<int32_t>(submits_.size() - ended_.size());
    stats.memory_budget_bytes = budget_bytes_;
    stats.device = device;
    stats.device_memory.weights_bytes = 77;
    return stats;
  }
  Status health() const override {
    std::lock_guard lock(mutex_);
    return next_health;
  }
  void lose(const Error& error) {
    std::lock_guard lock(mutex_);
    next_health = error;
  }
  void set_ready(const Status& ready) {  // EngineStats::ready
    std::lock_guard lock(mutex_);
    next_ready_ = ready;
  }
  const Heartbeats& heartbeats() const override { return beats; }
  std::shared_ptr<ByteBudget> request_memory() const override { return memory; }
  int64_t max_model_len() const override { return length; }
  const std::string& fingerprint() const override { return fingerprint_; }
  void drain() override {
    std::lock_guard lock(mutex_);
    draining_ = true;
  }
  void stop() override {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const Submit& submit : submits_) {
      if (ended_.contains(submit.id.value)) continue;
      for (int choice = 0; choice < submit.choices; ++choice) {
        TokenEvent event;
        event.id = submit.id;
        event.choice = choice;
        event.end = EndReason::kCancelled;
        output_.tokens.push_back(event);
      }
    }
    changed_.notify_all();
  }

  // For tests.
  std::string label(AdapterSourceId source) const {
    std::lock_guard lock(mutex_);
    const auto found = adapters_.find(source);
    return found == adapters_.end() ? "" : found->second.source.label;
  }
  void emit(TokenEvent event) {
    std::lock_guard lock(mutex_);
    if (event.end != EndReason::kNone) ended_.insert(event.id.value);
    output_.tokens.push_back(std::move(event));
    changed_.notify_all();
  }
  void emit(RequestId id, TokenId token, EndReason end = EndReason::kNone) {
    TokenEvent event;
    event.id = id;
    event.has_token = true;
    event.token = token;
    event.end = end;
    emit(std::move(event));
  }
  Submit wait_submit(size_t index) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return submits_.size() > index; });
    return submits_.at(index);
  }
  bool wait_held_memory() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return held_memory_ != 0; });
  }
  bool wait_cancelled(RequestId id) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return cancelled_.contains(id.value); });
  }
  bool wait_cancelled(RequestId id, int32_t choice) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return cancelled_choices_.contains({id.value, choice});
    });
  }
  std::vector<AdapterCommand> commands;
  std::atomic<int64_t> looks{0};  // calls of wait_output

 private:
  void tell(const AdapterStatus& adapter) {
    output_.adapters.push_back({adapter.source.id, std::make_shared<const AdapterStatus>(adapter)});
  }
  void answer(const Submit& request) {
    for (int choice = 0; choice < request.choices; ++choice) {
      TokenEvent first;
      first.id = request.id;
      first.choice = choice;
      first.cached_tokens = 1;
      first.adapter_version = request.adapters.empty() ? "" : "digest";
      if (request.pooling != Pooling::kNone) {
        first.embedding = embedding;
        first.end = EndReason::kStop;
        output_.tokens.push_back(first);
        continue;
      }
      if (request.prompt_logprobs) {
        first.prompt_logprobs.resize(request.prompt.size());
        for (size_t i = 1; i < request.prompt.size(); ++i)
          first.prompt_logprobs[i] = TokenLogprobs{-1.0f, {{request.prompt[i], -1.0f}}};
      }
      std::vector<TokenId> tokens = script(request, choice);
      const bool cut = static_cast<int64_t>(tokens.size()) >= request.max_tokens;
      tokens.resize(std::min(tokens.size(), static_cast<size_t>(request.max_tokens)));
      if (!cut) tokens.push_back(eos);
      if (tokens.empty()) {
        first.end = EndReason::kLength;
        output_.tokens.push_back(first);
      }
      for (size_t i = 0; i < tokens.size(); ++i) {
        TokenEvent event = i == 0 ? first : TokenEvent{};
        event.id = request.id;
        event.choice = choice;
        event.has_token = true;
        event.token = tokens[i];
        if (request.sampling.logprobs >= 0) event.logprobs = TokenLogprobs{-0.5f, {{tokens[i], -0.5f}}};
        if (i + 1 == tokens.size() && !cut) event.stop_token = eos;
        if (i + 1 == tokens.size()) event.end = cut ? EndReason::kLength : EndReason::kStop;
        output_.tokens.push_back(std::move(event));
      }
    }
    ended_.insert(request.id.value);
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  EngineOutput output_;
  std::vector<Submit> submits_;
  std::set<uint64_t> cancelled_, ended_;
  std::set<std::pair<uint64_t, int32_t>> cancelled_choices_;
  std::map<AdapterSourceId, AdapterStatus> adapters_;
  int64_t budget_bytes_ = 5000;
  uint64_t held_memory_ = 0;
  std::vector<CommandReply> held_replies_;
  bool draining_ = false, stopped_ = false;
  Status next_ready_;
  const std::string fingerprint_ = "fp_test";
};

}  // namespace loralei

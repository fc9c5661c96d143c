// SPDX-License-Identifier: Apache-2.0
// EngineDriver: a real engine over a model file, and a client of it that keeps what came
// back and checks what every engine promises: events of a choice in order, exactly one
// final event each, nothing after it.
//
// One thread (the engine has its own). A failure is a GoogleTest failure; collect() gives
// up after kPatience waits of a second without output.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "adapters/source_test_util.h"
#include "engine/adapter_board.h"
#include "engine/engine_host.h"
#include "memory/ledger.h"

namespace loralei::test {

using testing_support::source_of;
using testing_support::spec_of;

struct Answer {
  std::vector<TokenId> tokens;
  EndReason end = EndReason::kNone;
  Error error;
  std::vector<float> logprobs;  // of the tokens, where they were asked for
  int cached_tokens = 0, borrowed_tokens = 0;
  std::string version;
};

class EngineDriver {
 public:
  using Key = std::pair<uint64_t, int32_t>;  // request, choice

  // `log` outlives the driver; null: nobody listens.
  explicit EngineDriver(const EngineHostOptions& options, LogSink* log = nullptr) {
    auto started = EngineHost::start(options, log != nullptr ? *log : log_, {});
    if (started.ok())
      host_ = std::move(*started);
    else
      ADD_FAILURE() << started.error().message;
  }

  bool running() const { return host_ != nullptr; }
  const EngineHost& host() const { return *host_; }
  Engine& engine() { return host_->engine(); }
  EngineStats stats() { return engine().stats(); }
  AdapterList adapters() const { return board_.list(); }  // by the output taken so far
  const Ledger& ledger() const { return host_->ledger(); }

  // Gives the request an id and hands it in; 0 when it is refused.
  uint64_t submit(Submit request) {
    request.id = RequestId{next_id_++};
    const uint64_t id = request.id.value;
    const int32_t choices = request.choices;
    const Status status = engine().submit(std::move(request));
    if (!status.ok()) {
      refusals.push_back(status.error());
      return 0;
    }
    for (int32_t choice = 0; choice < choices; ++choice) open_.insert({id, choice});
    return id;
  }

  uint64_t command(AdapterAction action, const std::string& name, const std::string& path = "", bool reload = false) {
    const uint64_t ticket = next_ticket_++;
    const Status status = engine().command({ticket, action, spec_of(name, path), reload});
    EXPECT_TRUE(status.ok()) << status.error().message;
    if (status.ok()) tickets_.insert(ticket);
    return ticket;
  }

  // 0 when it is refused at once (another change is under way).
  uint64_t set_memory(int64_t budget_bytes) {
    const uint64_t ticket = next_ticket_++;
    if (!engine().command(MemoryCommand{ticket, budget_bytes}).ok()) return 0;
    tickets_.insert(ticket);
    return ticket;
  }

  // Takes what the engine has to say now, waiting at most `timeout_ns`; false
  // when it was silent.
  bool take(int64_t timeout_ns) {
    EngineOutput output = engine().wait_output(timeout_ns);
    board_.put(output.adapters);
    for (TokenEvent& event : output.tokens) {
      const Key key{event.id.value, event.choice};
      EXPECT_TRUE(open_.contains(key)) << "an event of a choice that has ended, or never was";
      Answer& answer = answers[key];
      if (event.cached_tokens > 0) answer.cached_tokens = event.cached_tokens;
      if (event.borrowed_tokens > 0) answer.borrowed_tokens = event.borrowed_tokens;
      if (event.logprobs) answer.logprobs.push_back(event.logprobs->logprob);
      if (!event.adapter_version.empty()) answer.version = event.adapter_version;
      if (event.has_token) answer.tokens.push_back(event.token);
      if (event.end == EndReason::kNone) continue;
      answer.end = event.end;
      answer.error = event.error;
      open_.erase(key);
    }
    for (CommandReply& reply : output.replies) {
      EXPECT_EQ(tickets_.erase(reply.ticket), 1u) << "a second reply, or one to nobody";
      replies[reply.ticket] = std::move(reply);
    }
    return !output.empty();
  }

  // Until every choice has ended and every command is answered.
  void collect() {
    int silent = 0;
    while (!open_.empty() || !tickets_.empty()) {
      silent = take(1'000'000'000) ? 0 : silent + 1;
      ASSERT_LT(silent, kPatience) << "the engine owes " << open_.size() << " ends and " << tickets_.size()
                                   << " replies";
    }
  }

  // One request, to its end.
  Answer ask(Submit request) {
    const uint64_t id = submit(std::move(request));
    collect();
    return answers[{id, 0}];
  }

  size_t open() const { return open_.size(); }

  std::map<Key, Answer> answers;
  std::map<uint64_t, CommandReply> replies;
  std::vector<Error> refusals;

 private:
  static constexpr int kPatience = 120;
  NullLogSink log_;
  AdapterBoard board_;
  std::unique_ptr<EngineHost> host_;
  uint64_t next_id_ = 1, next_ticket_ = 1;
  std::set<Key> open_;
  std::set<uint64_t> tickets_;
};

// Their first choices, in the order of the requests.
inline std::vector<Answer> one_by_one(EngineDriver& driver, const std::vector<Submit>& requests) {
  std::vector<Answer> answers;
  for (const Submit& request : requests) answers.push_back(driver.ask(request));
  return answers;
}
inline std::vector<Answer> at_once(EngineDriver& driver, const std::vector<Submit>& requests) {
  std::vector<uint64_t> ids;
  for (const Submit& request : requests) ids.push_back(driver.submit(request));
  driver.collect();
  std::vector<Answer> answers;
  for (const uint64_t id : ids) answers.push_back(driver.answers[{id, 0}]);
  return answers;
}

}  // namespace loralei::test

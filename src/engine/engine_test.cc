// SPDX-License-Identifier: Apache-2.0
// The engine as a thread, seen through engine/api.h alone, over the fake executor.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "adapters/source_test_util.h"
#include "base/prng.h"
#include "engine/adapter_board.h"
#include "engine/start.h"
#include "kv/block_pool.h"
#include "sim/fake_model.h"

namespace loralei {
namespace {

using namespace sim;
using namespace testing_support;

constexpr int64_t kPatienceNs = 20'000'000'000;  // only a hanging engine takes that long

// Holds the engine inside a step until the test lets it go.
class GatedExecutor final : public Executor {
 public:
  explicit GatedExecutor(ModelLimits limits) : inner_(limits) {
    inner_.on_done([this](StepDone&& done) { end_step(std::move(done)); });
  }
  const ModelLimits& limits() const override { return inner_.limits(); }
  int64_t streamed_bytes() const override { return streaming.load() ? 1 : 0; }
  // Every step takes so long on this clock.
  void slow_down(ManualClock& clock, int64_t step_ns) {
    inner_.clock = &clock;
    inner_.step_ns = step_ns;
  }
  void use_kv(const KvView& kv, const KvStreams& streams) override { inner_.use_kv(kv, streams); }
  void announce(const Adapter& adapter) override { inner_.announce(adapter); }
  void withdraw(AdapterVersionId version) override { inner_.withdraw(version); }
  Status reserve_vocab(int32_t vocab) override { return inner_.reserve_vocab(vocab); }
  StepResult result() const override { return inner_.result(); }
  void start(const StepBatch& batch) override {
    entered.fetch_add(1);
    entered.notify_all();
    closed.wait(true);
    inner_.start(batch);
  }
  // Says that nothing can be computed while `broken`; whoever mends holds
  // `loan` until then.
  Status ready() override {
    asked.fetch_add(1);
    if (broken.load()) return Error{ErrorCode::kUnavailable, "The weights are being mended."};
    loan.release();
    return {};
  }
  std::atomic<bool> closed{false}, broken{false};
  std::atomic<int> entered{0}, asked{0};
  Grant loan;
  std::atomic<bool> streaming{false};

 private:
  FakeExecutor inner_;
};

struct Server {
  explicit Server(EngineOptions options = small_options(), bool gated = false, const Clock* other_clock = nullptr,
                  MemoryControl memory = {}) {
    EngineParts parts;
    parts.config = fake_config();
    const ModelLimits limits = step_limits(options, parts.config);
    if (gated) {
      auto executor = std::make_unique<GatedExecutor>(limits);
      gate = executor.get();
      gate->closed = true;
      parts.executor = std::move(executor);
    } else {
      parts.executor = std::make_unique<FakeExecutor>(limits);
    }
    parts.adapters = files.source();
    parts.ledger = &ledger;
    parts.clock = other_clock != nullptr ? other_clock : &clock;
    parts.log = &log;
    parts.options = options;
    parts.fingerprint = "fake";
    parts.memory = std::move(memory);
    engine = std::move(start_engine(std::move(parts))).value();
  }
  ~Server() {
    open_gate();
    engine->stop();
  }
  void open_gate() {
    if (gate == nullptr) return;
    gate->closed = false;
    gate->closed.notify_all();
  }
  static EngineOptions small_options() {
    EngineOptions options;
    options.max_sequences = 8;
    options.step_tokens = 64;
    options.kv_cache_bytes = 64 * kv_block_bytes({1, 1, 4, DType::kF32});
    options.max_model_len = 200;
    return options;
  }
  // Collects until `ends` choices have ended and `replies` commands are answered.
  void collect(size_t ends, size_t replies) {
    while (ended.size() < ends || answers.size() < replies) {
      EngineOutput output = engine->wait_output(kPatienceNs);
      ASSERT_FALSE(output.empty()) << "the engine says nothing";
      board.put(output.adapters);
      for (TokenEvent& event : output.tokens) {
        const auto key = std::pair(event.id.value, event.choice);
        ASSERT_EQ(ended.count(key), 0u) << "an event after the end";
        if (!event.adapter_version.empty()) versions[key] = event.adapter_version;
        if (event.has_token) tokens[key].push_back(event.token);
        if (event.end != EndReason::kNone) ended[key] = std::move(event);
      }
      for (CommandReply& reply : output.replies) answers[reply.ticket] = std::move(reply);
    }
  }

  Ledger ledger{8 << 20};
  SteadyClock clock;
  NullLogSink log;
  FakeFiles files;
  AdapterBoard board;
  GatedExecutor* gate = nullptr;
  std::unique_ptr<Engine> engine;
  std::map<std::pair<uint64_t, int32_t>, std::vector<TokenId>> tokens;
  std::map<std::pair<uint64_t, int32_t>, TokenEvent> ended;
  std::map<std::pair<uint64_t, int32_t>, std::string> versions;
  std::map<uint64_t, CommandReply> answers;
};

Submit request(uint64_t id, int prompt, int output, std::vector<AdapterUse> adapters = {}) {
  Submit submit;
  submit.id = RequestId{id};
  for (int i = 0; i < prompt; ++i)
    submit.prompt.push_back(1 + static_cast<TokenId>((id + static_cast<uint64_t>(i)) % (kVocab - 1)));
  submit.max_tokens = output;
  submit.ignore_eos = true;
  submit.sampling.seed = id;
  submit.adapters = std::move(adapters);
  return submit;
}

TEST(Engine, ServesRequestsFromManyThreadsWithAdapterChurn) {
  Server server;
  for (uint64_t i = 0; i < 3; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    server.files.put("/" + name, 100 + i);
    ASSERT_TRUE(server.engine->command({i, AdapterAction::kAdd, spec_of(name, "/" + name), false}).ok());
  }
  // Its files change all the time: a load may fail for that, and then the version that is
  // there stays.
  ASSERT_TRUE(server.engine->command({3, AdapterAction::kLoad, spec_of("a", "/a"), false}).ok());
  server.collect(0, 4);
  constexpr int kThreads = 4, kEach = 40;
  std::vector<std::thread> clients;
  for (int thread = 0; thread < kThreads; ++thread) {
    clients.emplace_back([&, thread] {
      for (int i = 0; i < kEach; ++i) {
        const auto id = static_cast<uint64_t>(thread * 1000 + i);
        std::vector<AdapterUse> adapters;
        if (i % 4 != 0)
          adapters.push_back({source_of(std::string(1, static_cast<char>('a' + i % 4 - 1))), i % 2 == 0 ? 1.0f : 0.5f});
        EXPECT_TRUE(server.engine->submit(request(id, 1 + i, 1 + i / 2, adapters)).ok());
        if (i % 10 == 9) server.engine->cancel(RequestId{id});
        if (i % 16 == 3) {
          server.files.put("/a", 200 + id);
          EXPECT_TRUE(server.engine->command({1000 + id, AdapterAction::kLoad, spec_of("a", "/a"), true}).ok());
        }
      }
    });
  }
  server.collect(kThreads * kEach, 3);
  for (std::thread& client : clients) client.join();
  for (int thread = 0; thread < kThreads; ++thread) {
    for (int i = 0; i < kEach; ++i) {
      const auto id = static_cast<uint64_t>(thread * 1000 + i);
      const TokenEvent& last = server.ended[{id, 0}];
      if (i % 10 == 9 && last.end == EndReason::kCancelled) continue;
      ASSERT_EQ(last.end, EndReason::kLength) << last.error.message;
      std::vector<AdapterUse> adapters;
      std::vector<FakeUse> uses;
      if (i % 4 != 0) uses.push_back({FakeFiles::content_of(server.versions[{id, 0}]), i % 2 == 0 ? 1.0f : 0.5f, 0});
      EXPECT_EQ((server.tokens[{id, 0}]), expected_output(request(id, 1 + i, 1 + i / 2), 0, uses, 200).tokens);
    }
  }
}

TEST(Engine, SaysOverloadedWhenTheQueueIsFull) {
  EngineOptions options = Server::small_options();
  options.max_sequences = 1;
  options.max_queued = 3;
  Server server(options, true);
  ASSERT_TRUE(server.engine->submit(request(1, 5, 5)).ok());
  server.gate->entered.wait(0);  // request 1 runs and is no longer queued
  for (uint64_t id = 2; id <= 4; ++id) ASSERT_TRUE(server.engine->submit(request(id, 5, 5)).ok());
  const Status refused = server.engine->submit(request(5, 5, 5));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
  server.open_gate();
  server.collect(4, 0);
  EXPECT_TRUE(server.engine->submit(request(6, 5, 5)).ok());
  server.collect(5, 0);
}

// On a clock that stands still between steps a moment ends when nothing
// arrives for as long.
TEST(Engine, RequestsThatArriveTogetherShareThePassWhileStreaming) {
  for (const bool streaming : {true, false}) {
    ManualClock clock;
    Server server(Server::small_options(), true, &clock);
    server.gate->slow_down(clock, 10'000'000'000);
    server.gate->streaming = streaming;
    server.open_gate();
    ASSERT_TRUE(server.engine->submit(request(100, 5, 1)).ok());  // how long a pass takes
    server.collect(1, 0);
    for (uint64_t id = 1; id <= 5; ++id) {
      ASSERT_TRUE(server.engine->submit(request(id, 5, 1)).ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    server.collect(6, 0);
    if (streaming) {
      EXPECT_EQ(server.gate->entered.load(), 2);
    } else {
      EXPECT_GT(server.gate->entered.load(), 2);
    }
  }
}

TEST(Engine, StepsHaveRoomForDraftsUnlessTheyAreOff) {
  EngineOptions options = Server::small_options();
  ModelConfig config = fake_config();
  config.vocab = 8 << 20;  // no logits to spare for prompts
  options.speculate = Speculation::kOff;
  EXPECT_EQ(step_limits(options, config).logits_rows_max, 8);
  options.speculate = Speculation::kAuto;
  EXPECT_EQ(step_limits(options, config).logits_rows_max, 8 + 4 * 8);
  options.max_sequences = 1;
  EXPECT_EQ(step_limits(options, config).logits_rows_max, 9);
  options.step_tokens = 4;
  EXPECT_EQ(step_limits(options, config).logits_rows_max, 4);
}

TEST(Engine, StepsHaveRoomForThePromptLogprobsOfFewSequences) {
  EngineOptions options = Server::small_options();
  options.step_tokens = 512;
  ModelConfig config = fake_config();
  EXPECT_EQ(step_limits(options, config).logits_rows_max, 128);
  config.vocab = 128 << 10;
  EXPECT_EQ(step_limits(options, config).logits_rows_max, 64) << "32 MiB of them";
  options.max_sequences = 256;
  options.speculate = Speculation::kOff;
  EXPECT_EQ(step_limits(options, config).logits_rows_max, 256);
  Server server;  // 64 rows a step
  Submit submit = request(1, 180, 1);
  submit.prompt_logprobs = true;
  submit.sampling.logprobs = 0;
  ASSERT_TRUE(server.engine->submit(submit).ok());
  server.collect(1, 0);
  server.engine->stop();
  EXPECT_EQ(server.engine->stats().steps, 3u);
}

// Eight choices, each with four adapters, in one step.
TEST(Engine, StepsHaveRoomForTheAdaptersOfEverySequence) {
  Server server;
  Submit submit = request(1, 20, 20);
  submit.choices = 8;
  for (uint64_t i = 0; i < 4; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    server.files.put("/" + name, 100 + i);
    ASSERT_TRUE(server.engine->command({i, AdapterAction::kAdd, spec_of(name, "/" + name), false}).ok());
    submit.adapters.push_back({source_of(name), 0.25f});
  }
  ASSERT_TRUE(server.engine->submit(submit).ok());
  server.collect(8, 4);
  server.engine->stop();
  EXPECT_LE(server.engine->stats().steps, 21u);  // the first choice computes the prompt, then all go on together
}

TEST(Engine, RefusesWhatCanNeverBeServed) {
  Server server;
  Submit submit = request(1, 200, 1);
  EXPECT_EQ(server.engine->submit(submit).error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(server.engine->submit(submit).error().message.find("200"), std::string::npos);
  submit = request(1, 5, 5);
  submit.prompt.clear();
  EXPECT_FALSE(server.engine->submit(submit).ok());
  submit = request(1, 5, 5);
  submit.sampling.top_p = 0.0f;
  EXPECT_FALSE(server.engine->submit(submit).ok());
  submit = request(1, 5, 5);
  submit.choices = 0;
  EXPECT_FALSE(server.engine->submit(submit).ok());
  submit = request(1, 5, 5, std::vector<AdapterUse>(9));
  EXPECT_FALSE(server.engine->submit(submit).ok());
}

TEST(Engine, DrainRefusesNewRequestsAndFinishesTheOthers) {
  Server server(Server::small_options(), true);
  ASSERT_TRUE(server.engine->submit(request(1, 5, 20)).ok());
  server.engine->drain();
  EXPECT_EQ(server.engine->submit(request(2, 5, 5)).error().code, ErrorCode::kUnavailable);
  Submit more = request(3, 5, 5);
  more.follows = true;
  EXPECT_TRUE(server.engine->submit(more).ok());
  server.open_gate();
  server.collect(2, 0);
  EXPECT_EQ((server.ended[{1, 0}].end), EndReason::kLength);
  EXPECT_EQ((server.ended[{3, 0}].end), EndReason::kLength);
}

TEST(Engine, StopEndsWhatIsLeftAndTheOutputStaysReadable) {
  Server server(Server::small_options(), true);
  server.files.put("/a", 1);
  for (uint64_t id = 1; id <= 20; ++id) {
    Submit submit = request(id, 5, 100);
    submit.choices = 2;
    ASSERT_TRUE(server.engine->submit(submit).ok());
  }
  server.gate->entered.wait(0);
  server.open_gate();
  server.engine->stop();
  server.collect(40, 0);
  EXPECT_FALSE(server.engine->submit(request(99, 5, 5)).ok());
  EXPECT_FALSE(server.engine->command({1, AdapterAction::kAdd, spec_of("a", "/a"), false}).ok());
  EXPECT_EQ(server.engine->stats().kv_blocks_used, 0);
  server.engine->stop();  // idempotent
}

// The step under way ends, and nothing is begun for those who are sent away: no further
// step, no other budget.
TEST(Engine, StoppingComputesNothingMore) {
  std::atomic<bool> prepared{false};
  std::atomic<int> applied{0};
  MemoryControl memory;
  memory.prepare = [&](int64_t, int64_t, const std::stop_token&) -> Status {
    prepared = true;
    prepared.notify_all();
    return {};
  };
  memory.apply = [&](int64_t, const RoomMaker&) -> Status {
    ++applied;
    return {};
  };
  Server server(Server::small_options(), true, nullptr, std::move(memory));
  ASSERT_TRUE(server.engine->submit(request(1, 5, 20)).ok());
  server.gate->entered.wait(0);
  ASSERT_TRUE(server.engine->submit(request(2, 5, 20)).ok());
  ASSERT_TRUE(server.engine->command(MemoryCommand{7, 1 << 20}).ok());
  prepared.wait(false);
  std::thread stopper([&] { server.engine->stop(); });
  EngineOutput output = server.engine->wait_output(kPatienceNs);
  while (!output.replies.empty()) {  // the budget's change may be refused already; then nothing comes but the stop
    for (CommandReply& reply : output.replies) server.answers[reply.ticket] = std::move(reply);
    output = server.engine->wait_output(kPatienceNs);
  }
  server.open_gate();
  stopper.join();
  server.collect(2, 1);
  EXPECT_EQ(server.gate->entered.load(), 1);
  EXPECT_EQ(applied.load(), 0);
  EXPECT_EQ(server.answers[7].status.error().code, ErrorCode::kUnavailable);
  for (const auto& [key, event] : server.ended) EXPECT_EQ(event.end, EndReason::kCancelled);
}

// An adapter waits for what is lent to a change of the budget that then does not happen,
// while nothing else goes on.
TEST(Engine, ALoanThatIsBackIsRoomForWhoWaited) {
  std::atomic<bool> lent{false}, enough{false};
  Ledger* ledger = nullptr;
  MemoryControl memory;
  memory.prepare = [&](int64_t, int64_t, const std::stop_token&) -> Status {
    const Grant loan = *ledger->try_lend(MemoryUse::kOther, ledger->available_bytes(MemoryUse::kOther));
    lent = true;
    lent.notify_all();
    enough.wait(false);
    return unsupported("not today");
  };
  memory.apply = [](int64_t, const RoomMaker&) -> Status { return {}; };
  Server server(Server::small_options(), false, nullptr, std::move(memory));
  ledger = &server.ledger;
  server.files.put("/a", 100, 2000);
  ASSERT_TRUE(server.engine->command({1, AdapterAction::kAdd, spec_of("a", "/a"), false}).ok());
  ASSERT_TRUE(server.engine->command(MemoryCommand{2, 4 << 20}).ok());
  lent.wait(false);
  ASSERT_TRUE(server.engine->submit(request(7, 5, 5, {{source_of("a"), 1.0f}})).ok());
  while (server.engine->stats().waiting_for_adapter == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it has been looked at, most likely
  enough = true;
  enough.notify_all();
  server.collect(1, 2);
  EXPECT_EQ((server.ended[{7, 0}].end), EndReason::kLength) << server.ended[{7, 0}].error.message;
  EXPECT_FALSE(server.answers[2].status.ok());
}

// The same for room that came of what the watch did, while another request computes.
TEST(Engine, RoomFoundWhileWatchingTheMemoryIsForWhoWaited) {
  ManualClock clock;
  Grant loan;
  int watched = 0;
  MemoryControl memory;
  memory.watch = [&](const auto&) {
    if (++watched == 20) loan.release();
    return false;
  };
  Server server(Server::small_options(), true, &clock, std::move(memory));
  server.gate->slow_down(clock, 2'000'000'000);
  server.files.put("/a", 100, 2000);
  loan = *server.ledger.try_lend(MemoryUse::kOther, server.ledger.available_bytes(MemoryUse::kOther));
  ASSERT_TRUE(server.engine->command({1, AdapterAction::kAdd, spec_of("a", "/a"), false}).ok());
  ASSERT_TRUE(server.engine->submit(request(1, 5, 30)).ok());
  server.gate->entered.wait(0);
  ASSERT_TRUE(server.engine->submit(request(2, 5, 5, {{source_of("a"), 1.0f}})).ok());
  server.open_gate();
  server.collect(2, 1);
  EXPECT_EQ((server.ended[{2, 0}].end), EndReason::kLength) << server.ended[{2, 0}].error.message;
}

// An engine with nothing to do goes on looking while memory is on its way back, so that
// an adapter finds it there.
TEST(Engine, WatchesTheMemoryWhileItMovesThoughThereIsNothingToDo) {
  std::atomic<int> watched = 0;
  MemoryControl memory;
  memory.watch = [&](const auto&) { return ++watched < 3; };
  Server server(Server::small_options(), false, nullptr, std::move(memory));
  ASSERT_TRUE(server.engine->submit(request(1, 5, 2)).ok());
  server.collect(1, 0);
  for (int wait = 0; watched < 3 && wait < 1000; ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(watched, 3);
}

// Nobody sends requests to a server that says that it cannot answer any: it finds out by
// itself that it can again.
TEST(Engine, WhatCannotBeComputedForNowIsToldAndIsOverWithoutARequest) {
  std::atomic<int> woken{0};  // it is looked at about once a second by an engine that is awake
  MemoryControl memory;
  memory.watch = [&](const auto&) {
    ++woken;
    return false;
  };
  Server server(Server::small_options(), true, nullptr, std::move(memory));
  server.open_gate();
  ASSERT_TRUE(server.engine->submit(request(1, 5, 2)).ok());
  server.collect(1, 0);
  EXPECT_TRUE(server.engine->stats().ready.ok());
  server.gate->broken = true;
  ASSERT_TRUE(server.engine->submit(request(2, 5, 2)).ok());
  server.collect(2, 0);
  EXPECT_EQ((server.ended[{2, 0}].error.message), "The weights are being mended.");
  const Status told = server.engine->stats().ready;  // who was told by an event may look at once
  ASSERT_FALSE(told.ok());
  EXPECT_EQ(told.error().message, "The weights are being mended.");
  EXPECT_TRUE(server.engine->health().ok()) << "it passes";
  const int before = server.gate->asked;
  for (int wait = 0; server.gate->asked == before && wait < 2000; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(server.engine->stats().ready.ok());
  server.gate->broken = false;
  for (int wait = 0; !server.engine->stats().ready.ok() && wait < 2000; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(server.engine->stats().ready.ok());
  ASSERT_TRUE(server.engine->submit(request(3, 5, 2)).ok());
  server.collect(3, 0);
  EXPECT_EQ((server.ended[{3, 0}].end), EndReason::kLength) << server.ended[{3, 0}].error.message;
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const int asked = server.gate->asked, woken_before = woken;
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  EXPECT_EQ(server.gate->asked, asked);
  EXPECT_EQ(woken, woken_before) << "an idle engine sleeps";
}

// An adapter waits for what is lent to whoever mends, while nothing else goes on.
TEST(Engine, WhatMendingBorrowedIsForWhoWaitedWhenItIsBack) {
  Server server(Server::small_options(), true);
  server.open_gate();
  server.files.put("/a", 100, 2000);
  server.gate->broken = true;
  ASSERT_TRUE(server.engine->submit(request(1, 5, 2)).ok());
  server.collect(1, 0);
  server.gate->loan = *server.ledger.try_lend(MemoryUse::kOther, server.ledger.available_bytes(MemoryUse::kOther));
  ASSERT_TRUE(server.engine->command({1, AdapterAction::kLoad, spec_of("a", "/a"), false}).ok());
  EXPECT_TRUE(server.engine->wait_output(100'000'000).replies.empty()) << "it has no room";
  server.gate->broken = false;
  server.collect(1, 1);
  EXPECT_TRUE(server.answers[1].status.ok()) << server.answers[1].status.error().message;
}

// A step that never ends is seen from outside, and no longer when it has ended.
TEST(Engine, TellsForHowLongAStepHasBeenAtWork) {
  ManualClock clock;
  Server server(Server::small_options(), true, &clock);
  ASSERT_TRUE(server.engine->submit(request(1, 5, 2)).ok());
  server.gate->entered.wait(0);
  clock.advance_ns(150'000'000'000);
  const auto silent = server.engine->heartbeats().silences();
  ASSERT_EQ(silent.size(), 1u);
  EXPECT_EQ(silent[0].who, "engine");
  EXPECT_EQ(silent[0].ms, 150'000);
  server.open_gate();
  server.collect(1, 0);
  while (!server.engine->heartbeats().silences().empty()) std::this_thread::yield();
}

// What requests borrowed of the budget and gave back is for the adapter
// that waited for it.
TEST(Engine, MemoryThatRequestsGiveBackIsForWhoWaited) {
  Server server;
  server.files.put("/a", 100, 2000);
  ByteShare body(server.engine->request_memory());
  const auto most = server.engine->request_memory()->most_bytes();
  ASSERT_TRUE(body.grow_to(most));
  ASSERT_TRUE(server.engine->command({1, AdapterAction::kAdd, spec_of("a", "/a"), false}).ok());
  ASSERT_TRUE(server.engine->submit(request(1, 5, 5, {{source_of("a"), 1.0f}})).ok());
  while (server.engine->stats().waiting_for_adapter == 0) std::this_thread::yield();
  EXPECT_EQ(server.engine->stats().request_bytes, most);
  body.release();
  server.collect(1, 1);
  EXPECT_EQ((server.ended[{1, 0}].end), EndReason::kLength) << server.ended[{1, 0}].error.message;
}

TEST(Engine, CommandsAreAnsweredInAllCases) {
  Server server;
  server.files.put("/a", 7, 2000);
  ASSERT_TRUE(server.engine->command({1, AdapterAction::kLoad, spec_of("a", "/a"), false}).ok());
  ASSERT_TRUE(server.engine->command({2, AdapterAction::kLoad, spec_of("b", "/nowhere"), false}).ok());
  server.collect(0, 2);
  EXPECT_TRUE(server.answers[1].status.ok());
  EXPECT_EQ(server.answers[1].version.substr(0, 12), "000000000007");
  EXPECT_EQ(server.answers[2].status.error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(server.engine->command({3, AdapterAction::kPin, spec_of("a"), false}).ok());
  ASSERT_TRUE(server.engine->command({4, AdapterAction::kDrop, spec_of("nobody"), false}).ok());
  ASSERT_TRUE(server.engine->command({5, AdapterAction::kDrop, spec_of("a"), false}).ok());
  server.collect(0, 5);
  EXPECT_EQ(server.answers[5].bytes_freed, 2000);
  EXPECT_EQ(server.ledger.used_bytes(MemoryUse::kAdapters), 0);
}

// Who has the reply finds the adapter list as the command left it, without waiting.
TEST(Engine, ARepliedCommandStandsInTheAdapterList) {
  Server server;
  server.files.put("/a", 7, 2000);
  uint64_t ticket = 0;
  const auto done = [&](AdapterAction action) {
    EXPECT_TRUE(server.engine->command({++ticket, action, spec_of("a", "/a")}).ok());
    server.collect(0, ticket);
    EXPECT_TRUE(server.answers[ticket].status.ok());
    return server.board.list();
  };
  for (int round = 0; round < 300; ++round) {
    const auto loaded = done(AdapterAction::kLoad);
    ASSERT_EQ(loaded.size(), 1u) << "round " << round;
    ASSERT_EQ(loaded[0]->bytes, 2000) << "round " << round;
    ASSERT_TRUE(done(AdapterAction::kPin)[0]->pinned) << "round " << round;
    ASSERT_FALSE(done(AdapterAction::kUnpin)[0]->pinned) << "round " << round;
    ASSERT_TRUE(done(AdapterAction::kDrop).empty()) << "round " << round;
  }
}

// Somebody looks at the files before anybody asks for them, also while a step takes long.
TEST(Engine, WhatIsWrongWithAnAdaptersHeadersStandsInTheList) {
  Server server;
  server.files.put("/a", 7, 2000);
  ASSERT_TRUE(server.engine->command({1, AdapterAction::kAdd, spec_of("a", "/a"), false}).ok());
  ASSERT_TRUE(server.engine->command({2, AdapterAction::kAdd, spec_of("b", "/nowhere"), false}).ok());
  server.collect(0, 2);
  EXPECT_TRUE(server.engine->check_adapter(spec_of("a", "/a")).ok());
  const Status status = server.engine->check_adapter(spec_of("b", "/nowhere"));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message.find("adapter \"b\" was not loaded: "), 0u) << status.error().message;
  const auto listed = [&] {
    const AdapterList adapters = server.board.list();
    return adapters.size() == 2 && adapters[0]->tier == AdapterTier::kSource &&
           adapters[1]->tier == AdapterTier::kFailed && adapters[1]->error == status.error().message;
  };
  while (!listed()) {
    const EngineOutput output = server.engine->wait_output(kPatienceNs);
    ASSERT_FALSE(output.empty()) << "the engine says nothing";
    server.board.put(output.adapters);
  }
  ASSERT_TRUE(server.engine->submit(request(1, 20, 20, {{source_of("b"), 1.0f}})).ok());
  server.collect(1, 2);
  EXPECT_EQ((server.ended[{1, 0}].error.message), status.error().message);
  server.engine->stop();
  EXPECT_TRUE(server.engine->check_adapter(spec_of("a", "/a")).ok()) << "nobody is told any more";
}

TEST(Engine, TwoEnginesInOneProcessDoNotMeet) {
  Server first, second;
  first.files.put("/a", 1);
  second.files.put("/a", 2);
  for (Server* server : {&first, &second}) {
    ASSERT_TRUE(server->engine->command({1, AdapterAction::kAdd, spec_of("a", "/a"), false}).ok());
    for (uint64_t id = 1; id <= 10; ++id)
      ASSERT_TRUE(server->engine->submit(request(id, 20, 20, {{source_of("a"), 1.0f}})).ok());
  }
  for (Server* server : {&first, &second}) server->collect(10, 1);
  for (uint64_t id = 1; id <= 10; ++id) {
    EXPECT_EQ((first.tokens[{id, 0}]), expected_output(request(id, 20, 20), 0, {{1, 1.0f, 0}}, 200).tokens);
    EXPECT_EQ((second.tokens[{id, 0}]), expected_output(request(id, 20, 20), 0, {{2, 1.0f, 0}}, 200).tokens);
  }
}

TEST(Engine, MemoryThatDoesNotFitIsSaidWithTheNumbers) {
  Ledger ledger(100000);
  SteadyClock clock;
  NullLogSink log;
  FakeFiles files;
  EngineOptions options = Server::small_options();
  options.kv_cache_bytes = 1 << 20;
  EngineParts parts;
  parts.config = fake_config();
  parts.executor = std::make_unique<FakeExecutor>(step_limits(options, parts.config));
  parts.adapters = files.source();
  parts.ledger = &ledger;
  parts.clock = &clock;
  parts.log = &log;
  parts.options = options;
  const auto engine = start_engine(std::move(parts));
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code, ErrorCode::kTooLarge);
  EXPECT_NE(engine.error().message.find("1.00 MiB"), std::string::npos) << engine.error().message;
}

}  // namespace
}  // namespace loralei

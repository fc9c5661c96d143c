// SPDX-License-Identifier: Apache-2.0
// Scenarios and random soaks of the engine loop, one turn at a time, without threads.
#include "engine/loop.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "base/prng.h"
#include "engine/test_support.h"

namespace loralei {
namespace {

using namespace testing_support;

struct WorldOptions {
  int32_t blocks = 64;
  int32_t max_sequences = 8;
  int32_t step_tokens = 32;
  int64_t adapter_bytes = 1 << 20;
  bool prefix_cache = true;
  int32_t max_model_len = 300;
};

class World {
 public:
  explicit World(const WorldOptions& setup = {}) : setup_(setup), executor(limits(setup)) {
    ledger.set_cap(MemoryUse::kAdapters, setup.adapter_bytes);
    const ModelConfig config = fake_config();
    LoopParts parts;
    parts.executor = &executor;
    const KvShape shape{config.layers, config.kv_heads, config.head_dim, DType::kF32};
    parts.kv = std::move(KvCache::create(shape, setup.blocks, setup.prefix_cache, ledger)).value();
    parts.slot = std::make_unique<BatchSlot>(executor.limits(), config.layers, config.hidden, ledger);
    EXPECT_TRUE(parts.slot->reserve_vocab(config.vocab).ok());
    parts.config = config;
    parts.eos = config.eos;
    parts.ledger = &ledger;
    parts.clock = &clock;
    parts.log = &log;
    parts.start_load = [this](LoadJob&& job) {
      jobs.push_back(std::move(job));
      return true;
    };
    parts.max_model_len = std::min(setup.max_model_len, setup.blocks * kKvBlockTokens);
    parts.max_sequences = setup.max_sequences;
    parts.step_tokens = setup.step_tokens;
    parts.prefix_cache = setup.prefix_cache;
    parts.queued = &queued;
    loop = std::make_unique<EngineLoop>(std::move(parts));
  }

  static ModelLimits limits(const WorldOptions& setup) {
    ModelLimits limits;
    limits.rows_max = setup.step_tokens;
    limits.logits_rows_max = setup.max_sequences;
    limits.segments_max = 16;
    return limits;
  }

  int64_t max_model_len() const { return std::min(setup_.max_model_len, setup_.blocks * kKvBlockTokens); }

  RequestId submit(Submit submit) {
    submit.id = RequestId{++last_id};
    submits[submit.id] = submit;
    queued.fetch_add(1);
    messages.push_back(Arrival{submit, clock.now_ns()});
    return submit.id;
  }
  void cancel(RequestId id) { messages.emplace_back(std::in_place_type<Cancel>, id); }
  void command(AdapterAction action, const std::string& name, const std::string& path = "", bool replace = false) {
    messages.push_back(AdapterCommand{++tickets, action, name, path, replace});
  }
  void finish_load(size_t index = 0) {
    if (jobs.empty()) return;
    LoadJob job = std::move(jobs[index]);
    jobs.erase(jobs.begin() + static_cast<int64_t>(index));
    messages.push_back(run_load_job(files.source(), job));
  }

  void turn() {
    clock.advance_ns(1000);
    EngineOutput output;
    loop->turn(messages, output);
    loop->check();
    take(output);
  }
  void take(EngineOutput& output) {
    for (TokenEvent& event : output.tokens) {
      auto& record = records[{event.id, event.choice}];
      EXPECT_EQ(record.end, EndReason::kNone) << "an event after the end of request " << event.id.value;
      if (record.events++ == 0) record.first = event;
      if (event.has_token) record.tokens.push_back(event.token);
      if (event.logprobs) record.logprobs.push_back(*event.logprobs);
      record.end = event.end;
      record.last = std::move(event);
    }
    for (AdapterReply& reply : output.replies) replies.push_back(std::move(reply));
  }
  // Until nothing is left to do; loads end by themselves.
  void run(int turns_max = 5000) {
    for (int i = 0; i < turns_max; ++i) {
      turn();
      if (loop->idle() && messages.empty()) {
        if (jobs.empty()) return;
        finish_load();
      }
    }
    FAIL() << "still busy after " << turns_max << " turns";
  }
  EngineStats stats() const {
    EngineStats value;
    loop->fill_stats(value);
    loop->fill_adapters(value.adapters);
    return value;
  }
  void expect_nothing_held() {
    const EngineStats value = stats();
    EXPECT_EQ(value.running + value.waiting + value.waiting_for_adapter, 0);
    EXPECT_EQ(value.kv_blocks_used, 0);
    EXPECT_EQ(queued.load(), 0);
    for (const AdapterStatus& adapter : value.adapters) EXPECT_EQ(adapter.users, 0) << adapter.name;
  }

  struct Record {
    std::vector<TokenId> tokens;
    std::vector<TokenLogprobs> logprobs;
    TokenEvent first, last;
    EndReason end = EndReason::kNone;
    int events = 0;
  };
  Record& record(RequestId id, int32_t choice = 0) { return records[{id, choice}]; }

  // Compares a finished choice with the oracle; adapters by the versions that the events named.
  void expect_oracle(RequestId id, int32_t choice = 0) {
    const Submit& submit = submits.at(id);
    const Record& record = records[{id, choice}];
    std::vector<FakeUse> uses;
    std::string versions = record.first.adapter_version;
    for (const AdapterUse& use : submit.adapters) {
      uses.push_back({FakeFiles::content_of(versions), use.scale, 0});
      const auto& invocation = invocations[uses.back().content];
      if (!invocation.empty()) {
        const auto found = std::find_end(submit.prompt.begin(), submit.prompt.end(), invocation.begin(), invocation.end());
        uses.back().first_position = found == submit.prompt.end() ? INT32_MAX : static_cast<int32_t>(found - submit.prompt.begin());
      }
      versions = versions.size() > 13 ? versions.substr(13) : "";
    }
    const Expected expected = expected_output(submit, choice, uses, max_model_len());
    EXPECT_EQ(record.tokens, expected.tokens) << "request " << id.value << " choice " << choice;
    EXPECT_EQ(record.end, expected.end);
  }

  const WorldOptions setup_;
  Ledger ledger{64 << 20};
  ManualClock clock;
  NullLogSink log;
  FakeExecutor executor;
  FakeFiles files;
  std::map<uint64_t, std::vector<TokenId>> invocations;  // by content
  std::deque<LoadJob> jobs;
  std::atomic<int32_t> queued{0};
  std::vector<Message> messages;
  std::map<RequestId, Submit> submits;
  std::map<std::pair<RequestId, int32_t>, Record> records;
  std::vector<AdapterReply> replies;
  uint64_t last_id = 0, tickets = 0;
  std::unique_ptr<EngineLoop> loop;
};

std::vector<TokenId> prompt_of(int count, int salt = 0) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(1 + (i * 13 + salt * 29 + i / 7) % (kVocab - 1));
  return tokens;
}

Submit simple(int prompt, int output, int salt = 0, std::vector<AdapterUse> adapters = {}) {
  Submit submit;
  submit.prompt = prompt_of(prompt, salt);
  submit.max_tokens = output;
  submit.ignore_eos = true;
  submit.sampling.seed = static_cast<uint64_t>(salt) + 5;
  submit.adapters = std::move(adapters);
  return submit;
}

TEST(EngineLoop, GivesWhatTheModelSays) {
  World world;
  const RequestId id = world.submit(simple(10, 20));
  world.run();
  world.expect_oracle(id);
  EXPECT_EQ(world.record(id).tokens.size(), 20u);
  world.expect_nothing_held();
}

TEST(EngineLoop, ALongPromptIsComputedInChunksBesideDecodeRows) {
  World world;
  const RequestId first = world.submit(simple(4, 60, 1));
  for (int i = 0; i < 3; ++i) world.turn();
  const size_t before = world.record(first).tokens.size();
  const RequestId second = world.submit(simple(200, 5, 2));
  for (int i = 0; i < 5; ++i) world.turn();
  EXPECT_EQ(world.record(first).tokens.size(), before + 5);  // decoding goes on in every step
  world.run();
  world.expect_oracle(first);
  world.expect_oracle(second);
}

TEST(EngineLoop, AWarmPrefixGivesTheSameTextAsAColdOne) {
  World world;
  Submit submit = simple(70, 30, 3);
  const RequestId cold = world.submit(submit);
  world.run();
  const int64_t rows = world.executor.rows;
  const RequestId warm = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(warm).first.cached_tokens, 64);
  EXPECT_EQ(world.executor.rows - rows, 70 - 64 + 30 - 1);
  EXPECT_EQ(world.record(warm).tokens, world.record(cold).tokens);
  world.expect_oracle(warm);
}

TEST(EngineLoop, AFullPromptHitStillComputesTheLastToken) {
  World world;
  const RequestId cold = world.submit(simple(64, 1, 3));
  world.run();
  const RequestId warm = world.submit(simple(64, 1, 3));
  world.run();
  EXPECT_EQ(world.record(warm).first.cached_tokens, 48);
  EXPECT_EQ(world.record(warm).tokens, world.record(cold).tokens);
}

TEST(EngineLoop, SaltAndScaleNeverShareAPrefix) {
  World world;
  world.files.put("/a", 11);
  world.command(AdapterAction::kRegister, "a", "/a");
  Submit submit = simple(40, 4, 1, {{"a", 1.0f}});
  world.submit(submit);
  world.run();
  submit.adapters[0].scale = 0.5f;
  const RequestId half = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(half).first.cached_tokens, 0);
  world.expect_oracle(half);
  submit.cache_salt = "tenant";
  const RequestId salted = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(salted).first.cached_tokens, 0);
  submit.cache_salt.clear();
  const RequestId again = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(again).first.cached_tokens, 32);
  submit.adapters[0].scale = 0.0f;  // adds nothing: the base's text and the base's prefix
  const RequestId none = world.submit(submit);
  submit.adapters.clear();
  const RequestId base = world.submit(submit);
  world.run();
  world.expect_oracle(none);
  EXPECT_EQ(world.record(none).tokens, world.record(base).tokens);
}

TEST(EngineLoop, ManyAdaptersInOneBatchGiveWhatTheyGiveAlone) {
  World world;
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    world.files.put("/" + name, 100 + static_cast<uint64_t>(i));
    world.command(AdapterAction::kRegister, name, "/" + name);
  }
  ids.push_back(world.submit(simple(20, 15, 1)));
  ids.push_back(world.submit(simple(20, 15, 1, {{"a", 1.0f}})));
  ids.push_back(world.submit(simple(20, 15, 1, {{"b", 1.0f}})));
  ids.push_back(world.submit(simple(20, 15, 1, {{"b", 0.3f}})));
  ids.push_back(world.submit(simple(20, 15, 1, {{"c", 0.5f}, {"d", 0.7f}})));
  ids.push_back(world.submit(simple(20, 15, 1, {{"d", 0.7f}, {"c", 0.5f}})));
  ids.push_back(world.submit(simple(20, 15, 2, {{"a", 1.0f}})));
  world.run();
  for (const RequestId id : ids) world.expect_oracle(id);
  EXPECT_NE(world.record(ids[0]).tokens, world.record(ids[1]).tokens);
  world.expect_nothing_held();
}

TEST(EngineLoop, ABaseOnlyStepHasNoSegmentsThoughAdaptersAreLoaded) {
  World world;
  world.files.put("/a", 11);
  world.command(AdapterAction::kLoad, "a", "/a");
  world.run();
  ASSERT_TRUE(world.replies.at(0).status.ok());
  world.submit(simple(20, 10));
  world.run();
  EXPECT_EQ(world.executor.segments, 0);
}

TEST(EngineLoop, ColdAdaptersDelayOnlyTheirOwnRequests) {
  World world;
  world.files.put("/a", 11);
  world.command(AdapterAction::kRegister, "a", "/a");
  const RequestId cold = world.submit(simple(10, 5, 1, {{"a", 1.0f}}));
  const RequestId base = world.submit(simple(10, 5, 2));
  for (int i = 0; i < 20; ++i) world.turn();
  EXPECT_EQ(world.record(base).end, EndReason::kLength);
  EXPECT_EQ(world.record(cold).events, 0);
  EXPECT_EQ(world.stats().waiting_for_adapter, 1);
  EXPECT_EQ(world.stats().adapters.at(0).tier, AdapterTier::kLoading);
  EXPECT_TRUE(world.loop->idle());
  world.run();
  world.expect_oracle(cold);
}

TEST(EngineLoop, ReplaceUnderTrafficKeepsTheVersionOfRunningRequests) {
  World world;
  world.files.put("/a", 11);
  world.command(AdapterAction::kLoad, "a", "/a");
  world.run();
  const RequestId old_one = world.submit(simple(10, 40, 1, {{"a", 1.0f}}));
  for (int i = 0; i < 5; ++i) world.turn();
  world.files.put("/a", 22);
  world.command(AdapterAction::kLoad, "a", "/a", true);
  world.turn();
  world.finish_load();
  world.turn();
  world.finish_load();
  world.turn();
  const RequestId new_one = world.submit(simple(10, 40, 1, {{"a", 1.0f}}));
  world.run();
  EXPECT_EQ(FakeFiles::content_of(world.record(old_one).first.adapter_version), 11u);
  EXPECT_EQ(FakeFiles::content_of(world.record(new_one).first.adapter_version), 22u);
  EXPECT_EQ(world.record(new_one).first.cached_tokens, 0);
  world.expect_oracle(old_one);
  world.expect_oracle(new_one);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 1000);
}

TEST(EngineLoop, UnloadUnderTrafficAnswersWhenTheLastUserIsDone) {
  World world;
  world.files.put("/a", 11, 5000);
  world.command(AdapterAction::kLoad, "a", "/a");
  world.run();
  const RequestId id = world.submit(simple(10, 10, 1, {{"a", 1.0f}}));
  for (int i = 0; i < 3; ++i) world.turn();
  world.command(AdapterAction::kUnload, "a");
  const RequestId late = world.submit(simple(10, 10, 1, {{"a", 1.0f}}));
  world.turn();
  EXPECT_EQ(world.replies.size(), 1u);
  EXPECT_EQ(world.record(late).end, EndReason::kError);
  EXPECT_EQ(world.record(late).last.error.code, ErrorCode::kNotFound);
  world.run();
  world.expect_oracle(id);
  ASSERT_EQ(world.replies.size(), 2u);
  EXPECT_EQ(world.replies[1].bytes_freed, 5000);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
}

TEST(EngineLoop, AFailedLoadEndsItsRequestsWithTheReason) {
  World world;
  world.files.put("/a", 11);
  world.files.change("/a", [](FakeFiles::File& file) { file.broken = corrupt("a tensor is cut off"); });
  world.command(AdapterAction::kRegister, "a", "/a");
  Submit submit = simple(10, 5, 1, {{"a", 1.0f}});
  submit.choices = 3;
  const RequestId id = world.submit(submit);
  world.run();
  for (int32_t choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(world.record(id, choice).end, EndReason::kError);
    EXPECT_NE(world.record(id, choice).last.error.message.find("a tensor is cut off"), std::string::npos);
  }
  world.files.change("/a", [](FakeFiles::File& file) { file.broken.reset(); });
  const RequestId again = world.submit(submit);
  world.run();
  for (int32_t choice = 0; choice < 3; ++choice) world.expect_oracle(again, choice);
  world.expect_nothing_held();
}

TEST(EngineLoop, ChoicesComputeThePromptOnceAndDependOnSeedAndChoiceOnly) {
  World world;
  Submit submit = simple(100, 12, 4);
  submit.choices = 4;
  const RequestId id = world.submit(submit);
  world.run();
  for (int32_t choice = 0; choice < 4; ++choice) world.expect_oracle(id, choice);
  EXPECT_EQ(world.executor.rows, 100 + 3 * (100 - 96) + 4 * 11);
  EXPECT_NE(world.record(id, 0).tokens, world.record(id, 1).tokens);
}

TEST(EngineLoop, ChoicesWorkWithoutThePrefixCache) {
  World world({.prefix_cache = false});
  Submit submit = simple(50, 6, 4);
  submit.choices = 3;
  submit.prompt_logprobs = true;
  submit.sampling.logprobs = 1;
  const RequestId id = world.submit(submit);
  world.run();
  for (int32_t choice = 0; choice < 3; ++choice) {
    world.expect_oracle(id, choice);
    EXPECT_EQ(world.record(id, choice).first.prompt_logprobs.size(), 50u);
  }
  world.expect_nothing_held();
}

TEST(EngineLoop, PreemptionIsInvisible) {
  World world({.blocks = 14, .max_sequences = 6, .step_tokens = 24});
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(world.submit(simple(20, 60, i)));
  world.run();
  EXPECT_GT(world.stats().preemptions, 0u);
  for (const RequestId id : ids) {
    world.expect_oracle(id);
    EXPECT_EQ(world.record(id).tokens.size(), 60u);
  }
  world.expect_nothing_held();
}

TEST(EngineLoop, PromptLogprobsAreThoseOfTheModelInAnyChunking) {
  for (const int32_t step_tokens : {8, 32}) {
    World world({.step_tokens = step_tokens});
    Submit submit = simple(60, 3, 2);
    submit.prompt_logprobs = true;
    submit.sampling.logprobs = 2;
    submit.choices = 2;
    world.submit(submit);  // leaves a warm prefix behind, which must not hide anything
    world.run();
    const RequestId id = world.submit(submit);
    world.run();
    for (int32_t choice = 0; choice < 2; ++choice) {
      const auto& entries = world.record(id, choice).first.prompt_logprobs;
      ASSERT_EQ(entries.size(), 60u);
      EXPECT_FALSE(entries[0].has_value());
      const auto chain = hash_chain(submit.prompt, {});
      for (size_t position = 1; position < 60; ++position) {
        const auto logits = fake_logits(chain[position - 1]);
        std::vector<TokenLogprob> top(2);
        EXPECT_EQ(entries[position]->logprob, token_logprob({.logits = logits, .token = submit.prompt[position]}, top));
        EXPECT_EQ(entries[position]->top[1].token, top[1].token);
      }
      world.expect_oracle(id, choice);
      EXPECT_EQ(world.record(id, choice).logprobs.size(), 3u);
      EXPECT_EQ(world.record(id, choice).logprobs[0].top.size(), 2u);
    }
  }
}

TEST(EngineLoop, MaxTokensZeroWithPromptLogprobsGeneratesNothing) {
  World world;
  Submit submit = simple(20, 0);
  submit.prompt_logprobs = true;
  submit.sampling.logprobs = 0;
  const RequestId id = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(id).end, EndReason::kLength);
  EXPECT_TRUE(world.record(id).tokens.empty());
  EXPECT_EQ(world.record(id).first.prompt_logprobs.size(), 20u);
}

TEST(EngineLoop, EmbeddingsOfLastAndMeanRow) {
  World world({.step_tokens = 16});
  world.files.put("/a", 11);
  world.command(AdapterAction::kRegister, "a", "/a");
  for (const bool adapted_text : {false, true}) {
    Submit submit = simple(50, 0, 6);
    if (adapted_text) submit.adapters = {{"a", 0.5f}};
    const auto chain = hash_chain(submit.prompt, adapted_text ? std::vector<FakeUse>{{11, 0.5f, 0}} : std::vector<FakeUse>{});
    submit.pooling = Pooling::kLast;
    const RequestId last = world.submit(submit);
    submit.pooling = Pooling::kMean;
    const RequestId mean = world.submit(submit);
    world.run();
    for (int32_t i = 0; i < kHidden; ++i) {
      double sum = 0;
      for (const uint64_t hash : chain) sum += fake_hidden(hash, i);
      EXPECT_EQ(world.record(last).last.embedding.at(static_cast<size_t>(i)), fake_hidden(chain.back(), i));
      EXPECT_EQ(world.record(mean).last.embedding.at(static_cast<size_t>(i)), static_cast<float>(sum / 50));
    }
    EXPECT_EQ(world.record(mean).end, EndReason::kStop);
  }
}

TEST(EngineLoop, StopIdsEosAndMinimumLength) {
  World world;
  Submit submit = simple(10, 200, 1);
  submit.ignore_eos = false;
  submit.stop_ids = {7, 8};
  const RequestId plain = world.submit(submit);
  submit.min_tokens = 30;
  const RequestId longer = world.submit(submit);
  world.run();
  world.expect_oracle(plain);
  world.expect_oracle(longer);
  EXPECT_EQ(world.record(plain).end, EndReason::kStop);
  EXPECT_TRUE(world.record(plain).last.stop_token.has_value());
  EXPECT_GE(world.record(longer).tokens.size(), 30u);
}

TEST(EngineLoop, OutputIsClippedAtTheModelsLength) {
  World world({.max_model_len = 40});
  const RequestId id = world.submit(simple(30, 500));
  world.run();
  EXPECT_EQ(world.record(id).tokens.size(), 10u);
  EXPECT_EQ(world.record(id).end, EndReason::kLength);
}

TEST(EngineLoop, ActivatedLoraStartsAtTheLastInvocationAndSharesTheBasePrefix) {
  World world;
  world.files.put("/a", 33);
  world.files.change("/a", [](FakeFiles::File& file) { file.invocation = {5, 6}; });
  world.invocations[33] = {5, 6};
  world.command(AdapterAction::kRegister, "a", "/a");
  Submit submit = simple(60, 10, 1);
  submit.prompt[10] = submit.prompt[45] = 5;
  submit.prompt[11] = submit.prompt[46] = 6;
  world.submit(submit);  // the base writes the prefix
  world.run();
  submit.adapters = {{"a", 1.0f}};
  const RequestId invoked = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(invoked).first.cached_tokens, 32);
  world.expect_oracle(invoked);
  submit.prompt[46] = submit.prompt[11] = 9;  // never invoked: the base's text
  const RequestId never = world.submit(submit);
  world.run();
  world.expect_oracle(never);
}

TEST(EngineLoop, RefusalsNameTheReason) {
  World world;
  world.files.put("/a", 11);
  world.files.put("/s", 12);
  world.files.change("/s", [](FakeFiles::File& file) { file.saved_tensors = true; });
  world.command(AdapterAction::kRegister, "a", "/a");
  world.command(AdapterAction::kRegister, "s", "/s");
  const RequestId unknown = world.submit(simple(10, 5, 1, {{"nobody", 1.0f}}));
  const RequestId summed = world.submit(simple(10, 5, 1, {{"a", 1.0f}, {"s", 1.0f}}));
  const RequestId scaled = world.submit(simple(10, 5, 1, {{"s", 0.5f}}));
  Submit foreign = simple(10, 5, 1);
  foreign.prompt[3] = kVocab;
  const RequestId token = world.submit(foreign);
  const RequestId fine = world.submit(simple(10, 5, 1, {{"s", 1.0f}}));
  world.run();
  EXPECT_EQ(world.record(unknown).last.error.code, ErrorCode::kNotFound);
  EXPECT_EQ(world.record(summed).last.error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.record(scaled).last.error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.record(token).last.error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.record(fine).end, EndReason::kLength);
  world.expect_nothing_held();
}

TEST(EngineLoop, AnExecutorErrorEndsTheRequestsOfThatStepOnly) {
  World world;
  const RequestId first = world.submit(simple(10, 5, 1));
  world.executor.fail_next = true;
  world.turn();
  EXPECT_EQ(world.record(first).end, EndReason::kError);
  const RequestId second = world.submit(simple(10, 5, 1));
  world.run();
  world.expect_oracle(second);
  world.expect_nothing_held();
}

TEST(EngineLoop, CancelFreesInEveryState) {
  World world({.blocks = 10, .max_sequences = 3});
  world.files.put("/a", 11);
  world.command(AdapterAction::kRegister, "a", "/a");
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) {
    Submit submit = simple(30, 50, i, i % 2 ? std::vector<AdapterUse>{{"a", 1.0f}} : std::vector<AdapterUse>{});
    submit.choices = 1 + i % 3;
    ids.push_back(world.submit(submit));
  }
  for (int i = 0; i < 4; ++i) world.turn();
  world.cancel(RequestId{999});
  for (const RequestId id : ids) {
    world.cancel(id);
    world.cancel(id);
    world.turn();
  }
  for (int i = 0; i < 6; ++i) {
    for (int32_t choice = 0; choice < 1 + i % 3; ++choice) EXPECT_EQ(world.record(ids[static_cast<size_t>(i)], choice).end, EndReason::kCancelled);
  }
  world.run();
  world.expect_nothing_held();
}

TEST(EngineLoop, EndAllEndsEverythingOnce) {
  World world({.max_sequences = 2});
  world.files.put("/a", 11);
  world.command(AdapterAction::kRegister, "a", "/a");
  for (int i = 0; i < 6; ++i) world.submit(simple(20, 50, i, i == 3 ? std::vector<AdapterUse>{{"a", 1.0f}} : std::vector<AdapterUse>{}));
  world.command(AdapterAction::kPin, "a");
  for (int i = 0; i < 4; ++i) world.turn();
  EngineOutput output;
  world.loop->end_all(output);
  world.take(output);
  for (uint64_t id = 1; id <= 6; ++id) EXPECT_EQ(world.record(RequestId{id}).end, EndReason::kCancelled);
  EXPECT_EQ(world.replies.back().status.error().code, ErrorCode::kCancelled);
  world.expect_nothing_held();
}

// Everything at once: arrivals, cancels, failures, adapter churn with too little memory for all, replaced versions, preemption.
TEST(EngineLoop, RandomSoakKeepsEveryPromise) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    WorldOptions setup;
    setup.blocks = 10 + static_cast<int32_t>(random.below(20));
    setup.max_sequences = 1 + static_cast<int32_t>(random.below(8));
    setup.step_tokens = setup.max_sequences + static_cast<int32_t>(random.below(40));
    setup.prefix_cache = random.below(4) != 0;
    setup.adapter_bytes = 200000;
    setup.max_model_len = 160;
    World world(setup);
    uint64_t content = 1000;
    const auto name_of = [&] { return std::string(1, static_cast<char>('a' + random.below(5))); };
    for (int i = 0; i < 5; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      world.files.put("/" + name, ++content, static_cast<int64_t>(random.below(100000)));
      world.command(AdapterAction::kRegister, name, "/" + name);
    }
    std::map<RequestId, bool> disturbed;  // may end with an error or cancelled
    bool step_failed = false;
    for (int step = 0; step < 1200; ++step) {
      switch (random.below(24)) {
        case 0:
        case 1: {
          Submit submit = simple(1 + static_cast<int>(random.below(100)), 1 + static_cast<int>(random.below(50)), static_cast<int>(random.below(3)));
          submit.choices = 1 + static_cast<int32_t>(random.below(3) * random.below(2));
          submit.ignore_eos = random.below(2);
          submit.min_tokens = static_cast<int32_t>(random.below(10));
          submit.sampling.temperature = random.below(3) == 0 ? 0.0f : 0.8f;
          submit.sampling.top_k = static_cast<int32_t>(random.below(2) * 10);
          submit.sampling.repetition_penalty = random.below(3) == 0 ? 1.2f : 1.0f;
          submit.sampling.logprobs = static_cast<int32_t>(random.below(4)) - 1;
          submit.prompt_logprobs = random.below(6) == 0;
          for (auto count = random.below(3); count > 0; --count) submit.adapters.push_back({name_of(), random.below(2) ? 1.0f : 0.5f});
          world.submit(submit);
          break;
        }
        case 2:
          if (world.last_id > 0) {
            const RequestId id{1 + random.below(world.last_id)};
            disturbed[id] = true;
            world.cancel(id);
          }
          break;
        case 3: {
          const std::string name = name_of();
          world.files.put("/" + name, ++content, static_cast<int64_t>(random.below(100000)));
          world.command(AdapterAction::kLoad, name, "/" + name, true);
          break;
        }
        case 4: {
          const std::string name = name_of();
          world.command(AdapterAction::kUnload, name);
          if (random.below(3) != 0) world.command(AdapterAction::kRegister, name, "/" + name);
          break;
        }
        case 5: world.command(random.below(3) ? AdapterAction::kUnpin : AdapterAction::kPin, name_of()); break;
        case 6:
          if (random.below(10) == 0) world.executor.fail_next = step_failed = true;
          break;
        case 7:
          if (random.below(5) == 0) world.files.change("/" + name_of(), [](FakeFiles::File& file) { file.broken = corrupt("bad"); });
          break;
        default: break;
      }
      if (!world.jobs.empty() && random.below(3) == 0) world.finish_load(random.below(world.jobs.size()));
      world.turn();
      ASSERT_FALSE(HasFailure());
    }
    for (int i = 0; i < 5; ++i) world.command(AdapterAction::kUnpin, std::string(1, static_cast<char>('a' + i)));
    world.run(20000);
    int compared = 0;
    for (const auto& [id, submit] : world.submits) {
      for (int32_t choice = 0; choice < submit.choices; ++choice) {
        const World::Record& record = world.record(id, choice);
        ASSERT_NE(record.end, EndReason::kNone) << "request " << id.value << " never ended";
        if (record.end == EndReason::kStop || record.end == EndReason::kLength) {
          world.expect_oracle(id, choice);
          ++compared;
        } else {
          EXPECT_TRUE(record.end == EndReason::kError ? (!submit.adapters.empty() || step_failed) : disturbed.count(id) == 1);
        }
      }
    }
    EXPECT_GT(compared, 10);
    EXPECT_EQ(world.replies.size(), world.tickets);
    world.expect_nothing_held();
    for (int i = 0; i < 5; ++i) world.command(AdapterAction::kUnload, std::string(1, static_cast<char>('a' + i)));
    world.run();
    EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
  }
}

}  // namespace
}  // namespace loralei

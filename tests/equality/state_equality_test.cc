// SPDX-License-Identifier: Apache-2.0
// A model whose linear layers keep states, through the real engine on real kernels: every
// answer is that of a sequence alone from its first token on, whatever prefix was found,
// ran beside it, or was preempted. The layer program alone (golden_test) tells what is
// right.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/prng.h"
#include "engine/emulated/emulated_backend.h"
#include "engine/model_host.h"
#include "model/linear_state.h"
#include "support/engine_driver.h"

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr int kVocab = 96, kLength = 128, kStepTokens = 24;

struct Subject {
  const char* name;
  const char* model;
  std::vector<std::string> adapters;  // two
};

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {
      {"dense", "qwen3_5", {"qwen3_5-all-r4", "qwen3_5-linear"}},
      {"gguf", "gguf-qwen3_5-f16.gguf", {"qwen3_5-all-r4", "gguf-lora-qwen3_5.gguf"}},
      {"experts", "qwen3_5-moe", {"qwen3_5-moe-all", "qwen3_5-moe-experts"}},
  };
  return all;
}

class StateEquality : public testing::TestWithParam<size_t> {
 protected:
  const Subject& subject() const { return subjects()[GetParam()]; }

  EngineHostOptions options_of() const {
    EngineHostOptions options;
    options.model_path = kRoot + "models/" + subject().model;
    options.threads = 2;
    options.engine.memory_budget_bytes = int64_t{1} << 30;
    options.engine.max_sequences = 6;
    options.engine.step_tokens = kStepTokens;
    options.engine.max_model_len = kLength;
    options.engine.kv_dtype = DType::kF16;
    return options;
  }

  std::unique_ptr<EngineDriver> start(const EngineHostOptions& options) const {
    auto driver = std::make_unique<EngineDriver>(options);
    if (!driver->running()) return nullptr;
    for (const std::string& name : subject().adapters)
      driver->command(AdapterAction::kAdd, name, kRoot + "adapters/" + name);
    driver->collect();
    return driver;
  }

  static std::vector<TokenId> text(Prng& random, size_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(3 + random.below(kVocab - 3));
    return tokens;
  }

  // Prompts that begin alike, adapters in several weights and together, greedy and
  // sampled.
  std::vector<Submit> some_requests(Prng& random, size_t count) const {
    const std::vector<std::vector<TokenId>> beginnings = {text(random, 71), text(random, 66), text(random, 20)};
    std::vector<Submit> requests(count);
    for (Submit& request : requests) {
      request.prompt = beginnings[random.below(beginnings.size())];
      const auto own = text(random, random.below(24));
      request.prompt.insert(request.prompt.end(), own.begin(), own.end());
      const uint64_t use = random.below(4);
      if (use == 1 || use == 3)
        request.adapters.push_back({source_of(subject().adapters[0]), random.below(2) ? 1.0f : 0.5f});
      if (use >= 2) request.adapters.push_back({source_of(subject().adapters[1]), 1.0f});
      request.max_tokens = static_cast<int32_t>(4 + random.below(26));
      request.ignore_eos = true;
      request.sampling.temperature = random.below(2) == 0 ? 0.0f : 1.0f;
      request.sampling.seed = random();
    }
    return requests;
  }

  static void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].end, EndReason::kLength) << got[i].error.message;
      EXPECT_EQ(got[i].tokens, want[i].tokens) << "request " << i;
    }
  }
};

TEST_P(StateEquality, CachedTogetherAndPreemptedAreColdAndAlone) {
  SCOPED_TRACE("seed 101");
  Prng random(101);
  const std::vector<Submit> requests = some_requests(random, 40);
  EngineHostOptions without = options_of();
  without.engine.prefix_cache = false;
  const auto cold = start(without);
  ASSERT_NE(cold, nullptr);
  const auto want = one_by_one(*cold, requests);
  for (const Answer& answer : want) EXPECT_EQ(answer.cached_tokens, 0);
  {
    SCOPED_TRACE("together, without the prefix cache");
    expect_same(at_once(*cold, requests), want);
    EXPECT_EQ(cold->stats().kv_states.kept, 0u);
  }
  EngineHostOptions roomy = options_of();
  roomy.engine.max_sequences = 40;  // and copies of all prompts
  const auto warm = start(roomy);
  ASSERT_NE(warm, nullptr);
  {
    SCOPED_TRACE("together, with it");
    expect_same(at_once(*warm, requests), want);
  }
  {
    SCOPED_TRACE("again, found");
    // Of those whose adapters were still being read nothing was kept in the first round.
    expect_same(one_by_one(*warm, requests), want);
    const auto again = one_by_one(*warm, requests);
    expect_same(again, want);
    for (size_t i = 0; i < again.size(); ++i) {
      const int border = static_cast<int>(requests[i].prompt.size() - 1) / 16;
      EXPECT_GE(again[i].cached_tokens, border >= 4 ? 64 : 0) << "request " << i;
    }
    EXPECT_GT(warm->stats().kv_states.found, 20u);
  }
  EngineHostOptions few = options_of();
  few.engine.max_sequences = 2;  // and four copies
  const auto crowded = start(few);
  ASSERT_NE(crowded, nullptr);
  {
    SCOPED_TRACE("with few states");
    for (int round = 0; round < 2; ++round) expect_same(at_once(*crowded, requests), want);
    const KvStates states = crowded->stats().kv_states;
    EXPECT_EQ(states.slots, 6);
    EXPECT_GT(states.dropped, 10u);
    EXPECT_EQ(states.running, 0);
  }
}

TEST_P(StateEquality, PreemptedAreAlone) {
  SCOPED_TRACE("seed 102");
  Prng random(102);
  std::vector<Submit> requests = some_requests(random, 24);
  for (Submit& request : requests) {  // texts that grow
    request.prompt.resize(std::min<size_t>(20, request.prompt.size()));
    request.max_tokens = 100;
  }
  const auto reference = start(options_of());
  ASSERT_NE(reference, nullptr);
  const auto want = one_by_one(*reference, requests);
  const KvStates states = reference->stats().kv_states;
  for (const bool prefix_cache : {true, false}) {
    EngineHostOptions tight = options_of();
    tight.engine.prefix_cache = prefix_cache;
    // A state each, and as much for blocks: three a sequence, where its text needs eight.
    tight.engine.kv_cache_bytes = 2 * tight.engine.max_sequences * states.bytes / states.slots;
    const auto crowded = start(tight);
    ASSERT_NE(crowded, nullptr);
    for (int round = 0; round < 20 && crowded->stats().preemptions == 0; ++round)
      expect_same(at_once(*crowded, requests), want);
    EXPECT_GT(crowded->stats().preemptions, 0u);
    EXPECT_EQ(crowded->stats().kv_blocks_used, 0);
    EXPECT_EQ(crowded->stats().kv_states.running, 0);
  }
}

TEST_P(StateEquality, ChoicesHaveTheStateOfTheirPrompt) {
  const auto driver = start(options_of());
  ASSERT_NE(driver, nullptr);
  for (const std::string& name : subject().adapters)
    driver->command(AdapterAction::kLoad, name, kRoot + "adapters/" + name);
  driver->collect();
  SCOPED_TRACE("seed 103");
  Prng random(103);
  Submit request = some_requests(random, 1)[0];
  request.prompt = text(random, 90);
  request.sampling.temperature = 1.0f;
  request.choices = 3;
  const uint64_t id = driver->submit(request);
  driver->collect();
  EngineHostOptions without = options_of();
  without.engine.prefix_cache = false;
  const auto cold = start(without);
  ASSERT_NE(cold, nullptr);
  const uint64_t cold_id = cold->submit(request);
  cold->collect();
  for (int32_t choice = 0; choice < 3; ++choice) {
    const Answer& got = driver->answers[{id, choice}];
    EXPECT_EQ(got.tokens, (cold->answers[{cold_id, choice}].tokens)) << "choice " << choice;
    EXPECT_EQ(got.cached_tokens, choice == 0 ? 0 : 80);
  }
}

// Another budget while requests run: the cache follows, and states stay.
TEST_P(StateEquality, AnotherBudgetChangesNoAnswer) {
  SCOPED_TRACE("seed 104");
  Prng random(104);
  const std::vector<Submit> requests = some_requests(random, 24);
  const auto driver = start(options_of());
  ASSERT_NE(driver, nullptr);
  const auto want = one_by_one(*driver, requests);
  const int64_t budget = driver->ledger().budget_bytes();
  for (int round = 0; round < 4; ++round) {
    const uint64_t ticket = driver->set_memory(round % 2 == 0 ? budget / 2 : budget);
    ASSERT_NE(ticket, 0u);
    expect_same(at_once(*driver, requests), want);
    EXPECT_TRUE(driver->replies[ticket].status.ok()) << driver->replies[ticket].status.error().message;
  }
}

// Weights that are read in each step; nobody guesses, though a row more costs little
// there.
TEST_P(StateEquality, StreamedIsResident) {
  SCOPED_TRACE("seed 105");
  Prng random(105);
  const std::vector<Submit> requests = some_requests(random, 24);
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::path(testing::TempDir()) / ("loralei-states-" + std::to_string(::getpid()) + subject().name);
  fs::create_directories(folder);
  const std::string model = folder / subject().model;
  fs::copy(options_of().model_path, model, fs::copy_options::recursive);  // it is packed beside it
  EngineHostOptions options = options_of();
  options.model_path = model;
  options.engine.adapter_bytes = 1 << 20;
  options.engine.kv_cache_bytes = 4 << 20;
  const auto driver = start(options);
  ASSERT_NE(driver, nullptr);
  const auto want = one_by_one(*driver, requests);
  const EngineStats begun = driver->stats();
  const uint64_t ticket = driver->set_memory(begun.kv_bytes + begun.scratch_bytes + begun.request_bytes +
                                             begun.other_bytes + (1 << 20) + begun.weights_bytes * 7 / 10);
  driver->collect();
  ASSERT_TRUE(driver->replies[ticket].status.ok()) << driver->replies[ticket].status.error().message;
  ASSERT_GT(driver->stats().streamed_bytes, 0);
  expect_same(one_by_one(*driver, requests), want);
  expect_same(at_once(*driver, requests), want);
  EXPECT_EQ(driver->stats().drafted_tokens, 0u);
  fs::remove_all(folder);
}

TEST_P(StateEquality, SaysWhatStatesTake) {
  const auto driver = start(options_of());
  ASSERT_NE(driver, nullptr);
  const std::string banner = driver->host().banner();
  EXPECT_NE(banner.find("states of 6 sequences and 12 prefixes take "), std::string::npos) << banner;
  const KvStates states = driver->stats().kv_states;
  EXPECT_EQ(states.slots, 18);
  EXPECT_EQ(states.bytes, 18 * state_bytes(state_floats(driver->host().file().config)));
  EXPECT_EQ(driver->host().max_sequences(), 6);
  EngineHostOptions few = options_of();
  few.engine.kv_cache_bytes = 6 * states.bytes / states.slots;  // half of it has room for three
  const auto fewer = start(few);
  ASSERT_NE(fewer, nullptr);
  EXPECT_EQ(fewer->stats().kv_states.slots, 3);
  EXPECT_EQ(fewer->host().max_sequences(), 3);
  const auto said = fewer->host().notes();
  EXPECT_TRUE(std::any_of(said.begin(), said.end(), [](const std::string& note) {
    return note.find("At most 3 sequences run at once") != std::string::npos;
  }));
  EngineHostOptions guessing = options_of();
  guessing.engine.speculate = Speculation::kLookup;
  const auto guesses = start(guessing);
  ASSERT_NE(guesses, nullptr);
  const auto notes = guesses->host().notes();
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.find("--speculate lookup changes nothing here") != std::string::npos;
  }));
}

TEST_P(StateEquality, WhatDoesNotGoTogetherIsRefusedByName) {
  NullLogSink log;
  const auto refusal = [&](const EngineHostOptions& options) {
    const auto host = EngineHost::start(options, log, {});
    return host.ok() ? std::string("it starts") : host.error().message;
  };
  EngineHostOptions encoding = options_of();
  encoding.engine.kv_sharing = KvSharing::kBounded;
  EXPECT_NE(refusal(encoding).find("--kv-sharing"), std::string::npos) << refusal(encoding);
  EngineHostOptions disk = options_of();
  disk.engine.kv_dir = testing::TempDir() + "/kv";
  EXPECT_NE(refusal(disk).find("--kv-dir"), std::string::npos) << refusal(disk);
  EngineHostOptions events = options_of();
  events.kv_events = std::make_shared<KvEvents>(1 << 16);
  EXPECT_NE(refusal(events).find("--kv-events"), std::string::npos) << refusal(events);
  EngineHostOptions ranks = options_of();
  ranks.tensor_parallel = 2;
  EXPECT_NE(refusal(ranks).find("--tensor-parallel"), std::string::npos) << refusal(ranks);
  EngineHostOptions device = options_of();
  device.device = emulated_factory({});
  EXPECT_NE(refusal(device).find("device"), std::string::npos) << refusal(device);
  const auto own = ModelHost::start(options_of(), log, {});
  ASSERT_FALSE(own.ok());
  EXPECT_NE(own.error().message.find("state of a whole text"), std::string::npos) << own.error().message;
}

INSTANTIATE_TEST_SUITE_P(Models, StateEquality, testing::Values(size_t{0}, size_t{1}, size_t{2}),
                         [](const auto& info) { return std::string(subjects()[info.param].name); });

}  // namespace
}  // namespace loralei::test

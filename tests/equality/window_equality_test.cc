// SPDX-License-Identifier: Apache-2.0
// Models whose layers attend to windows: with KV of the windows alone every answer is the
// one of whole texts in the cache, whatever runs beside it, is found, or was preempted.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"
#include "engine/emulated/emulated_backend.h"
#include "engine/model_host.h"
#include "support/engine_driver.h"

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr int kVocab = 96, kLength = 128, kWindow = 16, kStepTokens = 24;

struct Subject {
  const char* name;
  const char* model;
  std::vector<std::string> adapters;
  int32_t full_layers, sliding_layers;
  KvTables tables;  // that are expected
};

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {
      {"all_layers", "mistral-window", {"mistral-window-r8"}, 0, 2, {0, 1, 2, kWindow, kStepTokens}},
      {"mixed", "qwen2-window", {}, 1, 2, {1, 2, 1, kWindow, kStepTokens}},
  };
  return all;
}

class WindowEquality : public testing::TestWithParam<size_t> {
 protected:
  const Subject& subject() const { return subjects()[GetParam()]; }

  EngineHostOptions options() const {
    EngineHostOptions options;
    options.model_path = kRoot + "models/" + subject().model;
    options.threads = 2;
    options.engine.memory_budget_bytes = int64_t{1} << 30;
    options.engine.max_sequences = 8;
    options.engine.step_tokens = kStepTokens;
    options.engine.max_model_len = kLength;
    options.engine.kv_dtype = DType::kF16;
    return options;
  }
  // That of whole texts.
  EngineHostOptions whole() const {
    EngineHostOptions whole = options();
    whole.kv_events = std::make_shared<KvEvents>(1 << 16);
    return whole;
  }
  // Of a block of 16 tokens in one layer: 2 heads of 8 numbers.
  static constexpr int64_t kLayerBytes = 2 * 2 * 8 * 16 * 2;
  int64_t block_bytes() const { return subject().tables.layers * kLayerBytes; }

  std::unique_ptr<EngineDriver> start(const EngineHostOptions& options) const {
    auto driver = std::make_unique<EngineDriver>(options);
    if (!driver->running()) return nullptr;
    for (const std::string& name : subject().adapters)
      driver->command(AdapterAction::kAdd, name, kRoot + "adapters/" + name);
    driver->collect();
    return driver;
  }

  std::vector<TokenId> text(Prng& random, size_t count) const {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(3 + random.below(kVocab - 3));
    return tokens;
  }

  // Prompts of several windows that begin alike.
  std::vector<Submit> some_requests(Prng& random, size_t count) const {
    const std::vector<std::vector<TokenId>> beginnings = {text(random, 80), text(random, 49), text(random, 16)};
    std::vector<Submit> requests(count);
    for (Submit& request : requests) {
      request.prompt = beginnings[random.below(beginnings.size())];
      const auto own = text(random, random.below(20));
      request.prompt.insert(request.prompt.end(), own.begin(), own.end());
      if (!subject().adapters.empty() && random.below(2) == 0)
        request.adapters = {{source_of(subject().adapters[0]), random.below(2) == 0 ? 1.0f : 0.5f}};
      request.max_tokens = static_cast<int32_t>(4 + random.below(24));
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

TEST_P(WindowEquality, AnswersAreThoseOfWholeTexts) {
  SCOPED_TRACE("seed 91");
  Prng random(91);
  const std::vector<Submit> requests = some_requests(random, 40);
  EngineHostOptions cold = options();
  cold.engine.prefix_cache = false;
  const auto reference = start(whole());
  ASSERT_NE(reference, nullptr);
  const auto want = one_by_one(*reference, requests);
  {
    SCOPED_TRACE("without the prefix cache");
    const auto plain = start(cold);
    ASSERT_NE(plain, nullptr);
    expect_same(one_by_one(*plain, requests), want);
    expect_same(at_once(*plain, requests), want);
  }
  EngineHostOptions roomy = options();
  roomy.engine.kv_cache_bytes = 2000 * block_bytes();
  const auto warm = start(roomy);
  ASSERT_NE(warm, nullptr);
  {
    SCOPED_TRACE("with it");
    expect_same(at_once(*warm, requests), want);
    const auto again = one_by_one(*warm, requests);
    expect_same(again, want);
    for (size_t i = 0; i < again.size(); ++i)
      EXPECT_EQ(again[i].cached_tokens, static_cast<int>(requests[i].prompt.size() - 1) / 16 * 16) << "request " << i;
  }
  EngineHostOptions guessing = options();
  guessing.engine.speculate = Speculation::kLookup;
  const auto guesses = start(guessing);
  ASSERT_NE(guesses, nullptr);
  {
    SCOPED_TRACE("guessed ahead");
    expect_same(at_once(*guesses, requests), want);
    EXPECT_GT(guesses->stats().drafted_tokens, 0u);
  }
}

// Room for the longest sequence and little more.
TEST_P(WindowEquality, CrowdedAndPreemptedAreAlone) {
  SCOPED_TRACE("seed 92");
  Prng random(92);
  std::vector<Submit> requests = some_requests(random, 30);
  for (Submit& request : requests) {  // texts that grow
    request.prompt.resize(std::min<size_t>(20, request.prompt.size()));
    request.max_tokens = 100;
  }
  const auto reference = start(whole());
  ASSERT_NE(reference, nullptr);
  const auto want = one_by_one(*reference, requests);
  for (const bool prefix_cache : {true, false}) {
    EngineHostOptions tight = options();
    tight.engine.prefix_cache = prefix_cache;
    tight.engine.kv_cache_bytes = (subject().tables.blocks_most(kLength) + 20) * block_bytes();
    const auto crowded = start(tight);
    ASSERT_NE(crowded, nullptr);
    // Whether they ever crowd the cache is up to the threads: several chances. Where all
    // layers slide, who is admitted has all that it will ever need.
    const bool grows = subject().full_layers > 0;
    for (int round = 0; round < (grows ? 50 : 2) && crowded->stats().preemptions == 0; ++round)
      expect_same(at_once(*crowded, requests), want);
    EXPECT_EQ(crowded->stats().preemptions > 0, grows);
    EXPECT_EQ(crowded->stats().kv_blocks_used, 0);
  }
}

// What a start takes for so many sequences, and what is had of that.
TEST_P(WindowEquality, ASequenceTakesTheWindowsOfItsSlidingLayers) {
  EngineHostOptions few = options();
  few.engine.prefix_cache = false;
  few.engine.max_sequences = 2;
  const auto windows = start(few);
  ASSERT_NE(windows, nullptr);
  const int64_t places = kLength / 16, window_places = (kWindow - 1 + 15) / 16 + 1 + (kStepTokens + 15) / 16;
  EXPECT_EQ(windows->ledger().used_bytes(MemoryUse::kKv),
            2 * (subject().full_layers * places + subject().sliding_layers * window_places) * kLayerBytes);
  EXPECT_EQ(windows->stats().kv_blocks_total, 2 * places) << "told as of texts of this length";
  Prng random(93);
  Submit request;
  request.prompt = text(random, 100);
  request.max_tokens = 28;
  request.ignore_eos = true;
  const uint64_t id = windows->submit(request);
  int64_t most = 0;
  while (windows->open() > 0) {
    ASSERT_TRUE(windows->take(20'000'000'000));
    most = std::max(most, windows->stats().kv_blocks_used);
  }
  const Answer& answer = windows->answers[{id, 0}];
  EXPECT_EQ(answer.end, EndReason::kLength);
  EXPECT_LE(most, places);
}

// With what is for whole blocks a cache has whole texts, and a note says so.
TEST_P(WindowEquality, SaysWhereWindowsAreWhole) {
  const auto note_of = [this](const EngineHostOptions& options) {
    const auto driver = start(options);
    std::string found;
    if (driver == nullptr) return std::string("it did not start");
    for (const std::string& note : driver->host().notes()) {
      if (note.find("sliding window") != std::string::npos) found = note;
    }
    return found;
  };
  EXPECT_EQ(note_of(options()), "");
  EXPECT_NE(note_of(whole()).find("--kv-events"), std::string::npos);
  EngineHostOptions encoding = options();
  encoding.engine.kv_sharing = KvSharing::kBounded;
  EXPECT_NE(note_of(encoding).find("--kv-sharing"), std::string::npos);
  EngineHostOptions ranks = options();
  ranks.tensor_parallel = 2;
  EXPECT_NE(note_of(ranks).find("--tensor-parallel"), std::string::npos);
  EngineHostOptions device = options();
  device.device = emulated_factory({});
  EXPECT_NE(note_of(device).find("device"), std::string::npos);
  EngineHostOptions short_texts = whole();
  short_texts.engine.max_model_len = kWindow;
  EXPECT_EQ(note_of(short_texts), "") << "no window is shorter than a sequence";
}

// Who makes steps of their own gives one table; a server says what a sequence takes.
TEST_P(WindowEquality, TablesAreTheServersAlone) {
  NullLogSink log;
  const auto host = ModelHost::start(options(), log, {});
  ASSERT_TRUE(host.ok()) << host.error().message;
  EXPECT_EQ((*host)->executor().limits().kv_tables, KvTables());
  const auto driver = start(options());
  ASSERT_NE(driver, nullptr);
  const std::string text = driver->host().banner();
  EXPECT_NE(text.find(" of " + std::to_string(subject().full_layers + subject().sliding_layers) +
                      " layers is that of a window of 16 tokens"),
            std::string::npos)
      << text;
}

// Another budget while requests run: the cache follows, and no answer is another.
TEST_P(WindowEquality, TheCacheFollowsTheBudget) {
  SCOPED_TRACE("seed 94");
  Prng random(94);
  const std::vector<Submit> requests = some_requests(random, 24);
  const auto driver = start(options());
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

INSTANTIATE_TEST_SUITE_P(Models, WindowEquality, testing::Values(size_t{0}, size_t{1}),
                         [](const auto& info) { return std::string(subjects()[info.param].name); });

}  // namespace
}  // namespace loralei::test

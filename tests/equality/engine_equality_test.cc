// SPDX-License-Identifier: Apache-2.0
// The equalities through the real engine, on real kernels: what a request gets depends
// on model, adapters, prompt and parameters alone, not on the prefix cache, on what
// else runs, or on whether it was preempted. The layer program alone (ModelHarness)
// tells what is right.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"
#include "support/engine_driver.h"
#include "support/model_harness.h"

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr int kVocab = 96;

struct Subject {
  const char* name;
  const char* model;
  std::vector<std::string> adapters;
  DType kv;
  int64_t block_bytes;  // of 16 tokens: layers * 2 * kv_heads * head_dim * 16 numbers (int8, fp8: and 16 scales a head)
};

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {
      {"llama_gqa",
       "models/llama-gqa",
       {"gqa-qv-r8", "gqa-all-r16", "gqa-save-embed-tied", "gqa-embed-tied"},
       DType::kF32,
       2 * 2 * 2 * 16 * 16 * 4},
      {"mistral_window", "models/mistral-window", {"mistral-window-r8"}, DType::kF16, 2 * 2 * 2 * 8 * 16 * 2},
      {"gguf_q8_0",
       "models/gguf-llama-q8_0.gguf",
       {"gguf-lora-f32.gguf", "gqa-all-r16"},
       DType::kI8,
       2 * 2 * 2 * (16 + 4) * 16},
      {"qwen3_moe",
       "models/qwen3-moe",
       {"qwen3-moe-attn", "qwen3-moe-experts", "qwen3-moe-down", "qwen3-moe-router"},
       DType::kF32,
       3 * 2 * 2 * 16 * 16 * 4},
      {"gpt_oss",
       "models/gpt-oss",
       {"gpt-oss-attn", "gpt-oss-experts", "gpt-oss-router"},
       DType::kF32,
       2 * 2 * 2 * 16 * 16 * 4},
      {"fp8_kv", "models/llama-gqa", {"gqa-all-r16"}, DType::kF8, 2 * 2 * 2 * (16 + 4) * 16},
  };
  return all;
}

class EngineEquality : public testing::TestWithParam<size_t> {
 protected:
  const Subject& subject() const { return subjects()[GetParam()]; }

  EngineHostOptions options() const {
    EngineHostOptions options;
    options.model_path = kRoot + subject().model;
    options.threads = 2;
    options.engine.memory_budget_bytes = int64_t{1} << 30;
    options.engine.max_sequences = 6;
    options.engine.step_tokens = 24;
    options.engine.kv_dtype = subject().kv;
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

  std::vector<TokenId> text(Prng& random, size_t count) const {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(3 + random.below(kVocab - 3));
    return tokens;
  }

  // Prompts that begin alike, adapters in several weights, greedy and sampled.
  std::vector<Submit> some_requests(Prng& random, size_t count) const {
    const std::vector<std::vector<TokenId>> beginnings = {text(random, 48), text(random, 33), text(random, 16)};
    std::vector<Submit> requests(count);
    for (Submit& request : requests) {
      request.prompt = beginnings[random.below(beginnings.size())];
      const auto own = text(random, random.below(12));
      request.prompt.insert(request.prompt.end(), own.begin(), own.end());
      static constexpr float kScales[] = {1.0f, 0.5f};
      const uint64_t use = random.below(subject().adapters.size() + 1);
      if (use > 0) {
        const std::string& name = subject().adapters[use - 1];
        // The engine takes such an adapter as it is or not at all.
        const bool replaces = name.find("save") != std::string::npos;
        request.adapters = {{source_of(name), replaces ? 1.0f : kScales[random.below(2)]}};
      }
      request.max_tokens = static_cast<int32_t>(4 + random.below(28));
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

TEST_P(EngineEquality, CachedTogetherAndPreemptedAreColdAndAlone) {
  const uint64_t seed = 81;
  SCOPED_TRACE("seed 81");
  Prng random(seed);
  const std::vector<Submit> requests = some_requests(random, 40);

  EngineHostOptions without = options();
  without.engine.prefix_cache = false;
  const auto cold = start(without);
  ASSERT_NE(cold, nullptr);
  const auto want = one_by_one(*cold, requests);
  for (const Answer& answer : want) {
    EXPECT_EQ(answer.end, EndReason::kLength) << answer.error.message;
    EXPECT_EQ(answer.cached_tokens, 0);
  }
  {
    SCOPED_TRACE("together, without the prefix cache");
    expect_same(at_once(*cold, requests), want);
  }
  EngineHostOptions roomy = options();
  roomy.engine.max_sequences = 64;  // KV for 64 sequences of full length: nothing is evicted
  const auto warm = start(roomy);
  ASSERT_NE(warm, nullptr);
  {
    SCOPED_TRACE("together, with it");
    expect_same(at_once(*warm, requests), want);
  }
  {
    SCOPED_TRACE("again, everything cached");
    const auto again = one_by_one(*warm, requests);
    expect_same(again, want);
    for (size_t i = 0; i < again.size(); ++i) {
      EXPECT_EQ(again[i].cached_tokens, static_cast<int>(requests[i].prompt.size() - 1) / 16 * 16) << "request " << i;
    }
  }
  EngineHostOptions tight = options();
  tight.engine.kv_cache_bytes = 12 * subject().block_bytes;
  tight.engine.max_model_len = 96;
  tight.whole_windows = true;  // else nobody would ever be short of blocks (window_equality_test)
  const auto crowded = start(tight);
  ASSERT_NE(crowded, nullptr);
  {
    SCOPED_TRACE("with KV for two or three sequences only");
    // Requests arrive while earlier ones run: whether they ever crowd the cache is up to
    // the threads, so give them several chances.
    for (int round = 0; round < 50 && crowded->stats().preemptions == 0; ++round)
      expect_same(at_once(*crowded, requests), want);
    EXPECT_GT(crowded->stats().preemptions, 0u);
  }
}

// Guesses are checked by the rows of one step: the same bits as one row a step.
TEST_P(EngineEquality, GuessedAheadIsOneByOne) {
  SCOPED_TRACE("seed 83");
  Prng random(83);
  std::vector<Submit> requests = some_requests(random, 24);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 3 == 0) continue;
    // Few likely tokens: a text that repeats itself, more or less.
    for (uint64_t letter = 0; letter <= i % 3; ++letter)
      requests[i].sampling.logit_bias.emplace_back(static_cast<TokenId>(10 + letter), 30.0f);
    requests[i].sampling.frequency_penalty = i % 4 == 1 ? 0.5f : 0.0f;
  }
  EngineHostOptions guessing = options();
  guessing.engine.speculate = Speculation::kOff;
  const auto plain = start(guessing);
  guessing.engine.speculate = Speculation::kLookup;
  guessing.engine.step_tokens = 48;
  const auto guesses = start(guessing);
  ASSERT_TRUE(plain != nullptr && guesses != nullptr);
  const auto want = one_by_one(*plain, requests);
  expect_same(one_by_one(*guesses, requests), want);
  EXPECT_LT(guesses->stats().steps, plain->stats().steps);
  expect_same(at_once(*guesses, requests), want);
  const EngineStats stats = guesses->stats();
  EXPECT_GT(stats.drafted_tokens, stats.accepted_tokens);
  EXPECT_GT(stats.accepted_tokens, 100u);
  EXPECT_EQ(plain->stats().drafted_tokens, 0u);
}

TEST_P(EngineEquality, GreedyTextIsThatOfTheLayerProgram) {
  HarnessOptions plain;
  plain.kv_dtype = subject().kv;
  plain.table = select_op_table("").value();  // the engine's
  auto harness = ModelHarness::open(kRoot + subject().model, plain);
  ASSERT_TRUE(harness.ok()) << harness.error().message;
  const auto driver = start(options());
  ASSERT_NE(driver, nullptr);
  Prng random(82);
  SCOPED_TRACE("seed 82");
  std::vector<Submit> requests = some_requests(random, 16);
  for (Submit& request : requests) request.sampling.temperature = 0;
  const auto got = at_once(*driver, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<AdapterRef> uses;
    for (const AdapterUse& use : requests[i].adapters) {
      const auto name = std::find_if(subject().adapters.begin(), subject().adapters.end(),
                                     [&](const std::string& one) { return source_of(one) == use.source; });
      ASSERT_NE(name, subject().adapters.end());
      auto adapter = (*harness)->load(kRoot + "adapters/" + *name);
      ASSERT_TRUE(adapter.ok()) << adapter.error().message;
      uses.push_back({*adapter, use.scale, 0});
    }
    auto want = (*harness)->greedy(requests[i].prompt, uses, requests[i].max_tokens);
    ASSERT_TRUE(want.ok()) << want.error().message;
    EXPECT_EQ(got[i].tokens, *want) << "request " << i;
  }
  const EngineStats stats = driver->stats();
  EXPECT_GT(std::min({stats.products_s, stats.attention_s, stats.lora_s}), 0);
  EXPECT_GT(stats.step_s, stats.products_s + stats.attention_s + stats.lora_s);
}

// KV is shared by content of the adapters, weights and salt, never by name
// or prompt alone.
TEST_P(EngineEquality, OtherScalesAndSaltsShareNothing) {
  const auto driver = start(options());
  ASSERT_NE(driver, nullptr);
  Prng random(83);
  SCOPED_TRACE("seed 83");
  Submit request;
  request.prompt = text(random, 50);
  request.max_tokens = 12;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  std::vector<Submit> kinds(5, request);  // the base, three weights, a salt
  kinds[1].adapters = {{source_of(subject().adapters[0]), 0.5f}};
  kinds[2].adapters = {{source_of(subject().adapters[0]), 1.0f}};
  kinds[3].adapters = {{source_of(subject().adapters[0]), -1.0f}};
  kinds[4].adapters = {{source_of(subject().adapters[0]), 1.0f}};
  kinds[4].cache_salt = "tenant";
  std::vector<Answer> cold;
  for (const Submit& kind : kinds) cold.push_back(driver->ask(kind));
  for (const Answer& answer : cold) EXPECT_EQ(answer.cached_tokens, 0);
  EXPECT_NE(cold[1].tokens, cold[3].tokens) << "the adapter does nothing";
  EXPECT_EQ(cold[4].tokens, cold[2].tokens);
  for (size_t i = kinds.size(); i-- > 0;) {
    const Answer warm = driver->ask(kinds[i]);
    EXPECT_EQ(warm.cached_tokens, 48) << "kind " << i;
    EXPECT_EQ(warm.tokens, cold[i].tokens) << "kind " << i;
  }
}

TEST_P(EngineEquality, ChoicesDependOnSeedAndNumberAlone) {
  const auto driver = start(options());
  ASSERT_NE(driver, nullptr);
  Prng random(84);
  SCOPED_TRACE("seed 84");
  Submit request;
  request.prompt = text(random, 37);
  request.max_tokens = 20;
  request.ignore_eos = true;
  request.sampling.seed = 4711;
  request.adapters = {{source_of(subject().adapters[0]), 0.5f}};
  const auto choices = [&](int32_t count) {
    Submit several = request;
    several.choices = count;
    const uint64_t id = driver->submit(several);
    driver->collect();
    std::vector<std::vector<TokenId>> texts;
    for (int32_t choice = 0; choice < count; ++choice) texts.push_back(driver->answers[{id, choice}].tokens);
    return texts;
  };
  const auto alone = choices(4);
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(alone[1], alone[2]);
  for (const Submit& other : some_requests(random, 12)) driver->submit(other);
  EXPECT_EQ(choices(4), alone) << "in company";
  for (const Submit& other : some_requests(random, 5)) driver->submit(other);
  const auto fewer = choices(2);
  EXPECT_EQ(fewer[0], alone[0]);
  EXPECT_EQ(fewer[1], alone[1]);
}

INSTANTIATE_TEST_SUITE_P(, EngineEquality, testing::Range(size_t{0}, subjects().size()),
                         [](const auto& info) { return std::string(subjects()[info.param].name); });

// Asked for or not: a scaled model serves what it says, and as much as its
// scaling reaches.
TEST(ModelLength, GoesAsFarAsTheScaling) {
  const auto length = [](const std::string& model, int64_t asked) {
    EngineHostOptions options;
    options.model_path = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/" + model;
    options.threads = 1;
    options.engine.max_model_len = asked;
    NullLogSink log;
    const auto host = EngineHost::start(options, log, {});
    if (host.ok()) return (*host)->engine().max_model_len();
    EXPECT_EQ(host.error().code, ErrorCode::kInvalidArgument) << host.error().message;
    return int64_t{0};
  };
  EXPECT_EQ(length("rope-linear", 0), 128);
  EXPECT_EQ(length("rope-linear", 512), 512);
  EXPECT_EQ(length("rope-linear", 513), 0);
  EXPECT_EQ(length("rope-yarn", 0), 128);
  EXPECT_EQ(length("rope-yarn", 129), 0);
  EXPECT_EQ(length("gguf-rope-yarn.gguf", 0), 128);
  EXPECT_EQ(length("rope-dynamic", 0), 32);
  EXPECT_EQ(length("rope-dynamic", 4096), 4096);
  EXPECT_EQ(length("llama2", 129), 0);
}

}  // namespace
}  // namespace loralei::test

// SPDX-License-Identifier: Apache-2.0
// A model that several ranks compute answers as one rank does: greedy text, with adapters
// of every kind, cached and preempted or not. (Logits against transformers: golden_test.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/prng.h"
#include "base/units.h"
#include "formats/base_model.h"
#include "support/engine_driver.h"
#include "support/made_files.h"

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr int kVocab = 96;

struct Subject {
  const char* name;
  const char* model;
  int ranks = 2;
  std::vector<std::string> adapters;
  std::optional<DType> quantise;
  Activations activations = Activations::kF32;  // of bf16 models: sums in another order flip no rounding
  bool int8_adapters = false;
};

// Four heads and a width that divides by four into whole blocks, tiles and groups of int8
// factors; a vocabulary that does not, and whose logits take more than one gather.
struct WideModel {
  WideModel() {
    write_small_model(folder.path(), {.hidden = 128, .heads = 4, .kv_heads = 4, .ffn = 512, .vocab = 3003});
    const ModelConfig config = open_base_model(folder.path())->config;
    write_adapter(folder.path() + "/adapters/wide-r40", config, {.rank = 40, .seed = 6});
    write_adapter(folder.path() + "/adapters/wide-r3", config,
                  {.rank = 3, .seed = 5, .targets = {"q_proj", "down_proj"}});
    write_wide_adapter(folder.path() + "/adapters/wide-vocab", config, 7);
  }
  TempFolder folder;
};
const std::string& wide_model() {
  static const WideModel model;
  return model.folder.path();
}

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {
      {"llama_gqa",
       "models/llama-gqa",
       2,
       {"gqa-qv-r8", "gqa-all-r16", "gqa-rank-pattern", "gqa-rslora", "gqa-lora-bias", "gqa-embed-tied",
        "gqa-head-tied", "gqa-save-embed-tied", "gqa-save-head-tied", "gqa-save-norms", "gqa-tokens-tied",
        "gqa-resized-tied"}},
      {"llama2_of_4", "models/llama2", 4, {"llama2-save-all", "llama2-r64", "llama2-embed-head", "llama2-r1"}},
      {"qwen2", "models/qwen2", 2, {"qwen2-bias-all", "qwen2-fused", "qwen2-qv-r8"}},
      {"qwen3", "models/qwen3", 2, {"qwen3-all-r4", "qwen3-save-qk-norm"}},
      {"granite", "models/granite", 2, {"granite-all-r4", "granite-save-all"}},
      {"smollm3", "models/smollm3", 2, {"smollm3-all-r4"}},
      {"phi3", "models/phi3", 2, {"phi3-all-r4", "phi3-qkv-bias"}},
      {"glm", "models/glm", 2, {"glm-all-r4", "glm-qk-bias"}},
      {"glm4", "models/glm4", 2, {"glm4-all-r4", "glm4-lora-bias", "glm4-save-norms"}},
      {"starcoder2", "models/starcoder2", 2, {"starcoder2-all-r4", "starcoder2-mlp-r4"}},
      {"gemma", "models/gemma2", 2, {"gemma2-all-r4", "gemma2-save-norms", "gemma2-resized"}},
      {"gemma3", "models/gemma3", 2, {"gemma3-all-r4", "gemma3-save-norms"}},
      {"mistral_window", "models/mistral-window", 2, {"mistral-window-r8"}},
      {"gguf_f16", "models/gguf-llama-f16.gguf", 2, {"gguf-lora-f32.gguf", "gguf-lora-norms.gguf"}},
      {"gguf_q8_0", "models/gguf-qwen3-q8_0.gguf", 2, {"qwen3-all-r4"}, {}, Activations::kAuto},
      {"quant_q8_0", "models/qwen3", 2, {"qwen3-all-r4"}, DType::kQ8_0, Activations::kAuto},
      {"wide", "", 4, {"wide-r40", "wide-r3", "wide-vocab"}},
      {"wide_int8_adapters", "", 2, {"wide-r40", "wide-r3"}, {}, Activations::kF32, true},
      {"wide_q4_0", "", 4, {"wide-r40", "wide-r3"}, DType::kQ4_0, Activations::kAuto},
  };
  return all;
}

std::string root_of(const Subject& subject) { return *subject.model == 0 ? wide_model() + "/" : kRoot; }

EngineHostOptions options_of(const Subject& subject, int ranks) {
  EngineHostOptions options;
  options.model_path = root_of(subject) + subject.model;
  options.engine.adapter_int8 = subject.int8_adapters;
  options.threads = 2;
  options.tensor_parallel = ranks;
  options.quantise = subject.quantise;
  options.activations = subject.activations;
  options.engine.memory_budget_bytes = kGiB;
  options.engine.max_sequences = 6;
  options.engine.step_tokens = 24;
  options.engine.kv_dtype = DType::kF32;
  return options;
}

std::unique_ptr<EngineDriver> start(const Subject& subject, EngineHostOptions options) {
  auto driver = std::make_unique<EngineDriver>(options);
  if (!driver->running()) return nullptr;
  for (const std::string& name : subject.adapters)
    driver->command(AdapterAction::kLoad, name, root_of(subject) + "adapters/" + name);
  driver->collect();
  for (const auto& [ticket, reply] : driver->replies) EXPECT_TRUE(reply.status.ok()) << reply.status.error().message;
  return driver;
}

std::vector<TokenId> text(Prng& random, size_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(3 + random.below(kVocab - 10));
  return tokens;
}

bool replaces(const std::string& adapter) {
  return adapter.find("save") != std::string::npos || adapter.find("tokens") != std::string::npos ||
         adapter.find("resized") != std::string::npos || adapter.find("vocab") != std::string::npos ||
         adapter.find("norms") != std::string::npos;
}

Submit greedy(std::vector<TokenId> prompt, std::vector<AdapterUse> adapters) {
  Submit request;
  request.prompt = std::move(prompt);
  request.adapters = std::move(adapters);
  request.max_tokens = 12;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  request.sampling.logprobs = 1;
  return request;
}

// The base, every adapter alone, and sums of two.
std::vector<Submit> some_requests(const Subject& subject, Prng& random) {
  const std::vector<TokenId> beginning = text(random, 37);
  std::vector<Submit> requests = {greedy(beginning, {})};
  std::vector<std::string> summable;
  for (const std::string& name : subject.adapters) {
    requests.push_back(greedy(beginning, {{source_of(name), 1.0f}}));
    if (!replaces(name)) summable.push_back(name);
  }
  for (size_t i = 1; i < summable.size(); ++i) {
    std::vector<TokenId> prompt = beginning;
    const auto more = text(random, random.below(20));
    prompt.insert(prompt.end(), more.begin(), more.end());
    requests.push_back(greedy(prompt, {{source_of(summable[i]), 0.5f}, {source_of(summable[i - 1]), 0.75f}}));
  }
  return requests;
}

bool differ(const Answer& a, const Answer& b) { return a.tokens != b.tokens || a.logprobs != b.logprobs; }

class Ranks : public testing::TestWithParam<size_t> {
 protected:
  const Subject& subject() const { return subjects()[GetParam()]; }
};

TEST_P(Ranks, AnswerAsOneDoes) {
  const uint64_t seed = 91;
  SCOPED_TRACE("seed 91");
  Prng random(seed);
  const std::vector<Submit> requests = some_requests(subject(), random);
  const auto one = start(subject(), options_of(subject(), 1));
  const auto several = start(subject(), options_of(subject(), subject().ranks));
  ASSERT_TRUE(one != nullptr && several != nullptr);
  EXPECT_EQ(several->host().weights().fingerprint(), one->host().weights().fingerprint());
  EXPECT_NE(several->engine().fingerprint(), one->engine().fingerprint());
  const std::vector<Answer> want = one_by_one(*one, requests), got = one_by_one(*several, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    EXPECT_EQ(want[i].end, EndReason::kLength) << want[i].error.message;
    EXPECT_EQ(got[i].end, EndReason::kLength) << got[i].error.message;
    EXPECT_EQ(got[i].tokens, want[i].tokens);
    ASSERT_EQ(got[i].logprobs.size(), want[i].logprobs.size());
    for (size_t t = 0; t < want[i].logprobs.size(); ++t) EXPECT_NEAR(got[i].logprobs[t], want[i].logprobs[t], 2e-3f);
    if (i > 0) {
      EXPECT_TRUE(differ(got[i], got[0])) << "the adapter does nothing";
    }
  }
  // Together, with prefixes found again: the same bits.
  const std::vector<Answer> together = at_once(*several, requests);
  int cached = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_FALSE(differ(together[i], got[i])) << "request " << i;
    cached += together[i].cached_tokens;
  }
  EXPECT_GT(cached, 0);
  several->ledger().check();
}

INSTANTIATE_TEST_SUITE_P(, Ranks, testing::Range(size_t{0}, subjects().size()),
                         [](const auto& info) { return std::string(subjects()[info.param].name); });

// Versions come and go between steps, in one order for all ranks.
TEST(RankAdapters, ComeAndGoWhileRequestsRun) {
  const Subject& subject = subjects()[0];
  SCOPED_TRACE("seed 92");
  Prng random(92);
  const auto driver = start(subject, options_of(subject, 2));
  ASSERT_NE(driver, nullptr);
  const std::vector<TokenId> prompt = text(random, 20);
  std::vector<Answer> want;
  for (size_t i = 0; i < 4; ++i) want.push_back(driver->ask(greedy(prompt, {{source_of(subject.adapters[i]), 1.0f}})));
  for (int round = 0; round < 30; ++round) {
    std::vector<std::pair<uint64_t, size_t>> asked;
    for (int i = 0; i < 4; ++i) {
      const size_t adapter = random.below(4);
      asked.emplace_back(driver->submit(greedy(prompt, {{source_of(subject.adapters[adapter]), 1.0f}})), adapter);
    }
    const std::string& name = subject.adapters[random.below(4)];
    driver->command(AdapterAction::kLoad, name, kRoot + "adapters/" + name, true);  // again, as a new version
    driver->collect();
    for (const auto& [id, adapter] : asked) {
      ASSERT_NE(id, 0u);
      EXPECT_FALSE(differ(driver->answers[{id, 0}], want[adapter])) << "round " << round;
    }
  }
}

// With int8 factors each rank has whole groups of 64: of a model that is wide enough.
TEST(RankAdapters, Int8FactorsThatBordersCutAreRefused) {
  const Subject& subject = subjects()[0];
  EngineHostOptions options = options_of(subject, 2);
  options.engine.adapter_int8 = true;
  EngineDriver driver(options);
  ASSERT_TRUE(driver.running());
  driver.command(AdapterAction::kLoad, "gqa-all-r16", kRoot + "adapters/gqa-all-r16");
  driver.collect();
  Prng random(93);
  const Answer answer = driver.ask(greedy(text(random, 20), {{source_of("gqa-all-r16"), 1.0f}}));
  EXPECT_EQ(answer.end, EndReason::kError);
  EXPECT_NE(answer.error.message.find("groups of 64"), std::string::npos) << answer.error.message;
  EXPECT_EQ(driver.ask(greedy(text(random, 20), {})).end, EndReason::kLength);
}

std::string refusal(const EngineHostOptions& options) {
  NullLogSink log;
  const auto host = EngineHost::start(options, log, {});
  return host.ok() ? "" : host.error().message;
}

TEST(RankStart, RefusesWhatDoesNotGoTogether) {
  EngineHostOptions options = options_of(subjects()[0], 2);
  EXPECT_EQ(refusal(options), "");
  options.tensor_parallel = 3;
  EXPECT_NE(refusal(options).find("What would do: 2."), std::string::npos) << refusal(options);
  options.tensor_parallel = 0;
  EXPECT_NE(refusal(options).find("--tensor-parallel is a number of ranks"), std::string::npos) << refusal(options);
  options.tensor_parallel = 2;
  options.device.budget = []() -> Result<DeviceBudget> { return internal_error("not asked"); };
  options.device.make = [](const DeviceRequest&) -> Result<DeviceBackend> { return internal_error("not asked"); };
  EXPECT_NE(
      refusal(options).find("ranks on several GPUs are built and tested on emulated ones alone, and stay off until "
                            "GPUs have proved them"),
      std::string::npos)
      << refusal(options);
  options.device = {};
  options.engine.kv_sharing = KvSharing::kBorrow;
  EXPECT_NE(refusal(options).find("--kv-sharing borrow"), std::string::npos) << refusal(options);
  options.engine.kv_sharing = KvSharing::kExact;
  options.engine.assist_helpers = 1;
  EXPECT_NE(refusal(options).find("--assist-helpers"), std::string::npos) << refusal(options);
  options.engine.assist_helpers = -1;
  options.engine.cold_start = ColdStart::kLayered;
  EXPECT_EQ(refusal(options), "") << "the default is not stated";
  options.engine.cold_start_stated = true;
  EXPECT_NE(refusal(options).find("--cold-start layered"), std::string::npos) << refusal(options);
}

TEST(RankStart, TheLedgerHasThePartsOfAll) {
  const Subject& subject = subjects()[0];
  const auto one = start(subject, options_of(subject, 1)), two = start(subject, options_of(subject, 2));
  ASSERT_TRUE(one != nullptr && two != nullptr);
  const EngineStats whole = one->stats(), parts = two->stats();
  // The embedding, which is the head too, is in both ranks.
  const int64_t embedding = int64_t{kVocab} * 64 * 2;
  EXPECT_GE(parts.weights_bytes, whole.weights_bytes + embedding);
  EXPECT_LE(parts.weights_bytes, whole.weights_bytes + embedding + 4096) << "and norms";
  EXPECT_NE(two->host().banner().find("2 ranks of 1 thread each"), std::string::npos) << two->host().banner();
  const uint64_t ticket = two->set_memory(kGiB / 2);
  two->collect();
  EXPECT_NE(two->replies[ticket].status.error().message.find("--tensor-parallel"), std::string::npos);
}

}  // namespace
}  // namespace loralei::test

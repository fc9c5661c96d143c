// SPDX-License-Identifier: Apache-2.0
// What tests of the emulated device share: golden models with adapters of all kinds,
// random requests with them, and a slow link. One thread; plain values.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "device/emulated/link.h"
#include "support/engine_driver.h"

namespace loralei::test {

inline const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
struct Subject {
  const char* name;
  const char* model;
  std::vector<std::string> adapters;
  std::vector<std::string> summed;  // two of them that may be used together
  bool int8 = false;
};

// Of the models that GPUs compute, too.
inline std::vector<Subject> gpu_subjects() {
  const std::vector<std::string> gqa = {"gqa-qv-r8",        "gqa-all-r16",      "gqa-embed-tied",
                                        "gqa-rank-pattern", "gqa-lora-bias",    "gqa-save-embed-tied",
                                        "gqa-tokens-tied",  "gqa-resized-tied", "gqa-save-head-tied",
                                        "gqa-save-norms",   "gqa-alora"};
  return {
      {"gqa", "models/llama-gqa", gqa, {"gqa-qv-r8", "gqa-all-r16"}},
      {"gqa_int8", "models/llama-gqa", gqa, {"gqa-qv-r8", "gqa-all-r16"}, true},
      {"untied",
       "models/llama2",
       {"llama2-r64", "llama2-r1", "llama2-embed-head", "llama2-save-all", "llama2-tokens-both", "llama2-added-head"},
       {"llama2-r64", "llama2-r1"}},
      {"biases", "models/llama-bias", {"llama-bias-all", "llama-bias-lora-bias"}, {}},
      {"head_norms", "models/qwen3", {"qwen3-all-r4", "qwen3-save-qk-norm"}, {}},
  };
}

inline std::vector<Subject> subjects() {
  std::vector<Subject> all = gpu_subjects();
  all.push_back({"multiplied", "models/granite", {"granite-all-r4", "granite-save-all"}, {}});
  all.push_back({"norms_behind", "models/olmo2", {"olmo2-all-r4", "olmo2-save-norms"}, {}});
  all.push_back({"fused", "models/phi3", {"phi3-all-r4", "phi3-qkv-bias"}, {}});
  all.push_back({"interleaved", "models/glm4", {"glm4-all-r4", "glm4-lora-bias", "glm4-save-norms"}, {}});
  all.push_back({"ungated", "models/starcoder2", {"starcoder2-all-r4", "starcoder2-mlp-r4"}, {}});
  all.push_back({"capped", "models/gemma2", {"gemma2-all-r4", "gemma2-save-norms", "gemma2-resized"}, {}});
  all.push_back({"two_ropes", "models/gemma3", {"gemma3-all-r4", "gemma3-save-norms"}, {}});
  return all;
}

inline EngineHostOptions options_of(const Subject& subject) {
  EngineHostOptions options;
  options.model_path = kGolden + subject.model;
  options.threads = 2;
  options.engine.memory_budget_bytes = int64_t{1} << 30;
  options.engine.max_sequences = 6;
  options.engine.step_tokens = 24;
  options.engine.max_model_len = 96;
  options.engine.kv_cache_bytes = 8 << 20;
  options.engine.adapter_int8 = subject.int8;
  return options;
}

inline std::unique_ptr<EngineDriver> start(const EngineHostOptions& options, const Subject& subject) {
  auto driver = std::make_unique<EngineDriver>(options);
  if (!driver->running()) return nullptr;
  for (const std::string& name : subject.adapters)
    driver->command(AdapterAction::kAdd, name, kGolden + "adapters/" + name);
  driver->collect();
  return driver;
}

// With one adapter, none, or two in a sum; half of them greedy.
inline std::vector<Submit> some_requests(Prng& random, const Subject& subject, size_t count) {
  std::vector<Submit> requests(count);
  for (Submit& request : requests) {
    const auto length = 5 + random.below(40);
    for (uint64_t i = 0; i < length; ++i) request.prompt.push_back(static_cast<TokenId>(3 + random.below(87)));
    const uint64_t use = random.below(subject.adapters.size() + 2);
    if (use < subject.adapters.size()) {
      request.adapters = {{source_of(subject.adapters[use]), 1.0f}};
      for (const TokenId token : {5, 17, 9}) request.prompt.push_back(token);  // which invoke the activated one
      for (uint64_t i = random.below(6); i > 0; --i) request.prompt.push_back(static_cast<TokenId>(20 + i));
    } else if (use == subject.adapters.size() && !subject.summed.empty()) {
      request.adapters = {{source_of(subject.summed[0]), 0.5f}, {source_of(subject.summed[1]), 0.75f}};
    }
    request.max_tokens = static_cast<int32_t>(2 + random.below(12));
    request.ignore_eos = true;
    request.sampling.temperature = random.below(2) == 0 ? 0.0f : 1.0f;
    request.sampling.seed = random();
    request.sampling.logprobs = 0;
  }
  return requests;
}

inline void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].end, EndReason::kLength) << got[i].error.message;
    EXPECT_EQ(got[i].tokens, want[i].tokens) << "request " << i;
    EXPECT_EQ(got[i].logprobs, want[i].logprobs) << "request " << i;
  }
}

// A link that takes up to `most_us` for each layer.
class SlowLink final : public Link {
 public:
  SlowLink(uint64_t seed, uint64_t most_us) : random_(seed), most_us_(most_us) {}
  Status copy(std::span<const LinkPart> parts, int64_t, const std::stop_token&) override {
    std::this_thread::sleep_for(std::chrono::microseconds(random_.below(most_us_)));
    for (const LinkPart& part : parts) std::memcpy(part.to, part.from, static_cast<size_t>(part.bytes));
    return {};
  }

 private:
  Prng random_;
  const uint64_t most_us_;
};

}  // namespace loralei::test

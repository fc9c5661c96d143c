// SPDX-License-Identifier: Apache-2.0
// Streamed weights = resident weights, bit for bit: the same steps through the same layer
// program, with prompts in chunks, steps without logits, adapters in the batch, every
// format, and reads that fail now and then.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/prng.h"
#include "base/units.h"
#include "support/model_harness.h"
#include "sys/faulty_block_reader.h"

namespace loralei::test {
namespace {

namespace fs = std::filesystem;
const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

// A model and whether its 16-bit matrices are streamed shrunk.
struct Case {
  std::string model;
  StreamShrink shrink = StreamShrink::kOff;
};

class Streamed : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("loralei-streamed-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<ModelHarness> open(HarnessOptions options) {
    auto harness = ModelHarness::open(kGolden + "models/" + GetParam().model, options);
    EXPECT_TRUE(harness.ok()) << (harness.ok() ? "" : harness.error().message);
    return harness.ok() ? std::move(harness).value() : nullptr;
  }
  // At least two panels, which are single row tiles here, with a page before
  // and after each.
  HarnessOptions streaming(int64_t weight_bytes) {
    const auto named = [](const char* part) { return GetParam().model.find(part) != std::string::npos; };
    const bool wide = named("_m.gguf") || named("fp8");  // 256 inputs
    HarnessOptions options;
    const bool shrunk = GetParam().shrink == StreamShrink::kOn;  // a decoded panel more
    options.stream_folder = folder_.string();
    options.stream_shrink = GetParam().shrink;
    const bool hybrid = named("qwen3_5");  // vectors are a larger part
    const int64_t least = wide            ? 130
                          : has_experts() ? 80
                          : hybrid        ? 64
                          : shrunk        ? 52
                                          : 44;  // two experts in whole pages
    options.streaming.weight_bytes = std::max(weight_bytes, least * kKiB);
    return options;
  }
  static bool has_experts() {
    const std::string& model = GetParam().model;
    return model.find("moe") != std::string::npos || model.find("mixtral") != std::string::npos ||
           model.find("gpt-oss") != std::string::npos;
  }
  // A prompt of one sequence in two chunks, the first without logits, beside another
  // sequence's rows.
  static std::vector<std::vector<Span>> steps(const ModelConfig& config, Prng& prng) {
    const auto tokens = [&](int count) {
      std::vector<TokenId> ids;
      for (int i = 0; i < count; ++i)
        ids.push_back(static_cast<TokenId>(prng.below(static_cast<uint64_t>(config.vocab))));
      return ids;
    };
    const auto span = [&](int sequence, int position, int count, std::vector<int> logits_at) {
      Span one;
      one.sequence = sequence;
      one.position = position;
      one.tokens = tokens(count);
      one.logits_at = std::move(logits_at);
      return one;
    };
    return {{span(0, 0, 21, {})},
            {span(0, 21, 9, {8}), span(1, 0, 5, {0, 4})},
            {span(0, 30, 1, {0}), span(1, 5, 1, {0})},
            {span(1, 6, 40, {39})}};
  }

  fs::path folder_;
};
std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const char* model : {"llama2",
                            "llama-gqa",
                            "mistral-window",
                            "qwen2",
                            "qwen3",
                            "granite",
                            "smollm3",
                            "phi3",
                            "glm4",
                            "starcoder2",
                            "olmo2",
                            "olmo3",
                            "gemma",
                            "gemma2",
                            "gemma3",
                            "qwen3_5",
                            "qwen3_5-types",
                            "qwen3_5-moe",
                            "qwen3-moe",
                            "qwen2-moe",
                            "gpt-oss",
                            "gpt-oss-mxfp4",
                            "dtype-bf16",
                            "dtype-f16",
                            "gguf-mixtral-q4_0.gguf",
                            "gguf-gpt-oss-f16.gguf",
                            "gguf-llama-q8_0.gguf",
                            "gguf-llama-q4_0.gguf",
                            "gguf-llama-q4_1.gguf",
                            "gguf-llama-q5_0.gguf",
                            "gguf-llama-q5_1.gguf",
                            "gguf-llama-q4_k_m.gguf",
                            "gguf-qwen2-q5_k_m.gguf",
                            "gguf-qwen3-q8_0.gguf",
                            "gguf-phi3-q8_0.gguf",
                            "gguf-qwen3_5-q8_0.gguf",
                            "gguf-glm-q8_0.gguf",
                            "gguf-llama-q2_k_m.gguf",
                            "gguf-llama-q3_k_m.gguf",
                            "gguf-llama-iq4_nl.gguf",
                            "gguf-qwen2-iq4_xs_m.gguf",
                            "gguf-llama-mxfp4.gguf",
                            "gptq-sym",
                            "gptq-asym",
                            "awq",
                            "awq-moe",
                            "awq-phi3",
                            "gptq-phi3",
                            "ct-int4-phi3",
                            "ct-int8",
                            "fp8-block"})
    cases.push_back({model, StreamShrink::kOff});
  for (const char* model :
       {"llama2", "llama-gqa", "mistral-window", "qwen2", "qwen3", "granite", "smollm3", "olmo2", "olmo3", "gemma",
        "gemma2", "gemma3", "phi3", "glm4", "starcoder2", "qwen3_5", "mixtral", "dtype-bf16", "dtype-f16"})
    cases.push_back({model, StreamShrink::kOn});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Models, Streamed, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.model;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name + (info.param.shrink == StreamShrink::kOn ? "_shrunk" : "");
});

TEST_P(Streamed, GivesTheResidentLogits) {
  auto resident = open({});
  ASSERT_NE(resident, nullptr);
  Prng prng(3);
  const auto batches = steps(resident->config(), prng);
  std::vector<StepOutput> want;
  for (const auto& batch : batches) want.push_back(resident->run(batch).value());
  const int64_t whole = resident->weights().resident_bytes();
  int streamed = 0;
  for (int64_t budget : {24 * kKiB, whole / 3 + 20 * kKiB, whole * 2 / 3 + 20 * kKiB}) {
    HarnessOptions options = streaming(budget);
    auto harness = open(options);
    ASSERT_NE(harness, nullptr);
    streamed += harness->weights().streams();
    if (harness->weights().streams() && !has_experts()) {
      const StreamShape shape = harness->weights().stream_shape();
      EXPECT_EQ(shape.streamed_bytes < shape.decoded_bytes, GetParam().shrink == StreamShrink::kOn);
    }
    EXPECT_EQ(harness->weights().fingerprint(), resident->weights().fingerprint());
    for (int round = 0; round < 2; ++round) {
      harness->poison_kv();
      for (size_t i = 0; i < batches.size(); ++i) {
        auto output = harness->run(batches[i]);
        ASSERT_TRUE(output.ok()) << output.error().message;
        EXPECT_EQ(output->logits, want[i].logits) << "step " << i << " budget " << options.streaming.weight_bytes;
      }
    }
  }
  if (whole > 70 * kKiB) {
    EXPECT_GT(streamed, 0);
  }
}

// Experts that are in memory and experts that are read, beside adapters on experts.
TEST(StreamedExperts, GiveTheResidentLogitsWithAdaptersAndSomeAreFoundInMemory) {
  const fs::path folder = fs::path(testing::TempDir()) / ("loralei-streamed-experts-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const std::string path = kGolden + "models/qwen3-moe";
  auto resident = ModelHarness::open(path, {}).value();
  HarnessOptions options;
  options.stream_folder = folder.string();
  options.streaming.weight_bytes = resident->weights().whole_bytes() - 14 * kKiB;
  auto opened = ModelHarness::open(path, options);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const auto streamed = std::move(opened).value();
  ASSERT_TRUE(streamed->weights().streams());
  const auto run = [&](ModelHarness& harness) {
    const Adapter* const experts = harness.load(kGolden + "adapters/qwen3-moe-experts").value();
    const Adapter* const single = harness.load(kGolden + "adapters/qwen3-moe-down").value();
    Prng prng(9);
    std::vector<std::vector<std::vector<float>>> logits;
    for (int step = 0; step < 30; ++step) {
      std::vector<Span> spans(3);
      for (int sequence = 0; sequence < 3; ++sequence) {
        Span& span = spans[static_cast<size_t>(sequence)];
        span.sequence = sequence;
        span.position = step;
        span.tokens = {static_cast<TokenId>(prng.below(static_cast<uint64_t>(harness.config().vocab)))};
        span.logits_at = {0};
      }
      spans[1].adapters = {{experts, 1.0f, 0}};
      spans[2].adapters = {{single, 0.5f, 1}};
      const auto output = harness.run(spans);
      EXPECT_TRUE(output.ok()) << output.error().message;
      if (output.ok()) logits.push_back(output->logits);
    }
    return logits;
  };
  EXPECT_EQ(run(*streamed), run(*resident));
  const ExpertTotals totals = streamed->weights().expert_totals();
  EXPECT_GT(totals.misses, 0);
  // Of a text of one word the experts are mostly the same: as many as have room here.
  for (int step = 0; step < 20; ++step) {
    Span span;
    span.position = 40 + step;
    span.tokens = {5};
    span.logits_at = {0};
    ASSERT_TRUE(streamed->run({span}).ok());
  }
  EXPECT_GT(streamed->weights().expert_totals().hits, totals.hits + 10);
  fs::remove_all(folder);
}

// An adapter with an embedding of its own may have ids that the model's,
// on disk, has not.
TEST(StreamedEmbedding, RowsOfALargerVocabularyAreNotLookedUpInTheModels) {
  const fs::path folder = fs::path(testing::TempDir()) / ("loralei-streamed-embedding-" + std::to_string(::getpid()));
  for (const auto& [model, adapter] :
       {std::pair("llama2", "llama2-resized"), std::pair("llama-gqa", "gqa-resized-tied")}) {
    SCOPED_TRACE(adapter);
    const std::string path = kGolden + "models/" + model;
    auto resident = ModelHarness::open(path, {}).value();
    fs::create_directories(folder);
    HarnessOptions options;
    options.stream_folder = folder.string();
    options.streaming.weight_bytes = 44 * kKiB;
    auto streamed = ModelHarness::open(path, options).value();
    ASSERT_TRUE(streamed->weights().streams());
    const auto run = [&, adapter = adapter](ModelHarness& harness) {
      const Adapter* const resized = harness.load(kGolden + "adapters/" + adapter).value();
      const TokenId beyond = static_cast<TokenId>(harness.config().vocab);
      Span with, without;
      with.tokens = {5, beyond, 7, beyond};
      with.logits_at = {1, 3};
      with.adapters = {{resized, 1.0f, 0}};
      without.sequence = 1;
      without.tokens = {5, 6, 7};
      without.logits_at = {2};
      return harness.run({without, with}).value().logits;
    };
    EXPECT_EQ(run(*streamed), run(*resident));
    fs::remove_all(folder);
  }
}

TEST_P(Streamed, AFailedStepLeavesTheNextOnesRight) {
  auto resident = open({});
  ASSERT_NE(resident, nullptr);
  const int64_t whole = resident->weights().resident_bytes();
  const uint64_t seed = 5;
  Prng prng(seed);
  const auto batches = steps(resident->config(), prng);
  std::vector<StepOutput> want;
  for (const auto& batch : batches) want.push_back(resident->run(batch).value());
  HarnessOptions options = streaming(whole / 2);
  options.streaming.open_reader = [&](const std::string& path, const BlockReaderOptions& reader_options) {
    auto reader = open_block_reader(path, reader_options);
    if (!reader.ok()) return reader;
    return Result<std::unique_ptr<BlockReader>>(
        std::make_unique<FaultyBlockReader>(std::move(reader).value(), prng.below(1u << 30), 0.01));
  };
  auto harness = open(options);
  ASSERT_NE(harness, nullptr);
  int failed = 0;
  for (int round = 0; round < 30; ++round) {
    for (size_t i = 0; i < batches.size(); ++i) {
      for (;;) {  // a failed step is run again, as the engine's next step would
        auto output = harness->run(batches[i]);
        if (output.ok()) {
          ASSERT_EQ(output->logits, want[i].logits) << "seed " << seed << " round " << round << " step " << i;
          break;
        }
        ASSERT_NE(output.error().message.find("injected"), std::string::npos);
        ++failed;
      }
    }
  }
  EXPECT_TRUE(failed > 0 || !harness->weights().streams());
}

}  // namespace
}  // namespace loralei::test

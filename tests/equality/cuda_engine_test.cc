// SPDX-License-Identifier: Apache-2.0
// A whole engine over CudaModel gives the texts of one over Model: prompts in chunks,
// several adapters in a step, prefixes found in the cache, adapters replaced under
// one name. Activations are f32, so the logits of both differ by 10^-6 of their
// size, far less than the best two differ from each other. On the emulated GPU
// (cuda_engine_emulated_test) or a real one (cuda_engine_test, which skips without).
#include <gtest/gtest.h>

#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/cuda_executor.h"
#include "engine/engine_host.h"
#include "model/cuda/step_graphs.h"
#include "support/engine_texts.h"
#include "support/made_files.h"

namespace loralei::test {
namespace {

using Texts = EngineTexts;
constexpr int32_t kBlocks = EngineTexts::kBlocks;

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr const char* kSaved[] = {"gqa-save-head-tied", "gqa-tokens-tied", "gqa-resized-tied"};

void talk(Texts& texts, const std::string& replacement, const std::string& wide) {
  texts.load("a", kRoot + "adapters/gqa-all-r16");
  texts.load("b", kRoot + "adapters/gqa-embed-tied");
  texts.submit(40, 1, {});
  texts.submit(23, 2, {{source_of("a"), 1.0f}});
  texts.submit(9, 3, {{source_of("b"), 0.5f}, {source_of("a"), 0.75f}});
  texts.submit(40, 4, {{source_of("b"), 1.0f}});
  texts.finish();
  texts.submit(40, 1, {});
  texts.finish();
  texts.replace("a", "new", replacement);
  texts.unload("a");
  texts.submit(23, 2, {{source_of("new"), 1.0f}});
  texts.finish();
  // Tensors of their own, beside each other and rows of the model's.
  for (const char* name : kSaved) texts.load(name, kRoot + "adapters/" + name);
  for (const char* name : kSaved) texts.submit(23, 2, {{source_of(name), 1.0f}});
  texts.submit(23, 2, {{source_of("new"), 1.0f}});
  texts.submit(40, 1, {});
  // Drawn, in the ways that need nothing but logits and in one that does.
  SamplingParams warm;
  warm.temperature = 0.9f;
  warm.seed = 77;
  texts.submit(40, 1, {}, warm);
  warm.top_p = 0.8f;
  warm.top_k = 20;
  texts.submit(23, 2, {{source_of("new"), 1.0f}}, warm);
  warm.repetition_penalty = 1.3f;
  texts.submit(23, 2, {{source_of("gqa-save-head-tied"), 1.0f}}, warm);
  texts.load("wide", wide);
  texts.submit(23, 2, {{source_of("wide"), 1.0f}});
  texts.finish();
}

// With factors as they are, and as int8.
class CudaEngineTexts : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Adapters, CudaEngineTexts, testing::Bool(),
                         [](const auto& info) { return info.param ? "int8" : "plain"; });

TEST_P(CudaEngineTexts, AreTheHosts) {
  const CudaDevices devices = cuda_devices();
  if (devices.list.empty()) GTEST_SKIP() << devices.reason;
  auto opened = ModelHarness::open(kRoot + "models/llama-gqa");
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  ModelHarness& harness = **opened;
  const TempFolder folder;
  const std::string replacement = write_adapter(folder.path() + "/replacement", harness.config(),
                                                {.rank = 5, .deviation = 0.3f, .seed = 9, .targets = {"v_proj"}});

  const std::string wide = write_wide_adapter(folder.path() + "/wide", harness.config(), 4);

  const ModelLimits limits = step_limits(EngineTexts::options(harness.config(), GetParam()), harness.config());
  auto host_model = harness.make_model(limits);
  ASSERT_TRUE(host_model.ok()) << host_model.error().message;
  Texts host(
      harness, [&](Ledger& ledger) { return make_host_executor(**host_model, limits, ledger); }, GetParam());
  ASSERT_NO_FATAL_FAILURE(talk(host, replacement, wide));

  CudaModelOptions options;
  options.limits = limits;
  options.activation = DType::kF32;
  auto model = CudaModel::create(harness.config(), harness.weights(), options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  auto kv = CudaKv::create(harness.config(), DType::kF32, kBlocks);
  ASSERT_TRUE(kv.ok()) << kv.error().message;
  Texts device(
      harness, [&](Ledger& ledger) { return make_cuda_executor(**model, *kv, ledger); }, GetParam());
  ASSERT_NO_FATAL_FAILURE(talk(device, replacement, wide));

  EXPECT_TRUE(host.errors.empty() && device.errors.empty());
  EXPECT_EQ(device.tokens, host.tokens);
  EXPECT_EQ(host.tokens.size(), 15u);
  EXPECT_TRUE(std::any_of(host.tokens[15].begin(), host.tokens[15].end(), [&](TokenId token) {
    return token >= harness.config().vocab;
  })) << "no added token was chosen and read";
  EXPECT_NE(host.tokens[2], host.tokens[6]) << "the replaced adapter changes nothing";
  EXPECT_GT(device.cached_tokens, 0);
  EXPECT_GT((*model)->graphs().launched(), 2 * (*model)->graphs().recorded()) << "decode steps are graphs";

  for (const uint64_t id : {7, 8, 9}) EXPECT_NE(host.tokens[id], host.tokens[6]) << "tensors that change nothing";
  EXPECT_NE(host.tokens[12], host.tokens[11]) << "drawn is greedy";
  EXPECT_NE(host.tokens[13], host.tokens[10]) << "drawn is greedy";
  EXPECT_EQ((*model)->adapters().waits(), 0) << "all came before their first step";
}

// What a GPU cannot do ends the request that asked for it and no other.
TEST(CudaEngine, AVocabularyBeyondTheLogitsEndsItsRequestAlone) {
  const CudaDevices devices = cuda_devices();
  if (devices.list.empty()) GTEST_SKIP() << devices.reason;
  auto opened = ModelHarness::open(kRoot + "models/llama-gqa");
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  CudaModelOptions options;
  options.limits = step_limits(EngineTexts::options((*opened)->config()), (*opened)->config());
  options.activation = DType::kF32;
  options.extra_logits_bytes_max = 0;
  auto model = CudaModel::create((*opened)->config(), (*opened)->weights(), options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  auto kv = CudaKv::create((*opened)->config(), DType::kF32, kBlocks);
  ASSERT_TRUE(kv.ok()) << kv.error().message;
  Texts device(**opened, [&](Ledger& ledger) { return make_cuda_executor(**model, *kv, ledger); });
  device.load("resized", kRoot + "adapters/gqa-resized-tied");
  device.load("head", kRoot + "adapters/gqa-save-head-tied");
  device.submit(23, 2, {{source_of("head"), 1.0f}});
  device.submit(23, 2, {{source_of("resized"), 1.0f}});
  device.finish();
  EXPECT_EQ(device.tokens[1].size(), 8u);
  EXPECT_TRUE(device.tokens[2].empty());
  EXPECT_NE(device.errors[2].find("it has a vocabulary of 99 tokens"), std::string::npos) << device.errors[2];
  EXPECT_NE(device.errors[2].find("--max-num-seqs"), std::string::npos) << device.errors[2];
}

EngineHostOptions host_options() {
  EngineHostOptions options;
  options.model_path = kRoot + "models/llama-gqa";
  options.threads = 1;
  options.engine.max_model_len = 96;
  options.engine.max_sequences = 2;
  options.engine.step_tokens = 16;
  options.engine.kv_dtype = DType::kF32;
  options.engine.adapter_rank_max = 16;
  options.engine.memory_budget_bytes = int64_t{2} << 30;  // a process with a driver in it takes some hundred MiB
  options.engine.adapter_bytes = 1 << 20;
  return options;
}

// With --batch-invariant a prompt that is found in the cache has the log-probabilities of
// one that is not, to the bit, though the one is computed in a step of four rows and the
// other in one of 36 (q8_0: more than its class of few).
TEST(CudaEngine, ABatchInvariantHostAnswersFromTheCacheAsFromNothing) {
  const CudaDevices devices = cuda_devices();
  if (devices.list.empty()) GTEST_SKIP() << devices.reason;
  NullLogSink log;
  for (const bool batch_invariant : {true, false}) {
    EngineHostOptions options = host_options();
    options.engine.step_tokens = 64;
    options.quantise = DType::kQ8_0;
    options.device = cuda_factory({.batch_invariant = batch_invariant});
    const auto host = EngineHost::start(options, log, {});
    ASSERT_TRUE(host.ok()) << host.error().message;
    int cached_tokens = 0;
    const auto ask = [&](uint64_t id) {
      Submit request;
      request.id = RequestId{id};
      for (int i = 0; i < 36; ++i) request.prompt.push_back(i * 11 % 90);
      request.max_tokens = 4;
      request.ignore_eos = true;
      request.sampling.temperature = 0;
      request.sampling.logprobs = 0;
      EXPECT_TRUE((*host)->engine().submit(std::move(request)).ok());
      std::vector<float> logprobs;
      for (int waits = 0; waits < 60; ++waits) {
        for (const TokenEvent& event : (*host)->engine().wait_output(1'000'000'000).tokens) {
          if (event.logprobs) logprobs.push_back(event.logprobs->logprob);
          cached_tokens += event.cached_tokens;
          if (event.end != EndReason::kNone) return logprobs;
        }
      }
      return logprobs;
    };
    const std::vector<float> cold = ask(1);
    EXPECT_EQ(cold.size(), 4u);
    EXPECT_EQ(cached_tokens, 0);
    EXPECT_EQ(ask(2) == cold, batch_invariant);
    EXPECT_EQ(cached_tokens, 32);
    EXPECT_EQ((*host)->engine().fingerprint().find("batch-invariant") != std::string::npos, batch_invariant);
  }
}

// A host started with a device, as the program does it: the CPU's texts, and a
// budget that stays.
TEST(CudaEngine, AHostComputesOnADevice) {
  const CudaDevices devices = cuda_devices();
  if (devices.list.empty()) GTEST_SKIP() << devices.reason;
  NullLogSink log;
  EngineHostOptions options = host_options();
  const auto text_of = [&](EngineHost& host) {
    Submit request;
    request.id = RequestId{1};
    for (int i = 0; i < 30; ++i) request.prompt.push_back(i * 11 % 90);
    request.max_tokens = 8;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    EXPECT_TRUE(host.engine().submit(std::move(request)).ok());
    std::vector<TokenId> tokens;
    for (int waits = 0; waits < 60; ++waits) {
      for (const TokenEvent& event : host.engine().wait_output(1'000'000'000).tokens) {
        if (event.has_token) tokens.push_back(event.token);
        if (event.end != EndReason::kNone) return tokens;
      }
    }
    return tokens;
  };
  const auto on_cpu = EngineHost::start(options, log, {});
  ASSERT_TRUE(on_cpu.ok()) << on_cpu.error().message;
  options.device = cuda_factory({.activation = DType::kF32});
  const auto on_device = EngineHost::start(options, log, {});
  ASSERT_TRUE(on_device.ok()) << on_device.error().message;
  const std::vector<TokenId> tokens = text_of(**on_device);
  EXPECT_EQ(tokens.size(), 8u);
  EXPECT_EQ(tokens, text_of(**on_cpu));

  ASSERT_TRUE((*on_device)->engine().command(MemoryCommand{1, int64_t{128} << 20}).ok());
  std::string refused;
  for (int waits = 0; refused.empty() && waits < 60; ++waits) {
    for (const CommandReply& reply : (*on_device)->engine().wait_output(1'000'000'000).replies) {
      ASSERT_FALSE(reply.status.ok());
      refused = reply.status.error().message;
    }
  }
  EXPECT_NE(refused.find("while a GPU computes"), std::string::npos) << refused;

  options.device = cuda_factory({.ordinal = 99});
  const auto nowhere = EngineHost::start(options, log, {});
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.error().message.find("There is no GPU 99"), std::string::npos) << nowhere.error().message;
}

}  // namespace
}  // namespace loralei::test

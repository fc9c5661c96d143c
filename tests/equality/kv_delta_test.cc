// SPDX-License-Identifier: Apache-2.0
// Prefixes that rest as differences by the paper's bounds (--kv-delta paper), through the
// real engine: the same requests in the same order get the same answers, near the exact
// ones.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "base/prng.h"
#include "support/engine_driver.h"

namespace loralei::test {
namespace {

const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr int kVocab = 96, kTexts = 3, kBlocksOfText = 5;
const char* const kAdapters[] = {"gqa-qv-r8", "gqa-all-r16"};

EngineHostOptions options_of(KvSharing sharing, KvDelta delta, int64_t blocks) {
  EngineHostOptions options;
  options.model_path = kGolden + "models/llama-gqa";
  options.threads = 2;
  options.engine.memory_budget_bytes = int64_t{1} << 30;
  options.engine.max_sequences = 6;
  options.engine.step_tokens = 24;
  options.engine.kv_dtype = DType::kF32;
  options.engine.kv_sharing = sharing;
  options.engine.kv_delta = delta;
  options.engine.kv_eviction = KvEviction::kLru;
  options.engine.kv_cache_bytes = blocks * 2 * 2 * 2 * 16 * 16 * 4;
  options.engine.max_model_len = 96;
  return options;
}

// Every text, asked by the base and by both adapters.
std::vector<Submit> some_requests() {
  Prng random(51);
  std::vector<Submit> requests;
  for (int text = 0; text < kTexts; ++text) {
    std::vector<TokenId> tokens(kBlocksOfText * kKvBlockTokens + 1);
    for (TokenId& token : tokens) token = static_cast<TokenId>(3 + random.below(kVocab - 3));
    for (int by = 0; by < 3; ++by) {
      Submit& request = requests.emplace_back();
      request.prompt = tokens;
      if (by > 0) request.adapters = {{source_of(kAdapters[by - 1]), 1.0f}};
      request.max_tokens = 8;
      request.ignore_eos = true;
      request.sampling.logprobs = 0;
    }
  }
  return requests;
}

struct Asked {
  std::vector<Answer> answers;  // of the second time that all is asked
  KvCoded coded;                // before it
  int64_t decoded_blocks = 0;
  std::string banner;
};

// Each request once what came before it rests.
Asked run_of(KvDelta delta) {
  EngineDriver driver(options_of(KvSharing::kBounded, delta, 36));
  Asked run;
  if (!driver.running()) return run;
  for (const char* const name : kAdapters) driver.command(AdapterAction::kAdd, name, kGolden + "adapters/" + name);
  driver.collect();
  const auto requests = some_requests();
  constexpr int kPatience = 60'000;
  int held = 0;
  for (const Submit& request : requests) {
    driver.ask(request);
    held += kBlocksOfText;
    for (int waits = 0; driver.stats().kv_coded.blobs < held && waits < kPatience; ++waits)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(driver.stats().kv_coded.blobs, held);
    if (testing::Test::HasFailure()) return run;
  }
  run.coded = driver.stats().kv_coded;
  run.answers = one_by_one(driver, requests);
  run.decoded_blocks = driver.stats().kv_coded.times.decoded_blocks - run.coded.times.decoded_blocks;
  run.banner = driver.host().banner();
  return run;
}

TEST(KvDeltaEquality, AnswersByThePapersBoundsAreReproducible) {
  const Asked first = run_of(KvDelta::kPaper), again = run_of(KvDelta::kPaper), steps = run_of(KvDelta::kSteps);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(first.coded.delta, KvDelta::kPaper);
  EXPECT_NE(first.banner.find("--kv-delta paper"), std::string::npos) << first.banner;
  EXPECT_EQ(steps.banner.find("--kv-delta"), std::string::npos) << steps.banner;
  EXPECT_GT(first.decoded_blocks, kTexts * kBlocksOfText);
  EXPECT_EQ(first.coded.bytes, again.coded.bytes);
  EXPECT_GT(first.coded.bytes, steps.coded.bytes);
  EXPECT_EQ(first.coded.times.damaged_blocks, 0);
  EngineDriver exact(options_of(KvSharing::kExact, KvDelta::kSteps, 100));
  for (const char* const name : kAdapters) exact.command(AdapterAction::kAdd, name, kGolden + "adapters/" + name);
  exact.collect();
  const std::vector<Answer> want = one_by_one(exact, some_requests());
  double sum = 0, compared = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    EXPECT_EQ(first.answers[i].end, EndReason::kLength) << first.answers[i].error.message;
    EXPECT_EQ(first.answers[i].cached_tokens, kBlocksOfText * kKvBlockTokens);
    EXPECT_EQ(first.answers[i].tokens, again.answers[i].tokens);
    EXPECT_EQ(first.answers[i].logprobs, again.answers[i].logprobs);
    if (first.answers[i].tokens[0] != want[i].tokens[0]) continue;
    sum += std::abs(first.answers[i].logprobs[0] - want[i].logprobs[0]);
    ++compared;
  }
  EXPECT_GE(compared, kTexts);
  EXPECT_LT(sum / compared, 0.3);
}

TEST(KvDeltaEquality, WhatThePaperDoesNotTellIsRefusedAtTheStart) {
  NullLogSink log;
  EngineHostOptions exact = options_of(KvSharing::kExact, KvDelta::kPaper, 100);
  EngineHostOptions bytes = options_of(KvSharing::kBounded, KvDelta::kPaper, 100);
  bytes.engine.kv_dtype = DType::kI8;
  for (const EngineHostOptions& options : {exact, bytes}) {
    const auto host = EngineHost::start(options, log, {});
    ASSERT_FALSE(host.ok());
    EXPECT_NE(host.error().message.find("--kv-delta paper"), std::string::npos) << host.error().message;
  }
}

}  // namespace
}  // namespace loralei::test

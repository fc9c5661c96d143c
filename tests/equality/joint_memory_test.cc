// SPDX-License-Identifier: Apache-2.0
// KV and adapters share one memory, over a real model: texts are those of fixed shares,
// the budget holds at every moment, and what one gives up the other has.
#include <gtest/gtest.h>

#include "base/prng.h"
#include "base/units.h"
#include "support/engine_driver.h"

namespace loralei::test {
namespace {

const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
const std::vector<std::string> kAdapters = {"gqa-qv-r8", "gqa-all-r16", "gqa-rslora"};
constexpr int64_t kBlockBytes = int64_t{2} * 2 * 2 * 16 * 16 * 4;
constexpr int kRequests = 400, kCopies = 40;

// Several of each, so that they do not fit together.
std::string name_of(size_t adapter, size_t copy) { return kAdapters[adapter] + "-" + std::to_string(copy); }

EngineHostOptions options_of(MemorySharing sharing) {
  EngineHostOptions options;
  options.model_path = kGolden + "models/llama-gqa";
  options.threads = 2;
  options.engine.memory_budget_bytes = kGiB;
  options.engine.max_sequences = 2;
  options.engine.step_tokens = 64;
  options.engine.kv_dtype = DType::kF32;
  options.engine.max_model_len = 96;
  options.engine.memory_sharing = sharing;
  return options;
}

// The first half asks the base, the other half adapters.
std::vector<Submit> some_requests(uint64_t seed) {
  Prng random(seed);
  std::vector<Submit> requests;
  for (int i = 0; i < kRequests; ++i) {
    Submit submit;
    for (auto count = 60 + random.below(20); count > 0; --count)
      submit.prompt.push_back(static_cast<TokenId>(3 + random.below(90)));
    submit.max_tokens = static_cast<int32_t>(1 + random.below(4));
    submit.ignore_eos = true;
    if (i >= kRequests / 2)
      submit.adapters.push_back({source_of(name_of(random.below(kAdapters.size()), random.below(kCopies))), 1.0f});
    requests.push_back(std::move(submit));
  }
  return requests;
}

void register_adapters(EngineDriver& driver) {
  for (size_t adapter = 0; adapter < kAdapters.size(); ++adapter) {
    for (size_t copy = 0; copy < kCopies; ++copy)
      driver.command(AdapterAction::kAdd, name_of(adapter, copy), kGolden + "adapters/" + kAdapters[adapter]);
  }
  driver.collect();
}

Status set_memory(EngineDriver& driver, int64_t budget) {
  const uint64_t ticket = driver.set_memory(budget);
  driver.collect();
  return driver.replies[ticket].status;
}

int64_t held_bytes(const EngineStats& stats) {
  return stats.kv_bytes + stats.weights_bytes + stats.scratch_bytes + stats.request_bytes + stats.other_bytes +
         stats.adapter_bytes;
}

TEST(JointMemory, TextsAreTheSameWhileKvAndAdaptersTrade) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const std::vector<Submit> requests = some_requests(kSeed);
  std::vector<std::vector<TokenId>> expected;
  {
    EngineDriver fixed(options_of(MemorySharing::kFixed));
    ASSERT_TRUE(fixed.running());
    register_adapters(fixed);
    for (const Submit& request : requests) expected.push_back(fixed.ask(request).tokens);
    EXPECT_EQ(fixed.stats().kv_bytes, fixed.stats().kv_floor_bytes) << "its share is all it has";
  }
  EngineDriver driver(options_of(MemorySharing::kJoint));
  ASSERT_TRUE(driver.running());
  register_adapters(driver);
  // For KV and adapters, and beside it the part that stays free.
  const auto budget_beside = [&](int64_t bytes) {
    const EngineStats now = driver.stats();
    return (held_bytes(now) - now.kv_bytes - now.adapter_bytes + bytes) * 32 / 31 + 1;
  };
  const auto ask_all = [&] {
    int64_t most_kv = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answer answer = driver.ask(requests[i]);
      EXPECT_EQ(answer.tokens, expected[i]) << "request " << i << ": " << answer.error.message;
      const EngineStats now = driver.stats();
      EXPECT_LE(held_bytes(now), now.memory_budget_bytes);
      EXPECT_GE(now.kv_bytes, now.kv_floor_bytes);
      most_kv = std::max(most_kv, now.kv_bytes);
      driver.ledger().check();
    }
    return most_kv;
  };
  const int64_t two_sequences = 2 * 6 * kBlockBytes;
  for (const int64_t room : {300 * kBlockBytes, 100 * kBlockBytes}) {
    SCOPED_TRACE(room);
    const Status changed = set_memory(driver, budget_beside(room));
    ASSERT_TRUE(changed.ok()) << changed.error().message;
    ASSERT_EQ(driver.stats().streamed_bytes, 0);
    EXPECT_EQ(driver.stats().kv_floor_bytes, two_sequences) << "as at start";
    const int64_t most_kv = ask_all();
    ASSERT_FALSE(HasFailure());
    if (room == 100 * kBlockBytes) break;  // who has what by now is for their worth to say
    // A large process leaves much of its budget free, and adapters have a floor in that.
    const int64_t beside_adapters = room - driver.stats().adapter_floor_bytes;
    EXPECT_GT(most_kv, two_sequences * 4);
    EXPECT_GE(most_kv, beside_adapters - kBlockBytes) << "prefixes fill what nobody has";
    EXPECT_GT(driver.stats().given.kv_to_adapters, 0);
  }
}

}  // namespace
}  // namespace loralei::test

// SPDX-License-Identifier: Apache-2.0
// A long run of the real engine under everything at once: requests of all kinds on
// several adapters, adapters registered, loaded, replaced and unloaded under them,
// cancels, an adapter memory too small for all and a KV cache too small for the crowd.
// Every choice ends exactly once (EngineDriver), greedy texts are those of the layer
// program with the version that answered, and at the end nothing is held.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/prng.h"
#include "support/engine_driver.h"
#include "support/model_harness.h"

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
const std::vector<std::string> kPaths = {"gqa-qv-r8",  "gqa-all-r16",    "gqa-rank-pattern",    "gqa-regex",
                                         "gqa-rslora", "gqa-embed-tied", "gqa-save-embed-tied", "gqa-tokens-tied"};
constexpr int kNames = 6;
constexpr int kTurns = 100'000;
constexpr size_t kCrowd = 40;  // requests in flight at most

class Soak : public testing::Test {
 protected:
  void SetUp() override {
    EngineHostOptions options;
    options.model_path = kRoot + "models/llama-gqa";
    options.threads = 2;
    options.engine.memory_budget_bytes = int64_t{1} << 30;
    options.engine.max_sequences = 8;
    options.engine.max_queued = 30;
    options.engine.step_tokens = 32;
    options.engine.kv_dtype = DType::kF32;
    options.engine.max_model_len = 112;
    options.engine.kv_cache_bytes = int64_t{20} * 2 * 2 * 2 * 16 * 16 * 4;  // twenty blocks of 16 tokens
    options.engine.adapter_bytes = 250'000;
    driver_ = std::make_unique<EngineDriver>(options);
    ASSERT_TRUE(driver_->running());
    HarnessOptions computed;
    computed.table = *select_op_table("", Bf16Inputs::kRounded);  // what the engine takes by itself
    auto harness = ModelHarness::open(options.model_path, computed);
    ASSERT_TRUE(harness.ok()) << harness.error().message;
    harness_ = std::move(*harness);
    for (const std::string& path : kPaths) {
      auto adapter = harness_->load(kRoot + "adapters/" + path);
      ASSERT_TRUE(adapter.ok()) << adapter.error().message;
      versions_[digest_hex((*adapter)->digest)] = *adapter;
    }
  }

  std::string name() { return "a" + std::to_string(random_.below(kNames)); }
  std::string path() { return kRoot + "adapters/" + kPaths[random_.below(kPaths.size())]; }

  void request() {
    Submit submit;
    const TokenId first = static_cast<TokenId>(3 + random_.below(4));  // few beginnings, so that prefixes are shared
    const auto count = 1 + random_.below(70);
    for (uint64_t i = 0; i < count; ++i)
      submit.prompt.push_back(static_cast<TokenId>(3 + (static_cast<uint64_t>(first) * 31 + i * i) % 90));
    submit.max_tokens = static_cast<int32_t>(random_.below(30));
    submit.ignore_eos = random_.below(4) != 0;
    submit.choices = random_.below(5) == 0 ? 3 : 1;
    submit.sampling.temperature = random_.below(3) == 0 ? 0.8f : 0.0f;
    submit.sampling.seed = random_();
    submit.sampling.logprobs = random_.below(6) == 0 ? 2 : -1;
    if (random_.below(8) == 0) submit.cache_salt = "salt";
    if (submit.max_tokens == 0) submit.pooling = Pooling::kMean;
    static constexpr float kScales[] = {1.0f, 0.5f, -0.5f};
    for (uint64_t uses = random_.below(3); uses > 0; --uses)
      submit.adapters.push_back({source_of(name()), kScales[random_.below(3)]});
    if (submit.adapters.size() == 2 && submit.adapters[0].source == submit.adapters[1].source)
      submit.adapters.pop_back();
    const uint64_t id = driver_->submit(submit);
    if (id != 0) requests_[id] = std::move(submit);
  }

  void turn() {
    switch (random_.below(12)) {
      case 0:
        driver_->command(AdapterAction::kAdd, name(), path());
        break;
      case 1:
        driver_->command(AdapterAction::kLoad, name(), path(), true);
        break;
      case 2:
        driver_->command(AdapterAction::kDrop, name());
        break;
      case 3:
        driver_->command(AdapterAction::kPin, name());
        break;
      case 4:
        driver_->command(AdapterAction::kUnpin, name());
        break;
      case 5:
        if (!requests_.empty()) {
          // One of the youngest, most of which still run.
          auto chosen = std::prev(requests_.end());
          std::advance(chosen, -static_cast<ptrdiff_t>(random_.below(std::min<uint64_t>(requests_.size(), 6))));
          driver_->engine().cancel(RequestId{chosen->first});
          cancelled_.insert(chosen->first);
        }
        break;
      default:
        request();
    }
  }

  // The versions an answer names, joined by "+" in the order of the request; empty
  // when one is unknown.
  std::vector<AdapterRef> uses_of(const Submit& request, const std::string& named) const {
    std::vector<AdapterRef> uses;
    size_t begin = 0;
    for (const AdapterUse& use : request.adapters) {
      const size_t end = std::min(named.find('+', begin), named.size());
      const std::string prefix = named.substr(begin, end - begin);
      const auto found = versions_.lower_bound(prefix);
      if (prefix.empty() || found == versions_.end() || !found->first.starts_with(prefix)) return {};
      uses.push_back({found->second, use.scale, 0});
      begin = std::min(end + 1, named.size());
    }
    return uses;
  }

  void check_text(const Submit& request, const Answer& answer) {
    const std::vector<AdapterRef> uses = uses_of(request, answer.version);
    ASSERT_EQ(uses.size(), request.adapters.size()) << "version " << answer.version;
    int saved = 0;
    for (const AdapterRef& use : uses) saved += use.adapter->saved.any() ? 1 : 0;
    if (saved > 1) return;  // which of two replacements wins is the loader's business
    auto want = harness_->greedy(request.prompt, uses, static_cast<int>(answer.tokens.size()));
    ASSERT_TRUE(want.ok()) << want.error().message;
    EXPECT_EQ(answer.tokens, *want);
    ++texts_;
  }

  const uint64_t seed_ = 91;
  Prng random_{seed_};
  std::unique_ptr<EngineDriver> driver_;
  std::unique_ptr<ModelHarness> harness_;
  std::map<std::string, const Adapter*> versions_;  // by digest
  std::map<uint64_t, Submit> requests_;
  std::set<uint64_t> cancelled_;
  int texts_ = 0;
};

TEST_F(Soak, EveryPromiseIsKept) {
  SCOPED_TRACE(testing::Message() << "seed " << seed_);
  for (int i = 0; i < kNames; ++i) driver_->command(AdapterAction::kAdd, "a" + std::to_string(i), path());
  for (int i = 0; i < kTurns; ++i) {
    turn();
    while (driver_->take(0)) {
    }
    while (driver_->open() > kCrowd && driver_->take(1'000'000'000)) {
    }
  }
  for (int i = 0; i < kNames; ++i) driver_->command(AdapterAction::kDrop, "a" + std::to_string(i));
  driver_->collect();

  std::map<EndReason, int> ends;
  for (const auto& [id, submit] : requests_) {
    for (int32_t choice = 0; choice < submit.choices; ++choice) {
      SCOPED_TRACE("request " + std::to_string(id) + ", choice " + std::to_string(choice));
      const Answer& answer = driver_->answers[{id, choice}];
      ASSERT_NE(answer.end, EndReason::kNone);
      ++ends[answer.end];
      EXPECT_TRUE(answer.end != EndReason::kCancelled || cancelled_.contains(id)) << "nobody cancelled it";
      EXPECT_TRUE(answer.end != EndReason::kError || !answer.error.message.empty());
      if (answer.end == EndReason::kLength && submit.pooling == Pooling::kNone) {
        EXPECT_EQ(answer.tokens.size(),
                  std::min<size_t>(static_cast<size_t>(submit.max_tokens), 112 - submit.prompt.size()));
      }
      if (answer.end != EndReason::kError && submit.sampling.temperature == 0 && !answer.tokens.empty())
        check_text(submit, answer);
    }
  }
  EXPECT_GT(texts_, 500);
  EXPECT_GT(ends[EndReason::kLength], 500);
  EXPECT_GT(ends[EndReason::kCancelled], 10);
  const EngineStats stats = driver_->stats();
  EXPECT_EQ(stats.running + stats.waiting + stats.waiting_for_adapter, 0);
  EXPECT_EQ(stats.kv_blocks_used, 0);
  EXPECT_EQ(stats.adapter_bytes, 0) << "all are unloaded";
  EXPECT_TRUE(driver_->adapters().empty());
  EXPECT_GT(stats.prefix_hits, 0u);
  EXPECT_GT(stats.adapter_evictions, 0u);
  RecordProperty("texts", texts_);
  RecordProperty("preemptions", static_cast<int>(stats.preemptions));
}

}  // namespace
}  // namespace loralei::test

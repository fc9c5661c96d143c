// SPDX-License-Identifier: Apache-2.0
// Adapters that read the base's lower layers (--kv-sharing borrow): an answer is the same
// whether what it reads was lent or computed for it, bit for bit, whoever lent it and
// whatever else runs. Salts lend each other nothing, and whoever asks for more than
// borrow allows computes all of its own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "base/prng.h"
#include "codec/kv_steps.h"
#include "engine/kv_steps_file.h"
#include "support/engine_driver.h"
#include "sys/posix_file.h"

namespace loralei::test {
namespace {

const std::string kDemo = std::string(LORALEI_SOURCE_DIR) + "/demo/documents/";
constexpr int kVocab = 256;

struct Reads {
  const char* adapter;
  int32_t layers;  // of five
};
constexpr Reads kReads[] = {{"json", 2}, {"count", 4}, {"list", 5}, {"initials", 0}, {"order", 4}};

class BorrowEquality : public testing::Test {
 protected:
  static constexpr int64_t kRoomy = int64_t{64} << 20;

  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("borrow-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // What is encoded of an int8 cache comes back bit for bit.
  EngineHostOptions options(KvSharing sharing, int64_t kv_bytes) const {
    EngineHostOptions options;
    options.model_path = kDemo + "model";
    options.cache_dir = folder_;
    options.threads = 2;
    options.engine.memory_budget_bytes = int64_t{1} << 30;
    options.engine.max_sequences = 6;
    options.engine.step_tokens = 48;
    options.engine.kv_dtype = DType::kI8;
    options.engine.kv_sharing = sharing;
    options.engine.kv_cache_bytes = kv_bytes;
    options.engine.max_model_len = 192;
    return options;
  }

  std::unique_ptr<EngineDriver> open(const EngineHostOptions& options) {
    auto driver = std::make_unique<EngineDriver>(options);
    if (!driver->running()) return nullptr;
    for (const Reads& reads : kReads)
      driver->command(AdapterAction::kLoad, reads.adapter, kDemo + "adapters/" + reads.adapter);
    driver->collect();
    return driver;
  }

  // As calibrate-kv would have written it, of these depths.
  void measure() {
    const auto driver = open(options(KvSharing::kExact, kRoomy));
    ASSERT_NE(driver, nullptr);
    const ModelConfig& config = driver->host().file().config;
    KvSteps steps;
    steps.fingerprint = driver->host().weights().fingerprint();
    steps.name = "documents";
    steps.layers = config.layers, steps.kv_heads = config.kv_heads, steps.head_dim = config.head_dim;
    steps.factors.assign(static_cast<size_t>(2 * config.layers), 0.25f);
    steps.steps.assign(static_cast<size_t>(2 * config.layers * config.kv_heads * config.head_dim), 0.25f);
    for (const Reads& reads : kReads) {
      KvAdapterSteps& adapter = steps.adapters.emplace_back();
      adapter.name = reads.adapter;
      adapter.borrow_layers = reads.layers;
      for (const auto& status : driver->adapters())
        if (status->source.label == reads.adapter) adapter.digest = status->version;
      ASSERT_EQ(adapter.digest.size(), 64u) << reads.adapter;
    }
    const auto paths = kv_steps_paths(PosixFileSystem(), kDemo + "model", folder_, steps.fingerprint);
    ASSERT_TRUE(write_kv_steps(steps, paths.back()).ok());
  }

  static std::vector<TokenId> text(Prng& random, size_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(3 + random.below(kVocab - 3));
    return tokens;
  }
  static Submit request(const std::vector<TokenId>& prompt, const std::string& adapter) {
    Submit submit;
    submit.prompt = prompt;
    if (!adapter.empty()) submit.adapters = {{source_of(adapter), 1.0f}};
    submit.max_tokens = 6;
    submit.ignore_eos = true;
    submit.sampling.temperature = 1.0f;  // so that a small change of the logits shows
    submit.sampling.seed = 7;
    submit.sampling.logprobs = 0;
    return submit;
  }

  std::filesystem::path folder_;
};

void expect_same(const Answer& got, const Answer& want) {
  EXPECT_EQ(got.end, EndReason::kLength) << got.error.message;
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.logprobs, want.logprobs);
}

TEST_F(BorrowEquality, WhatIsLentIsWhatWouldBeComputed) {
  ASSERT_NO_FATAL_FAILURE(measure());
  Prng random(421);
  SCOPED_TRACE("seed 421");
  const std::vector<TokenId> prompt = text(random, 100);  // six full blocks
  const std::vector<TokenId> beginning(prompt.begin(), prompt.begin() + 51);
  for (const Reads& reads : kReads) {
    SCOPED_TRACE(reads.adapter);
    const auto alone = open(options(KvSharing::kBorrow, kRoomy));
    const auto behind = open(options(KvSharing::kBorrow, kRoomy));
    ASSERT_TRUE(alone != nullptr && behind != nullptr);
    const Answer want = alone->ask(request(prompt, reads.adapter));
    EXPECT_EQ(want.borrowed_tokens, 0);
    const bool borrows = reads.layers > 0;
    behind->ask(request(prompt, ""));
    const Answer lent = behind->ask(request(prompt, reads.adapter));
    expect_same(lent, want);
    EXPECT_EQ(lent.cached_tokens, 0);
    EXPECT_EQ(lent.borrowed_tokens, borrows ? 96 : 0);
    // It is found as its own from then on.
    const Answer again = behind->ask(request(prompt, reads.adapter));
    expect_same(again, want);
    EXPECT_EQ(again.cached_tokens, 96);
    EXPECT_EQ(again.borrowed_tokens, 0);
    // Of a text of which only the beginning was read, the rest is computed.
    const auto partly = open(options(KvSharing::kBorrow, kRoomy));
    partly->ask(request(beginning, ""));
    const Answer some = partly->ask(request(prompt, reads.adapter));
    expect_same(some, want);
    EXPECT_EQ(some.borrowed_tokens, borrows ? 48 : 0);
    // Nothing of it under another salt.
    Submit salted = request(prompt, reads.adapter);
    salted.cache_salt = "other";
    const Answer apart = behind->ask(salted);
    expect_same(apart, want);
    EXPECT_EQ(apart.cached_tokens + apart.borrowed_tokens, 0);
  }
}

// Who borrows lends on, as far as its own layers are the base's.
TEST_F(BorrowEquality, AdaptersLendToThoseThatReadNoMore) {
  ASSERT_NO_FATAL_FAILURE(measure());
  Prng random(422);
  SCOPED_TRACE("seed 422");
  const std::vector<TokenId> prompt = text(random, 70);
  const auto server = open(options(KvSharing::kBorrow, kRoomy));
  const auto cold = open(options(KvSharing::kBorrow, kRoomy));
  ASSERT_TRUE(server != nullptr && cold != nullptr);
  const auto ask = [&](const std::string& adapter) {
    const Answer got = server->ask(request(prompt, adapter));
    Submit apart = request(prompt, adapter);
    apart.cache_salt = adapter;
    expect_same(got, cold->ask(apart));
    return got.borrowed_tokens;
  };
  EXPECT_EQ(ask("json"), 0);   // two layers
  EXPECT_EQ(ask("count"), 0);  // wants four
  EXPECT_EQ(ask("order"), 64);
  EXPECT_EQ(ask("initials"), 0);
  EXPECT_EQ(ask("list"), 0);  // wants all
}

TEST_F(BorrowEquality, WhoAsksForLessThanBorrowComputesItsOwn) {
  ASSERT_NO_FATAL_FAILURE(measure());
  Prng random(423);
  SCOPED_TRACE("seed 423");
  const std::vector<TokenId> prompt = text(random, 90);
  const auto exact = open(options(KvSharing::kExact, kRoomy));
  const auto server = open(options(KvSharing::kBorrow, kRoomy));
  ASSERT_TRUE(exact != nullptr && server != nullptr);
  const Answer own = exact->ask(request(prompt, "json"));
  server->ask(request(prompt, ""));
  const Answer borrows = server->ask(request(prompt, "json"));
  EXPECT_EQ(borrows.borrowed_tokens, 80);
  EXPECT_NE(borrows.logprobs, own.logprobs) << "the adapter acts in all layers, or in none";
  for (const KvSharing sharing : {KvSharing::kExact, KvSharing::kLossless, KvSharing::kBounded}) {
    Submit strict = request(prompt, "json");
    strict.kv_sharing = sharing;
    expect_same(server->ask(strict), own);
  }
  expect_same(server->ask(request(prompt, "")), exact->ask(request(prompt, "")));
  // Nor does one whose scale was not measured, or that reports its prompt.
  Submit scaled = request(prompt, "json"), reported = request(prompt, "json");
  scaled.adapters.front().scale = 0.5f;
  reported.prompt_logprobs = true;
  for (const Submit& other : {scaled, reported}) {
    const Answer got = server->ask(other);
    expect_same(got, exact->ask(other));
    EXPECT_EQ(got.borrowed_tokens, 0);
  }
}

// Many at once, in little memory: chunks, evictions, preemptions, encoded prefixes.
TEST_F(BorrowEquality, TogetherInLittleMemoryAreAloneAndCold) {
  ASSERT_NO_FATAL_FAILURE(measure());
  const uint64_t seed = 424;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng random(seed);
  const std::vector<std::vector<TokenId>> texts = {text(random, 100), text(random, 70), text(random, 40)};
  std::vector<Submit> requests;
  for (int i = 0; i < 60; ++i) {
    std::vector<TokenId> prompt = texts[random.below(texts.size())];
    const auto own = text(random, random.below(20));
    prompt.insert(prompt.end(), own.begin(), own.end());
    const size_t use = random.below(std::size(kReads) + 2);
    requests.push_back(request(prompt, use < std::size(kReads) ? kReads[use].adapter : ""));
    requests.back().max_tokens = static_cast<int32_t>(2 + random.below(24));
    requests.back().sampling.seed = random();
  }
  EngineHostOptions without = options(KvSharing::kBorrow, kRoomy);
  without.engine.prefix_cache = false;
  const auto cold = open(without);
  ASSERT_NE(cold, nullptr);
  const std::vector<Answer> want = one_by_one(*cold, requests);
  // A block: K and V of five layers in int8, and streams at two levels.
  for (const int64_t kv_bytes : {kRoomy, int64_t{1} << 20}) {
    SCOPED_TRACE("KV of " + std::to_string(kv_bytes) + " bytes");
    const auto server = open(options(KvSharing::kBorrow, kv_bytes));
    ASSERT_NE(server, nullptr);
    for (int round = 0; round < 3; ++round) {
      const std::vector<Answer> got = at_once(*server, requests);
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE("request " + std::to_string(i));
        expect_same(got[i], want[i]);
      }
    }
    EXPECT_GT(server->stats().borrowed_tokens, 0u);
  }
}

// What the base read a while ago, and rests encoded alone, is lent all the same. Of a
// float cache, since int8 without loss takes hardly less: so the answer is near.
TEST_F(BorrowEquality, WhatRestsEncodedIsLent) {
  ASSERT_NO_FATAL_FAILURE(measure());
  const uint64_t seed = 426;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng random(seed);
  const std::vector<TokenId> prompt = text(random, 100);
  EngineHostOptions floats = options(KvSharing::kBorrow, int64_t{3} << 20);
  floats.engine.kv_dtype = DType::kF16;
  floats.engine.kv_eviction = KvEviction::kLru;
  EngineHostOptions without = floats;
  without.engine.prefix_cache = false;
  const auto cold = open(without);
  ASSERT_NE(cold, nullptr);
  for (const char* const adapter : {"json", "list", "order"}) {
    SCOPED_TRACE(adapter);
    Submit asked = request(prompt, adapter);
    asked.max_tokens = 1;
    const Answer want = cold->ask(asked);
    const auto server = open(floats);
    ASSERT_NE(server, nullptr);
    int32_t blobs = 0;
    const auto ask_and_rest = [&](const std::vector<TokenId>& tokens) {
      server->ask(request(tokens, ""));
      blobs += static_cast<int32_t>(tokens.size()) / kKvBlockTokens;
      for (int waited_ms = 0; server->stats().kv_coded.blobs < blobs && waited_ms < 10'000; ++waited_ms)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    ask_and_rest(prompt);
    // So many others that its blocks go, and fewer than would take the blobs' place.
    const auto others = static_cast<size_t>(server->stats().kv_blocks_total) * kKvBlockTokens * 5 / 4;
    for (size_t tokens = 0; tokens < others; tokens += 160) ask_and_rest(text(random, 160));
    const KvCodedTimes before = server->stats().kv_coded.times;
    const Answer got = server->ask(asked);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_NEAR(got.logprobs.at(0), want.logprobs.at(0), 0.2);
    EXPECT_EQ(got.borrowed_tokens, 96);
    EXPECT_GT(server->stats().kv_coded.times.decoded_blocks, before.decoded_blocks);
  }
}

// What comes back from disk lends what was computed, or nothing: there the stream is no
// part of a blob.
TEST_F(BorrowEquality, WhatCameFromDiskLendsNoOtherStream) {
  ASSERT_NO_FATAL_FAILURE(measure());
  const uint64_t seed = 425;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng random(seed);
  const std::vector<std::vector<TokenId>> texts = {text(random, 100), text(random, 90), text(random, 80)};
  std::vector<Submit> requests;
  for (int i = 0; i < 60; ++i) {
    const size_t use = random.below(2 * std::size(kReads));  // half of them the base's
    requests.push_back(request(texts[random.below(texts.size())], use < std::size(kReads) ? kReads[use].adapter : ""));
  }
  EngineHostOptions without = options(KvSharing::kBorrow, kRoomy);
  without.engine.prefix_cache = false;
  const auto cold = open(without);
  ASSERT_NE(cold, nullptr);
  const std::vector<Answer> want = one_by_one(*cold, requests);
  uint64_t borrowed = 0;
  int64_t restored = 0;
  for (int life = 0; life < 8; ++life) {
    SCOPED_TRACE("life " + std::to_string(life));
    EngineHostOptions kept = options(KvSharing::kBorrow, (600 + 200 * static_cast<int64_t>(random.below(4))) << 10);
    kept.engine.kv_dir = folder_ / "kv";
    kept.engine.kv_dir_bytes = int64_t{64} << 20;
    const auto server = open(kept);
    ASSERT_NE(server, nullptr);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      expect_same(server->ask(requests[i]), want[i]);
    }
    borrowed += server->stats().borrowed_tokens;
    restored += server->stats().kv_restored_blocks;
    // Other lives find what these texts begin with, and not all of it.
    if (life % 3 == 2) std::filesystem::remove_all(folder_ / "kv");
  }
  EXPECT_GT(borrowed, 0u);
  EXPECT_GT(restored, 100);
}

}  // namespace
}  // namespace loralei::test

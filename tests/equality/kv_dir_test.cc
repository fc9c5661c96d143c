// SPDX-License-Identifier: Apache-2.0
// Prefixes on disk (--kv-dir), through the real engine: answers are those of a cache that
// keeps nothing, however often prefixes went to disk and came back, across restarts, with
// files that were harmed meanwhile, and never somebody else's.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/prng.h"
#include "support/engine_driver.h"

namespace loralei::test {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr int kVocab = 96;
const char* const kAdapters[] = {"gqa-qv-r8", "gqa-all-r16"};

struct Kind {
  const char* name;
  DType kv;
  KvSharing sharing;
  int64_t block_bytes;
};
constexpr Kind kKinds[] = {
    {"f32", DType::kF32, KvSharing::kExact, 2 * 2 * 2 * 16 * 16 * 4},
    {"int8", DType::kI8, KvSharing::kExact, 2 * 2 * 2 * (16 + 4) * 16},
    {"int8_lossless", DType::kI8, KvSharing::kLossless, 2 * 2 * 2 * (16 + 4) * 16},
};

class KvDir : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const fs::path memory = "/dev/shm";  // a disk's syncs take minutes in all
    std::error_code ignored;
    folder_ = (::access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path()) /
              ("kv-dir-" + std::to_string(getpid()));
    fs::remove_all(folder_, ignored);
  }
  void TearDown() override { fs::remove_all(folder_); }

  EngineHostOptions options(int64_t blocks, bool keeps = true) const {
    EngineHostOptions options;
    options.model_path = kGolden + "models/llama-gqa";
    options.threads = 2;
    options.engine.memory_budget_bytes = int64_t{1} << 30;
    options.engine.max_sequences = 6;
    options.engine.step_tokens = 24;
    options.engine.kv_dtype = GetParam().kv;
    options.engine.kv_sharing = GetParam().sharing;
    options.engine.kv_cache_bytes = blocks * GetParam().block_bytes;
    options.engine.max_model_len = 96;
    if (keeps) options.engine.kv_dir = folder_;
    options.engine.kv_dir_bytes = int64_t{64} << 20;
    return options;
  }

  static std::unique_ptr<EngineDriver> open(const EngineHostOptions& options) {
    auto driver = std::make_unique<EngineDriver>(options);
    if (!driver->running()) return nullptr;
    for (const char* const name : kAdapters) driver->command(AdapterAction::kAdd, name, kGolden + "adapters/" + name);
    driver->collect();
    return driver;
  }

  static std::vector<Submit> some_requests(uint64_t seed, int count) {
    Prng random(seed);
    const auto text = [&](size_t size) {
      std::vector<TokenId> tokens(size);
      for (TokenId& token : tokens) token = static_cast<TokenId>(3 + random.below(kVocab - 3));
      return tokens;
    };
    const std::vector<std::vector<TokenId>> beginnings = {text(50), text(34), text(17), text(60)};
    std::vector<Submit> requests(static_cast<size_t>(count));
    for (Submit& request : requests) {
      request.prompt = beginnings[random.below(beginnings.size())];
      const auto own = text(random.below(10));
      request.prompt.insert(request.prompt.end(), own.begin(), own.end());
      const uint64_t use = random.below(std::size(kAdapters) + 1);
      if (use > 0) request.adapters = {{source_of(kAdapters[use - 1]), random.below(2) == 0 ? 1.0f : 0.5f}};
      if (random.below(4) == 0) request.cache_salt = "somebody";
      request.max_tokens = static_cast<int32_t>(2 + random.below(20));
      request.ignore_eos = true;
      request.sampling.temperature = 1.0f;
      request.sampling.seed = random();
      request.sampling.logprobs = 0;
    }
    return requests;
  }

  static void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      EXPECT_EQ(got[i].end, EndReason::kLength) << got[i].error.message;
      EXPECT_EQ(got[i].tokens, want[i].tokens);
      EXPECT_EQ(got[i].logprobs, want[i].logprobs);
    }
  }

  // Some bytes of every file are others.
  void harm_files(Prng& random) const {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_)) {
      if (!entry.is_regular_file() || entry.path().extension() != ".kv") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const auto size = static_cast<uint64_t>(entry.file_size());
      for (int changed = 0; changed < 20 && size > 4096; ++changed) {
        file.seekp(static_cast<std::streamoff>(128 + random.below(size - 128)));
        file.put(static_cast<char>(random.below(256)));
      }
    }
  }

  fs::path folder_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, KvDir, testing::ValuesIn(kKinds),
                         [](const testing::TestParamInfo<Kind>& info) { return std::string(info.param.name); });

TEST_P(KvDir, WhatWasComputedIsFoundAfterARestart) {
  const auto requests = some_requests(31, 24);
  SCOPED_TRACE("seed 31");
  const auto want = one_by_one(*open(options(200, false)), requests);
  {
    const auto first = open(options(200));
    ASSERT_NE(first, nullptr);
    expect_same(one_by_one(*first, requests), want);
    EXPECT_EQ(first->stats().kv_restored_blocks, 0);
  }
  const auto second = open(options(200));
  ASSERT_NE(second, nullptr);
  const auto got = one_by_one(*second, requests);
  expect_same(got, want);
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i].cached_tokens, static_cast<int>(requests[i].prompt.size() - 1) / 16 * 16) << "request " << i;
  EXPECT_GT(second->stats().kv_restored_blocks, 20);
  ASSERT_TRUE(second->stats().kv_disk);
  EXPECT_GT(second->stats().kv_disk->found_records, 20);
}

TEST_P(KvDir, RandomTrafficInLittleMemoryWithRestartsAndHarmIsCold) {
  const uint64_t seed = 32;
  SCOPED_TRACE("seed 32");
  Prng random(seed);
  const auto requests = some_requests(seed, 40);
  const auto want = one_by_one(*open(options(200, false)), requests);
  int64_t restored = 0;
  for (int life = 0; life < 6; ++life) {
    SCOPED_TRACE("life " + std::to_string(life));
    const auto server = open(options(static_cast<int64_t>(9 + random.below(20))));
    ASSERT_NE(server, nullptr);
    // What leaves memory comes back from disk as well; some ask at once, some are
    // cancelled.
    for (int cancelled = 0; cancelled < 8; ++cancelled) {
      const uint64_t id = server->submit(requests[random.below(requests.size())]);
      if (random.below(2) == 0) server->take(0);
      server->engine().cancel(RequestId{id});
    }
    server->collect();
    expect_same(life % 2 == 0 ? at_once(*server, requests) : one_by_one(*server, requests), want);
    restored += server->stats().kv_restored_blocks;
    if (life >= 3) harm_files(random);
  }
  EXPECT_GT(restored, 100);
}

TEST_P(KvDir, NobodyElsesIsFound) {
  Submit request = some_requests(33, 1).front();
  request.adapters = {{source_of("gqa-all-r16"), 1.0f}};
  request.cache_salt = "mine";
  request.prompt.resize(49, 5);
  open(options(200))->ask(request);
  const auto server = open(options(200));
  const auto cold = open(options(200, false));
  Submit salted = request, other = request, scaled = request, base = request;
  salted.cache_salt = "yours";
  other.adapters = {{source_of("gqa-qv-r8"), 1.0f}};
  scaled.adapters = {{source_of("gqa-all-r16"), 0.5f}};
  base.adapters.clear();
  for (const Submit& one : {salted, other, scaled, base}) {
    const Answer got = server->ask(one);
    EXPECT_EQ(got.cached_tokens, 0);
    expect_same({got}, {cold->ask(one)});
  }
  const Answer own = server->ask(request);
  EXPECT_EQ(own.cached_tokens, 48);
  expect_same({own}, {cold->ask(request)});
}

// The same files of model and adapters, and other numbers of them.
TEST_P(KvDir, WhatIsComputedInAnotherWayFindsNothing) {
  const auto requests = some_requests(35, 8);
  one_by_one(*open(options(200)), requests);
  EngineHostOptions quantised = options(200), wide = options(200), plain = options(200), int8 = options(200);
  quantised.quantise = DType::kQ8_0;
  wide.quantise = DType::kQ8_0;
  wide.activations = Activations::kF32;
  plain.activations = Activations::kF32;
  int8.engine.adapter_int8 = true;
  for (EngineHostOptions other : {quantised, wide, plain, int8}) {
    const auto server = open(other);
    ASSERT_NE(server, nullptr);
    const auto got = one_by_one(*server, requests);
    EXPECT_EQ(server->stats().kv_restored_blocks, 0);
    other.engine.kv_dir.clear();
    expect_same(got, one_by_one(*open(other), requests));
  }
}

TEST_P(KvDir, AnotherCacheFormatOrASecondServerFindsNothing) {
  const auto requests = some_requests(34, 6);
  {
    const auto first = open(options(200));
    one_by_one(*first, requests);
    // The folder of one format is one server's at a time.
    NullLogSink log;
    auto second = EngineHost::start(options(200), log, {});
    ASSERT_FALSE(second.ok());
    EXPECT_NE(second.error().message.find(folder_.string()), std::string::npos) << second.error().message;
  }
  EngineHostOptions others = options(200);
  others.engine.kv_dtype = DType::kBF16;
  others.engine.kv_sharing = KvSharing::kExact;
  others.engine.kv_cache_bytes = int64_t{4} << 20;
  const auto server = open(others);
  ASSERT_NE(server, nullptr);
  one_by_one(*server, requests);
  EXPECT_EQ(server->stats().kv_restored_blocks, 0);
}

}  // namespace
}  // namespace loralei::test

// SPDX-License-Identifier: Apache-2.0
// A phone's day on a small model in every mode: what is found again, and that memory by
// use stays within what there is, in every step.
#include "bench/prefix_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <sstream>

#include "bench/generate.h"
#include "kv/block_pool.h"

namespace loralei {
namespace {

constexpr PrefixMode kExact = {.name = "exact"}, kNone = {.name = "none", .prefix_cache = false};
constexpr PrefixMode kBounded = {
    .name = "bounded", .sharing = KvSharing::kBounded, .eviction = KvEviction::kUtility, .context = true};
constexpr PrefixMode kNoDelta = {.name = "no_delta", .eviction = KvEviction::kUtility, .context = true};
constexpr PrefixMode kDensity = {.name = "density", .sharing = KvSharing::kBounded, .eviction = KvEviction::kDensity};

class PrefixRunTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cache_ = std::filesystem::path(testing::TempDir()) / ("loralei-prefix-" + std::to_string(::getpid()));
    std::filesystem::create_directories(cache_);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(cache_); }

  PrefixRunTest() {
    const auto model = generated_model(cache_.string(), "llama-nano", "bf16", {});
    CHECK(model.ok());
    options_.host.model_path = *model;
    options_.host.threads = 2;
    options_.host.engine.memory_budget_bytes = int64_t{256} << 20;
    options_.host.engine.adapter_bytes = int64_t{8} << 20;
    options_.host.engine.speculate = Speculation::kOff;
    for (int number = 0; number < 5; ++number) {
      const auto adapter = generated_adapter(cache_.string(), "llama-nano", "all", 8, number);
      CHECK(adapter.ok());
      options_.adapters.push_back(*adapter);
    }
    const auto config = bench_shape("llama-nano");
    CHECK(config.ok());
    options_.block_bytes = kv_block_bytes({config->layers, config->kv_heads, config->head_dim, DType::kF16});
    options_.tokens_max = scaled_length(1024 + kPrefixAnswerMost, kScale);
    options_.think_s = 2e-3;
    options_.day_s = 1e-4;
    options_.kv_blocks = scaled_length(4096, kScale) / kKvBlockTokens;
  }

  static std::vector<PrefixRequest> requests(PrefixTask task, size_t count) {
    return prefix_requests(AppChances::drawn(1), {.task = task, .scale = kScale, .requests = count, .seed = 4});
  }
  PrefixRun run(const PrefixMode& mode, std::span<const PrefixRequest> asked, MemoryTrace* trace = nullptr) {
    auto run = run_prefix(options_, mode, asked, trace, log_);
    EXPECT_TRUE(run.ok()) << run.error().message;
    return run.ok() ? *std::move(run) : PrefixRun();
  }

  static constexpr double kScale = 0.25;
  static inline std::filesystem::path cache_;
  NullLogSink log_;
  PrefixRunOptions options_;
};

int64_t sum(const std::vector<int32_t>& tokens) { return std::accumulate(tokens.begin(), tokens.end(), int64_t{0}); }

TEST_F(PrefixRunTest, WhereNothingLeavesAllIsFoundThatCouldBeAndWithoutACacheNothing) {
  options_.kv_blocks = 4000;
  const auto config = bench_shape("llama-nano");
  const PrefixTexts texts(config->vocab, {}, options_.seed);
  for (const PrefixTask task : {PrefixTask::kConversation, PrefixTask::kWriting}) {
    const auto asked = requests(task, 60);
    const PrefixRun exact = run(kExact, asked);
    ASSERT_EQ(exact.first_ms.size(), asked.size());
    EXPECT_DOUBLE_EQ(static_cast<double>(sum(exact.cached_tokens)) / static_cast<double>(sum(exact.prompt_tokens)),
                     findable_share(asked, texts));
    EXPECT_GT(sum(exact.cached_tokens), 0);
    EXPECT_EQ(sum(run(kNone, asked).cached_tokens), 0);
    for (size_t i = 0; i < asked.size(); ++i) EXPECT_EQ(exact.prompt_tokens[i], asked[i].prompt_tokens());
  }
}

// Sampled in every step, in every mode, while the pool is full most of the time.
TEST_F(PrefixRunTest, MemoryByUseStaysWithinTheBudgetInEveryStep) {
  for (const PrefixTask task : {PrefixTask::kConversation, PrefixTask::kWriting}) {
    const auto asked = requests(task, 100);
    for (const PrefixMode& mode : {kNone, kExact, kBounded, kNoDelta, kDensity}) {
      SCOPED_TRACE(std::string(kPrefixTaskNames[static_cast<size_t>(task)]) + ", " + mode.name);
      MemoryTrace trace;
      const PrefixRun ran = run(mode, asked, &trace);
      ASSERT_GE(trace.samples().size(), asked.size());
      size_t full = 0, encoded = 0;
      for (const MemorySample& sample : trace.samples()) {
        ASSERT_EQ(sample.total, options_.kv_blocks);
        ASSERT_EQ(sample.kv_bytes, options_.kv_blocks * options_.block_bytes);
        ASSERT_LE(sample.used_bytes, sample.budget_bytes);
        ASSERT_EQ(sample.budget_bytes, options_.host.engine.memory_budget_bytes);
        ASSERT_GT(sample.leased, 0);  // a step computes something of somebody
        ASSERT_GE(sample.raw, 0);
        ASSERT_GE(sample.pages, 0);
        ASSERT_GE(sample.free(), 0);
        ASSERT_LE(sample.blob_bytes, sample.pages * options_.block_bytes);
        full += sample.free() * 8 < sample.total ? 1 : 0;
        encoded += sample.pages > 0 ? 1 : 0;
      }
      EXPECT_EQ(samples_beyond(trace, options_.kv_blocks * options_.block_bytes), 0);
      EXPECT_EQ(full > trace.samples().size() / 2, mode.prefix_cache);
      EXPECT_EQ(encoded > 0, mode.sharing == KvSharing::kBounded);
      EXPECT_EQ(ran.coded.times.damaged_blocks, 0);
      EXPECT_EQ(ran.coded.times.decoded_blocks > 0, mode.sharing == KvSharing::kBounded);
    }
  }
}

// What rests encoded is found where blocks alone had no room for it.
TEST_F(PrefixRunTest, TheSameMemoryHoldsMoreEncoded) {
  const auto asked = requests(PrefixTask::kConversation, 150);
  options_.think_s = 5e-3;
  EXPECT_GT(sum(run(kDensity, asked).cached_tokens), sum(run(kExact, asked).cached_tokens));
}

TEST_F(PrefixRunTest, WhatMemoryHasNoRoomForIsRefused) {
  options_.kv_blocks = 1 << 20;
  const auto refused = run_prefix(options_, kExact, requests(PrefixTask::kConversation, 2), nullptr, log_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
}

TEST(MemoryTrace, TellsStepsThatUseMoreThanThereIs) {
  const MemorySample within{.total = 10,
                            .leased = 4,
                            .raw = 3,
                            .pages = 2,
                            .blob_bytes = 150,
                            .kv_bytes = 1000,
                            .used_bytes = 5000,
                            .budget_bytes = 5000};
  const auto beyond = [&](const auto& change) {
    MemoryTrace trace;
    trace.add(within);
    trace.add(within);
    MemorySample changed = within;
    change(changed);
    trace.add(changed);
    return samples_beyond(trace, 1000);
  };
  EXPECT_EQ(beyond([](MemorySample&) {}), 0);
  EXPECT_EQ(beyond([](MemorySample& sample) { sample.used_bytes = 5001; }), 1);
  EXPECT_EQ(beyond([](MemorySample& sample) { sample.kv_bytes = 1001; }), 1);
  EXPECT_EQ(beyond([](MemorySample& sample) { sample.leased = 6; }), 1);
  EXPECT_EQ(beyond([](MemorySample& sample) { sample.raw = -1; }), 1);
  EXPECT_EQ(beyond([](MemorySample& sample) { sample.blob_bytes = 201; }), 1);
}

TEST(MemoryTrace, IsALineAStepWhosePartsAreTheWhole) {
  MemoryTrace trace;
  trace.add({.at_ns = 2'000'000'000,
             .total = 10,
             .leased = 4,
             .raw = 3,
             .pages = 2,
             .blob_bytes = 150,
             .kv_bytes = 1000,
             .used_bytes = 5000,
             .budget_bytes = 6000});
  trace.add({.at_ns = 3'500'000'000,
             .total = 10,
             .leased = 10,
             .raw = 0,
             .pages = 0,
             .blob_bytes = 0,
             .kv_bytes = 1000,
             .used_bytes = 5001,
             .budget_bytes = 6000});
  const auto commas = [](const std::string& line) { return std::count(line.begin(), line.end(), ','); };
  const std::string text = memory_csv("s1.writing.bounded", trace);
  EXPECT_EQ(text,
            "s1.writing.bounded,0.000000,1000,400,300,200,150,100,5000,6000\n"
            "s1.writing.bounded,1.500000,1000,1000,0,0,0,0,5001,6000\n");
  EXPECT_EQ(2 * commas(memory_csv_head()), commas(text));
  const Chart plot = memory_plot("of a run", trace);
  ASSERT_EQ(plot.series.size(), 5u);
  for (const ChartSeries& series : plot.series) ASSERT_EQ(series.points.size(), 2u);
  EXPECT_DOUBLE_EQ(plot.series[1].points[0].second, 900e-6);
  EXPECT_DOUBLE_EQ(plot.series[1].points[1].first, 1.5);
  EXPECT_EQ(memory_csv("none", MemoryTrace()), "");
}

}  // namespace
}  // namespace loralei

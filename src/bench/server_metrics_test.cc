// SPDX-License-Identifier: Apache-2.0
#include "bench/server_metrics.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "bench/load_rows.h"

namespace loralei {
namespace {

constexpr const char* kPage =
    "# HELP loralei_steps_total Forward passes.\n# TYPE loralei_steps_total counter\nloralei_steps_total 12\n"
    "loralei_request_wait_seconds_total{cause=\"rows\"} 1.5\n"
    "loralei_request_wait_seconds_total{cause=\"kv\"} 2.5\r\n"
    "loralei_prefix_cache_queries_total 100\nloralei_prefix_cache_hits_total 25\n"
    "loralei_kv_blocks{state=\"total\"} 10\nloralei_kv_blocks{state=\"used\"} 5\nloralei_kv_blocks{state=\"cached\"} "
    "2\n"
    "loralei_memory_bytes{use=\"kv_cache\"} 1e3\nloralei_memory_bytes{use=\"adapters\"} 70\n"
    "loralei_memory_bytes{use=\"adapters_max\"} 90\nloralei_adapters_idle_bytes 30\n"
    "loralei_requests_running 3\nloralei_requests_waiting 4\nloralei_requests_waiting_for_adapter 2\n";

TEST(ServerMetrics, AreReadAsTheServerWritesThem) {
  const MetricsPage page = MetricsPage::parse(kPage);
  EXPECT_EQ(page.sum("loralei_request_wait_seconds_total"), 4.0);
  EXPECT_EQ(page.sum("loralei_request_wait_seconds_total", "cause=\"rows\""), 1.5);
  EXPECT_EQ(page.sum("loralei_steps"), std::nullopt);
  const auto counted = counters_of(page);
  ASSERT_TRUE(counted);
  EXPECT_EQ(counted->steps, 12u);
  EXPECT_EQ(counted->waited_s[static_cast<size_t>(WaitCause::kKv)], 2.5);
  const LoadSample sample = sample_of(page, 7);
  EXPECT_EQ(sample.at_ns, 7);
  EXPECT_EQ(sample.running, 3);
  EXPECT_EQ(sample.waiting, 6);
  EXPECT_EQ(sample.kv_used_bytes, 500);
  EXPECT_EQ(sample.kv_cached_bytes, 200);
  EXPECT_EQ(sample.adapters_used_bytes, 40);
  EXPECT_EQ(sample.adapters_idle_bytes, 30);
  EXPECT_EQ(memory_of(page).adapter_bytes, 90);
}

TEST(ServerMetrics, OfAnotherServerSayWhatTheySay) {
  const MetricsPage page =
      MetricsPage::parse("vllm:num_requests_running{engine=\"0\"} 2\nvllm:num_requests_waiting{engine=\"0\"} 1\n");
  EXPECT_FALSE(counters_of(page));
  EXPECT_EQ(sample_of(page, 0).running, 2);
  EXPECT_EQ(sample_of(page, 0).waiting, 1);
}

TEST(ServerMetrics, AnyBytesAreAPage) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Prng random(seed);
    std::string text = kPage;
    for (int i = 0; i < 20; ++i) text[random.below(text.size())] = static_cast<char>(random.below(256));
    const MetricsPage page = MetricsPage::parse(text);
    counters_of(page);
    sample_of(page, 0);
  }
  EXPECT_EQ(
      sample_of(MetricsPage::parse("loralei_requests_running 1e300\nloralei_requests_waiting nan\n x"), 0).running, 0);
}

TEST(LoadRows, CountsAreThoseSinceTheBeginning) {
  EngineStats before, now;
  before.steps = 10;
  now.steps = 25;
  before.waited_s[1] = 1;
  now.waited_s[1] = 4;
  EngineStats since = counts_since(now, before);
  EXPECT_EQ(since.steps, 15u);
  add_counts(now, since);
  EXPECT_EQ(since.steps, 40u);
  BenchReport report;
  add_count_rows("x.", counts_since(now, before), 10, report);
  EXPECT_EQ(report.rows[1].name, "x.waited.rows.mean_ms");
  EXPECT_DOUBLE_EQ(report.rows[1].value, 300);
}

}  // namespace
}  // namespace loralei

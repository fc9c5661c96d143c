// SPDX-License-Identifier: Apache-2.0
#include "bench/load_plots.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

constexpr int64_t kMs = 1'000'000;

const Chart* find(const std::vector<Chart>& plots, const std::string& title) {
  for (const Chart& plot : plots)
    if (plot.title == title) return &plot;
  return nullptr;
}

TEST(LoadPlots, ShowWhatEndedWellAndShareTheirAxes) {
  const Workload workload = {{.at_ns = 0, .prompt_tokens = 10, .output_tokens = 2},
                             {.at_ns = 0, .adapter = "a", .rank = 8, .prompt_tokens = 10, .output_tokens = 2},
                             {.at_ns = 600 * kMs, .adapter = "b", .rank = 8, .prompt_tokens = 10, .output_tokens = 2}};
  const std::vector<ServedRequest> served = {{.first_ns = 10 * kMs, .end_ns = 20 * kMs, .tokens = 2},
                                             {.first_ns = 30 * kMs, .end_ns = 70 * kMs, .tokens = 2},
                                             {.end_ns = 700 * kMs, .failed = true}};
  GapCounts gaps;
  gaps.add(10 * kMs);
  const std::vector<LoadSample> samples = {{.at_ns = 0},
                                           {.at_ns = 500 * kMs, .running = 2, .kv_used_bytes = 3'000'000}};
  std::vector<Chart> plots;
  add_load_plots("live", {workload, served, &gaps, samples}, plots);
  const size_t count = plots.size();
  add_load_plots("simulated", {workload, served, &gaps, samples}, plots);
  EXPECT_EQ(plots.size(), count);

  const Chart* const first = find(plots, "Time to the first token");
  ASSERT_NE(first, nullptr);
  ASSERT_EQ(first->series.size(), 2u);
  EXPECT_EQ(first->series[1].name, "simulated");
  ASSERT_EQ(first->series[0].points.size(), 2u);
  EXPECT_DOUBLE_EQ(first->series[0].points[1].first, 0.03);
  EXPECT_DOUBLE_EQ(first->series[0].points[0].second, 0.5);
  const Chart* const ranks = find(plots, "Time to the first token, by rank");
  ASSERT_NE(ranks, nullptr);
  EXPECT_EQ(ranks->series[0].name, "live, no rank");
  const Chart* const memory = find(plots, "Memory by use, over time");
  ASSERT_NE(memory, nullptr);
  EXPECT_DOUBLE_EQ(memory->series[0].points.back().second, 3);
  const Chart* const latency = find(plots, "Time to the first token, over time");
  ASSERT_NE(latency, nullptr);
  EXPECT_DOUBLE_EQ(latency->series[1].points.front().second, 0.03) << "P99 of the first window";
}

TEST(LoadPlots, OfNothingThereIsNone) {
  std::vector<Chart> plots;
  const GapCounts gaps;
  add_load_plots("live", {{}, {}, &gaps, {}}, plots);
  EXPECT_TRUE(plots.empty());
}

}  // namespace
}  // namespace loralei

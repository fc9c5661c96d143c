// SPDX-License-Identifier: Apache-2.0
// The figures of times that were made by hand.
#include "bench/coldstart_figures.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace loralei {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(ColdFigures, AClockStartsWhenARequestIsDue) {
  const Workload workload = {{.at_ns = 0}, {.at_ns = 100 * kMs}};
  const std::vector<ServedRequest> served = {{.first_ns = 10 * kMs, .end_ns = 40 * kMs, .tokens = 4},
                                             {.first_ns = 130 * kMs, .end_ns = 160 * kMs, .tokens = 2}};
  const ColdFigures figures = cold_figures(workload, served);
  EXPECT_DOUBLE_EQ(figures.first_mean_ms, 20);
  EXPECT_DOUBLE_EQ(figures.request_mean_ms, 50);
  EXPECT_DOUBLE_EQ(figures.token_mean_ms, 20);  // 10 and 30
  EXPECT_DOUBLE_EQ(figures.first_ms.front(), 10);
  EXPECT_DOUBLE_EQ(figures.first_ms.back(), 30);
}

TEST(ColdFigures, PointsAreThoseThatSoManyReach) {
  Workload workload(100);
  std::vector<ServedRequest> served;
  for (int64_t i = 100; i > 0; --i) served.push_back({.first_ns = i * kMs, .end_ns = i * kMs, .tokens = 1});
  const ColdFigures figures = cold_figures(workload, served);
  for (size_t at = 0; at < kColdPoints.size(); ++at) EXPECT_DOUBLE_EQ(figures.first_ms[at], kColdPoints[at]);
}

TEST(ColdFigures, WhatWasBeforeDoesNotCount) {
  ColdStarts before, after;
  before.requests = {1, 2, 3, 4, 5};
  before.layers_waited = 7, before.given_up = 1, before.assisted_layers = 5, before.handover_layers = 9;
  before.waited_s = 0.5, before.hidden_s = 1, before.helper_restarts = 2, before.handovers[3] = 4, before.helpers = 3;
  after = before;
  after.requests = {1, 4, 6, 8, 5};
  after.layers_waited = 17, after.given_up = 2, after.assisted_layers = 8, after.handover_layers = 19;
  after.waited_s = 0.75, after.hidden_s = 3, after.helper_restarts = 3, after.handovers[3] = 6, after.helpers = 2;
  const ColdStarts since = cold_starts_since(before, after);
  EXPECT_EQ(since.requests, (std::array<uint64_t, 5>{0, 2, 3, 4, 0}));
  EXPECT_EQ(since.layers_waited, 10u);
  EXPECT_EQ(since.given_up, 1u);
  EXPECT_EQ(since.assisted_layers, 3u);
  EXPECT_EQ(since.handover_layers, 10u);
  EXPECT_EQ(since.helper_restarts, 1u);
  EXPECT_EQ(since.handovers[3], 2u);
  EXPECT_DOUBLE_EQ(since.waited_s, 0.25);
  EXPECT_DOUBLE_EQ(since.hidden_s, 2);
  EXPECT_EQ(since.helpers, 2);
}

// Two rounds in which everything takes a multiple of what `cached` took.
ColdWay made_way(ColdStart way, double first_times, double second_times) {
  ColdWay made{.way = way};
  for (const double times : {first_times, second_times}) {
    const double round_ms = made.rounds.empty() ? 10 : 100;  // the second is slower for all
    ColdFigures figures;
    figures.first_mean_ms = round_ms * times;
    figures.token_mean_ms = 0.5 * round_ms * (1 + (times - 1) / 2);
    figures.request_mean_ms = 7 * round_ms * (1 + (times - 1) / 4);
    for (size_t at = 0; at < kColdPoints.size(); ++at) figures.first_ms[at] = round_ms * kColdPoints[at] * times;
    made.rounds.push_back(figures);
    ColdStarts starts;
    starts.requests = {0, 3, 2, 1, 0};
    starts.handovers[2] = 3, starts.handovers[4] = 1, starts.handover_layers = 10;
    made.starts.push_back(starts);
    made.first_ms = {round_ms * times, 1};
  }
  return made;
}

struct Rows {
  BenchReport report;
  const BenchRow& row(const std::string& name) const {
    const auto found = std::find_if(report.rows.begin(), report.rows.end(),
                                    [&](const BenchRow& one) { return one.name == "cell." + name; });
    EXPECT_NE(found, report.rows.end()) << name;
    static const BenchRow none;
    return found == report.rows.end() ? none : *found;
  }
};

// A round's times are held against those of `cached` in the same round.
TEST(ColdRows, OverheadsAreOfTheSameRoundAndMediansOfAll) {
  const ColdWay ways[] = {made_way(ColdStart::kCached, 1, 1), made_way(ColdStart::kOndemand, 3, 5),
                          made_way(ColdStart::kAuto, 1.08, 1.04)};
  Rows rows;
  add_cold_rows("cell.", ways, rows.report);
  EXPECT_NEAR(rows.row("ondemand.first_token_over").value, 300, 1e-9);
  EXPECT_NEAR(rows.row("ondemand.first_token_over").min, 200, 1e-9);
  EXPECT_NEAR(rows.row("ondemand.first_token_over").max, 400, 1e-9);
  EXPECT_NEAR(rows.row("ondemand.first_token_p50_over").value, 300, 1e-9);
  EXPECT_NEAR(rows.row("ondemand.first_token_p99_over").max, 400, 1e-9);
  EXPECT_NEAR(rows.row("ondemand.token_over").value, 150, 1e-9);
  EXPECT_NEAR(rows.row("ondemand.request_over").value, 75, 1e-9);
  EXPECT_NEAR(rows.row("auto.first_token_over").value, 6, 1e-9);
  EXPECT_NEAR(rows.row("cached.first_token_p90_ms").value, 55 * 90, 1e-9);
  EXPECT_EQ(rows.row("auto.began_layered").value, 3);
  EXPECT_EQ(rows.row("auto.began_assisted").value, 2);
  EXPECT_EQ(rows.row("auto.waited_for_all").value, 1);
  EXPECT_DOUBLE_EQ(rows.row("auto.handover_layer").value, 2.5);
}

// The paper's numbers and what is wanted here, of ways with helpers alone.
TEST(ColdRows, HaveATargetAndAGoalForWaysWithHelpers) {
  const ColdWay ways[] = {made_way(ColdStart::kCached, 1, 1), made_way(ColdStart::kLayered, 3, 5),
                          made_way(ColdStart::kAuto, 1.08, 1.04)};
  BenchReport report;
  add_cold_rows("cell.", ways, report);
  ASSERT_EQ(report.targets.size(), 6u);
  const auto met = [&](const std::string& name) {
    const auto found = std::find_if(report.targets.begin(), report.targets.end(),
                                    [&](const BenchTarget& one) { return one.name == "cell.auto." + name; });
    EXPECT_NE(found, report.targets.end()) << name;
    return found != report.targets.end() && found->ok();
  };
  EXPECT_TRUE(met("first_token_over"));
  EXPECT_FALSE(met("first_token_over (goal)"));  // 6 % of 5
  EXPECT_TRUE(met("token_over"));
  EXPECT_TRUE(met("request_over (goal)"));  // 1.5 % of 3
  EXPECT_TRUE(met("request_over"));
  ASSERT_EQ(report.plots.size(), 1u);
  ASSERT_EQ(report.plots[0].series.size(), 3u);
  const ChartSeries& layered = report.plots[0].series[1];
  EXPECT_EQ(layered.name, "layered");
  EXPECT_EQ(layered.points, (std::vector<std::pair<double, double>>{{1, 0.5}, {500, 1}}));
}

}  // namespace
}  // namespace loralei

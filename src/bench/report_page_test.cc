// SPDX-License-Identifier: Apache-2.0
#include "bench/report_page.h"

#include <gtest/gtest.h>

#include "bench/row_charts.h"

namespace loralei {
namespace {

BenchRow made(const std::string& name, const std::string& unit, double value) {
  return {.name = name, .unit = unit, .value = value, .min = value, .max = value};
}

BenchReport report_of(const std::string& scenario, std::vector<BenchRow> rows) {
  BenchReport report;
  report.scenario = scenario;
  report.rows = std::move(rows);
  return report;
}

TEST(RowCharts, NumbersInNamesAreTheAxisAndBoundsFollow) {
  BenchReport report = report_of(
      "offload", {made("offload.m.q8.2.0gb.flex.tok_s", "tok/s", 4), made("offload.m.q8.1.5gb.flex.tok_s", "tok/s", 3),
                  made("offload.m.q8.1.5gb.sync.tok_s", "tok/s", 2)});
  report.rows[1].bound = 3.5;
  const std::vector<Chart> charts = row_charts(report);
  ASSERT_EQ(charts.size(), 1u);
  EXPECT_EQ(charts[0].title, "Tokens a second");
  EXPECT_EQ(charts[0].x, "memory budget, GB");
  EXPECT_EQ(charts[0].note, "Rows of m.q8.");
  ASSERT_EQ(charts[0].series.size(), 3u);
  EXPECT_EQ(charts[0].series[0].name, "flex");
  EXPECT_EQ(charts[0].series[0].points, (std::vector<std::pair<double, double>>{{1.5, 3}, {2, 4}})) << "in order";
  EXPECT_TRUE(charts[0].series[1].is_bound);
  EXPECT_EQ(charts[0].series[1].points, (std::vector<std::pair<double, double>>{{1.5, 3.5}}));
}

TEST(RowCharts, OneBoundOfAllIsOneCurve) {
  BenchReport report = report_of("decode", {});
  for (const char* kind : {"a", "b"}) {
    for (const int batch : {1, 8}) {
      report.rows.push_back(
          made("decode.m." + std::string(kind) + ".b" + std::to_string(batch) + ".tok_s", "tok/s", batch));
      report.rows.back().bound = 2 * batch;
    }
  }
  std::vector<Chart> charts = row_charts(report);
  ASSERT_EQ(charts[0].series.size(), 3u);
  EXPECT_EQ(charts[0].series[2].name, "all");
  report.rows[0].bound = 5;
  charts = row_charts(report);
  EXPECT_EQ(charts[0].series.size(), 4u) << "they differ";
}

TEST(RowCharts, OneNumberIsABarAndUnitsHaveTheirOwn) {
  BenchReport report =
      report_of("mixed", {made("mixed.m.n8.base_tok_s", "tok/s", 4), made("mixed.m.n8.tok_s", "tok/s", 3),
                          made("mixed.m.n8.ratio", "ratio", 0.9), made("mixed.m.n8.lora_tax", "ratio", 1.1),
                          made("mixed.m.n8.rounds", "rounds", 5)});
  report.rows[0].peer = 2;
  const std::vector<Chart> charts = row_charts(report);
  ASSERT_EQ(charts.size(), 2u) << "a bar alone has none";
  EXPECT_EQ(charts[0].categories, (std::vector<std::string>{"n8.base_tok_s", "n8.tok_s"}));
  EXPECT_EQ(charts[0].series[1].name, "peer");
  EXPECT_EQ(charts[1].title, "Ratios");
  EXPECT_TRUE(row_charts(report_of("x", {})).empty());
  EXPECT_EQ(row_charts(report_of("x", {made("", "", 1)})).size(), 1u) << "whatever it is called";
}

TEST(RowCharts, AServedWorkloadHasItsClassesAndWaits) {
  const BenchReport report =
      report_of("simulate",
                {made("simulate.all.first_token.p50_ms", "ms", 4), made("simulate.rank_8.first_token.p50_ms", "ms", 3),
                 made("simulate.rank_8.first_token.p99_ms", "ms", 9), made("simulate.waited.kv.mean_ms", "ms", 1)});
  ASSERT_TRUE(is_load_report(report));
  const std::vector<Chart> charts = load_row_charts(report);
  ASSERT_EQ(charts.size(), 2u);
  EXPECT_EQ(charts[0].categories, (std::vector<std::string>{"all", "rank_8"}));
  EXPECT_EQ(charts[0].series[1].name, "p99");
  EXPECT_EQ(charts[0].series[1].points, (std::vector<std::pair<double, double>>{{1, 9}}));
  EXPECT_EQ(charts[1].categories, std::vector<std::string>{"kv"});
  EXPECT_EQ(find_row(report, "first_token.p50_ms"), nullptr) << "the whole name behind the scenario";
}

std::vector<NamedReport> runs() {
  std::vector<NamedReport> out;
  for (const char* policy : {"fcfs", "fair"}) {
    for (const int rate : {2, 4}) {
      BenchReport report = report_of("simulate", {made("simulate.offered_per_s", "1/s", rate),
                                                  made("simulate.all.first_token.p50_ms", "ms", 10 * rate),
                                                  made("simulate.good_share", "ratio", 1.0 / rate)});
      report.args = {
          {"--policy", policy}, {"--workload", "/tmp/w" + std::to_string(rate)}, {"--json", "x"}, {"--same", "1"}};
      report.args["--json"] += std::to_string(out.size());
      out.push_back({"run" + std::to_string(out.size()) + ".json", std::move(report)});
    }
  }
  return out;
}

TEST(Comparison, RunsAreNamedByWhatTellsThemApart) {
  EXPECT_EQ(run_names(runs()),
            (std::vector<std::string>{"policy fcfs w2", "policy fcfs w4", "policy fair w2", "policy fair w4"}));
  const std::vector<NamedReport> same = {{"/a/x.json", report_of("x", {})}, {"/b/y.json", report_of("x", {})}};
  EXPECT_EQ(run_names(same), (std::vector<std::string>{"x.json", "y.json"}));
}

TEST(Comparison, WhatCameOfRatesStandsAgainstThem) {
  const std::string page = comparison_html("title", "loralei report", runs());
  EXPECT_NE(page.find("<h2>Share within the objectives, against the rate</h2>"), std::string::npos);
  EXPECT_NE(page.find("policy fair: 0.25 at 4"), std::string::npos);
  EXPECT_NE(page.find("<data value=\"0.25\">"), std::string::npos);
  std::vector<NamedReport> one = runs();
  one.resize(1);
  EXPECT_EQ(comparison_html("title", "", one).find("against the rate"), std::string::npos);
  one[0].report.targets.push_back({"goal", ">=", 2, 1});
  const std::string alone = comparison_html("title", "", one);
  EXPECT_EQ(alone.find("run0.json"), std::string::npos) << "nothing to tell it from";
  EXPECT_NE(alone.find("missed"), std::string::npos);
  EXPECT_NE(comparison_html("<title>", "", {}).find("<h1>&lt;title&gt;</h1>"), std::string::npos);
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "report/chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "report/merge.h"

namespace loralei {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t count(const std::string& text, const std::string& what) {
  size_t times = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++times;
  return times;
}

Chart curves(std::vector<std::pair<double, double>> points) {
  Chart chart{.title = "a <title>", .x = "s", .y = "ms"};
  chart.series.push_back({.name = "one & \"two\"", .points = std::move(points), .ranges = {}});
  return chart;
}

// Every element is closed, in order; no attribute is open.
void expect_well_formed(const std::string& markup) {
  std::vector<std::string> open;
  for (size_t at = markup.find('<'); at != std::string::npos; at = markup.find('<', at + 1)) {
    const size_t end = markup.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string inside = markup.substr(at + 1, end - at - 1);
    ASSERT_EQ(count(inside, "\"") % 2, 0u) << inside;
    const std::string name = inside.substr(inside[0] == '/', inside.find_first_of(" /", 1) - (inside[0] == '/'));
    if (inside[0] == '/') {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), inside.substr(1));
      open.pop_back();
    } else if (inside.back() != '/') {
      open.push_back(inside.substr(0, inside.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(Chart, CurvesStandInAPageWhateverTheyHold) {
  Chart chart = curves({{0, 1}, {10, 2}});
  chart.series.push_back({.name = "none", .points = {}, .ranges = {}});
  for (const double odd : {std::nan(""), kInfinity, -kInfinity})
    chart.series.push_back({.name = "odd </svg><script>", .points = {{0, odd}, {odd, 0}}, .ranges = {}});
  chart.rules.push_back({.at = 1.5, .name = "<objective>"});
  const std::string svg = chart_svg(chart);
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, "<path"), 1u);
  for (const char* never : {"nan", "inf", "<script", "<objective", "<title>a <"})
    EXPECT_EQ(svg.find(never), std::string::npos) << never;
  EXPECT_NE(svg.find("one &amp; &quot;two&quot;"), std::string::npos);
}

TEST(Chart, OfNothingSaysSo) {
  for (Chart chart : {Chart{}, curves({}), curves({{std::nan(""), 1}})}) {
    EXPECT_NE(chart_svg(chart).find("no values"), std::string::npos);
    chart.categories = {"a"};
    EXPECT_NE(chart_svg(chart).find("no values"), std::string::npos);
    expect_well_formed(chart_svg(chart));
  }
}

TEST(Chart, OnePointIsMarked) {
  const std::string svg = chart_svg(curves({{3, 4}}));
  EXPECT_EQ(count(svg, "<circle"), 1u);
  EXPECT_NE(svg.find("4 at 3"), std::string::npos);
}

TEST(Chart, ManyPointsAreThinnedAndPeaksStay) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i <= 1'000'000; ++i) points.emplace_back(i, i % 7);
  points[314'159].second = 1e6;
  points[271'828].second = -5;
  const auto kept = thinned(points);
  EXPECT_LE(kept.size(), kChartPoints);
  for (const size_t at : {size_t{0}, size_t{314'159}, size_t{271'828}, size_t{1'000'000}})
    EXPECT_NE(std::find(kept.begin(), kept.end(), points[at]), kept.end()) << at;
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(), [](auto& one, auto& other) { return one.first < other.first; }));
  EXPECT_LT(chart_svg(curves(points)).size(), 20'000u);
}

TEST(Chart, SizeIsBoundedByWhatIsDrawn) {
  Chart chart{.title = "many", .x = "x", .y = "y"};
  for (int i = 0; i < 500; ++i) {
    chart.series.push_back({.name = std::string(300, 'n'), .points = {}, .ranges = {}});
    for (int x = 0; x < 2000; ++x) chart.series.back().points.emplace_back(x, i);
  }
  std::string svg = chart_svg(chart);
  EXPECT_EQ(count(svg, "<path"), kChartSeries);
  EXPECT_NE(svg.find("484 more curves in the table only"), std::string::npos);
  EXPECT_LT(svg.size(), 300'000u);
  for (int i = 0; i < 2000; ++i) chart.categories.push_back("category " + std::to_string(i));
  svg = chart_svg(chart);
  EXPECT_EQ(count(svg, "<rect"), kChartSeries * kChartCategories);
  EXPECT_NE(svg.find("1936 more bars in the table only"), std::string::npos);
}

TEST(Chart, ALogarithmicAxisLeavesOutWhatHasNoPlaceThere) {
  Chart chart = curves({{0, 1}, {1, 2}, {100, 3}});
  chart.x_scale = ChartScale::kLog;
  const std::string svg = chart_svg(chart);
  EXPECT_NE(svg.find("M64.0 "), std::string::npos) << "the least that has a place stands at the left: " << svg;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(Chart, BarsHaveTheLengthOfTheirValueAndBoundsStandWithThem) {
  Chart chart{.title = "bars", .x = "", .y = "tok/s"};
  chart.categories = {"a", "b"};
  chart.series.push_back({.name = "median", .points = {{0, 5}, {1, 10}}, .ranges = {{4, 6}, {10, 10}}});
  chart.series.push_back({.name = "median", .points = {{0, 8}}, .ranges = {}, .is_bound = true});
  const std::string svg = chart_svg(chart);
  expect_well_formed(svg);
  // 60 to the left of the bars, 84 to the right: of 716 that are 10.
  EXPECT_NE(svg.find("width=\"358.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("width=\"716.0\""), std::string::npos);
  EXPECT_EQ(count(svg, "stroke-width=\"2\""), 1u);
  chart.series[0].points[0].second = -5;  // to the left of zero
  expect_well_formed(chart_svg(chart));
}

TEST(Chart, TablesHaveTheNumbers) {
  Chart chart = curves({});
  chart.is_distribution = true;
  for (int i = 1; i <= 100; ++i) chart.series[0].points.emplace_back(i, i / 100.0);
  const ReportTable shares = chart_table(chart);
  ASSERT_EQ(shares.rows.size(), 1u);
  const double wanted[] = {10, 50, 90, 95, 99, 100};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(shares.rows[0][i + 1].value, wanted[i]);
  chart.is_distribution = false;
  const ReportTable sums = chart_table(chart);
  EXPECT_EQ(sums.rows[0][1].value, 100);
  EXPECT_NEAR(sums.rows[0][3].value, 0.505, 1e-9);
  EXPECT_EQ(sums.rows[0][4].value, 1);
  chart.series[0].points.resize(3);
  chart.series.push_back({.name = "other", .points = {{2, 7}, {-1e300, 1}}, .ranges = {{6, 8}, {1, 1}}});
  const ReportTable points = chart_table(chart);
  ASSERT_EQ(points.rows.size(), 4u);
  EXPECT_EQ(points.rows[2][2].text, "7 (6 .. 8)");
  EXPECT_EQ(points.rows[1][2].text, "") << "no value there";
}

TEST(Chart, WhatHasOneTitleIsMerged) {
  Chart bars{.title = "t", .x = "", .y = ""};
  bars.categories = {"a", "b"};
  bars.series.push_back({.name = "one", .points = {{0, 1}, {1, 2}}, .ranges = {}});
  Chart others = bars;
  others.categories = {"b", "c"};
  others.rules.push_back({.at = 1, .name = "r"});
  std::vector<Chart> charts;
  for (const Chart& chart : {bars, others, others}) merge_chart(chart, charts);
  ASSERT_EQ(charts.size(), 1u);
  EXPECT_EQ(charts[0].categories, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(charts[0].series[1].points, (std::vector<std::pair<double, double>>{{1, 1}, {2, 2}}));
  EXPECT_EQ(charts[0].rules.size(), 1u);
  merge_chart(curves({{0, 1}}), charts);
  EXPECT_EQ(charts.size(), 2u);
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "bench/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace loralei {
namespace {

size_t count(const std::string& text, const std::string& what) {
  size_t times = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++times;
  return times;
}

TEST(BenchPlot, MarksAreAFewRoundNumbersThatReachTheEnd) {
  EXPECT_EQ(axis_marks(1), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
  EXPECT_EQ(axis_marks(47), (std::vector<double>{0, 10, 20, 30, 40}));
  for (double most = 1e-9; most < 1e12; most *= 1.37) {
    const auto marks = axis_marks(most);
    EXPECT_GE(marks.size(), 3u) << most;
    EXPECT_LE(marks.size(), 8u) << most;
    EXPECT_LE(marks.back(), most * 1.000001) << most;
  }
  for (const double odd : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_EQ(axis_marks(odd), std::vector<double>{0});
}

TEST(BenchPlot, CurvesStandInAPageWhateverTheyHold) {
  BenchPlot plot{"a <title>", "s", "ms", {{"one & two", {{0, 1}, {10, 2}}}, {"none", {}}}};
  const double odd[] = {std::nan(""), std::numeric_limits<double>::infinity(), -1};
  for (const double value : odd) plot.series.push_back({"odd", {{0, value}, {value, 0}}});
  const std::string svg = plot_svg(plot);
  EXPECT_EQ(count(svg, "<path"), 1u);
  EXPECT_EQ(count(svg, "M70.0 133.0L590.0 12.0"), 1u) << svg;
  EXPECT_NE(svg.find("one &amp; two: ends at 10, 2"), std::string::npos);
  EXPECT_EQ(count(svg, "<title>"), count(svg, "</title>"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("<title>a <"), std::string::npos);
}

TEST(BenchPlot, ManyPointsAreThinnedAndTheLastIsKept) {
  BenchPlot plot{"", "", "", {{"many", {}}}};
  for (int i = 0; i <= 100'000; ++i) plot.series[0].points.push_back({i, i % 7});
  const std::string svg = plot_svg(plot);
  EXPECT_LT(svg.size(), 40'000u);
  EXPECT_NE(svg.find("L590.0 "), std::string::npos);
}

}  // namespace
}  // namespace loralei

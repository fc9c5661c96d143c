// SPDX-License-Identifier: Apache-2.0
// Chart: curves or bars with axes, drawn as SVG that stands in a page by itself, and the
// numbers of it as a table.
//
// Thread: any; plain values and pure functions.
// Invariants: the SVG is well-formed XML whatever the names hold. Its size is bounded by
// the number of series and categories that are drawn, never by the number of points:
// curves are thinned, and keep their peaks. What is not finite, and on a logarithmic axis
// what is not above 0, is left out.
// Failure: none; a chart without a point says so.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace loralei {

struct ChartSeries {
  std::string name;
  // x, y; ascending in x. In a chart with categories x is the number of one.
  std::vector<std::pair<double, double>> points;
  // Least and most beside each point; empty: none.
  std::vector<std::pair<double, double>> ranges;
  // What bounds the curve or bar of the same name: dashed, in its colour.
  bool is_bound = false;
};

// A line across all of a chart: an objective.
struct ChartRule {
  double at = 0;
  std::string name;
  bool upright = false;  // at an x
};

enum class ChartScale { kAuto, kLinear, kLog };

struct Chart {
  std::string title, x, y;
  std::vector<ChartSeries> series;
  std::vector<std::string> categories;  // bars, of these; empty: curves
  std::vector<ChartRule> rules;
  std::string note;              // a sentence beneath
  bool is_distribution = false;  // y is the share of values that are at most x
  bool has_marks = false;        // each point of a curve is one, and is marked
  ChartScale x_scale = ChartScale::kLinear, y_scale = ChartScale::kLinear;
};

inline constexpr size_t kChartPoints = 480;     // of a curve, at most four for each of a quarter of them
inline constexpr size_t kChartSeries = 16;      // that are drawn
inline constexpr size_t kChartCategories = 64;  // likewise

std::string chart_svg(const Chart& chart);

// Of many points some: of each stretch the first, the last, the lowest and the highest.
// What is not finite is left out first.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points);

struct ReportTable {
  struct Cell {
    std::string text;
    bool is_number = false;  // its exact value stands in the page, too
    double value = 0;
  };
  std::vector<std::string> head;
  std::vector<std::vector<Cell>> rows;
};

// A distribution's percentiles, the points where they are few, else each curve's least,
// mean, most and last.
ReportTable chart_table(const Chart& chart);

}  // namespace loralei

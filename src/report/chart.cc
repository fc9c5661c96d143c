// SPDX-License-Identifier: Apache-2.0
#include "report/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "report/chart_shapes.h"

namespace loralei {
namespace {

constexpr size_t kRowsMost = 40;  // of a table of points
constexpr std::array<double, 6> kShares = {0.1, 0.5, 0.9, 0.95, 0.99, 1};

using Point = std::pair<double, double>;
using Cell = ReportTable::Cell;

bool is_finite(const Point& point) { return std::isfinite(point.first) && std::isfinite(point.second); }

// Four digits, and all of them before the point.
std::string table_number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, std::fabs(value) >= 1000 && std::fabs(value) < 1e15 ? "%.0f" : "%.4g", value);
  return text;
}

Cell number_cell(double value) { return {table_number(value), true, value}; }

// The smallest value that so many reach, as the curve says.
ReportTable percentile_table(const Chart& chart) {
  ReportTable table{{chart.x, "P10", "P50", "P90", "P95", "P99", "most"}, {}};
  for (const ChartSeries& series : chart.series) {
    std::vector<Cell>& row = table.rows.emplace_back(std::vector<Cell>{{series.name}});
    for (const double share : kShares) {
      const auto at = std::find_if(series.points.begin(), series.points.end(),
                                   [&](const Point& point) { return point.second >= share * (1 - 1e-12); });
      row.push_back(at == series.points.end() ? Cell{} : number_cell(at->first));
    }
  }
  return table;
}

ReportTable summary_table(const Chart& chart) {
  ReportTable table{{chart.y, "points", "least", "mean", "most", "last"}, {}};
  for (const ChartSeries& series : chart.series) {
    std::vector<double> values;
    for (const Point& point : series.points)
      if (is_finite(point)) values.push_back(point.second);
    std::vector<Cell>& row = table.rows.emplace_back(std::vector<Cell>{{series.name}});
    row.push_back(number_cell(static_cast<double>(values.size())));
    if (values.empty()) {
      row.resize(table.head.size());
      continue;
    }
    double mean = 0;
    for (const double value : values) mean += value / static_cast<double>(values.size());
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    for (const double value : {*least, mean, *most, values.back()}) row.push_back(number_cell(value));
  }
  return table;
}

Cell point_cell(const ChartSeries& series, size_t point) {
  Cell cell = number_cell(series.points[point].second);
  if (point < series.ranges.size() && series.ranges[point].first < series.ranges[point].second)
    cell.text +=
        " (" + table_number(series.ranges[point].first) + " .. " + table_number(series.ranges[point].second) + ")";
  return cell;
}

// A row for each place, a column for each series.
ReportTable point_table(const Chart& chart, const std::set<double>& places) {
  ReportTable table{{chart.categories.empty() ? chart.x : ""}, {}};
  std::map<double, size_t> rows;
  for (const double x : places) {
    rows[x] = table.rows.size();
    std::vector<Cell>& row = table.rows.emplace_back(chart.series.size() + 1);
    const bool is_category = x >= 0 && x < static_cast<double>(chart.categories.size());
    row[0] = is_category ? Cell{chart.categories[static_cast<size_t>(x)]} : number_cell(x);
  }
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& series = chart.series[i];
    table.head.push_back(series.name + (series.is_bound ? ", bound" : ""));
    for (size_t point = 0; point < series.points.size(); ++point)
      if (is_finite(series.points[point]))
        table.rows[rows[series.points[point].first]][i + 1] = point_cell(series, point);
  }
  return table;
}

}  // namespace

std::vector<Point> thinned(const std::vector<Point>& points) {
  std::vector<Point> finite;
  std::copy_if(points.begin(), points.end(), std::back_inserter(finite), is_finite);
  if (finite.size() <= kChartPoints) return finite;
  constexpr size_t kStretches = kChartPoints / 4;
  std::vector<Point> kept;
  for (size_t i = 0; i < kStretches; ++i) {
    const auto begin = finite.begin() + static_cast<std::ptrdiff_t>(finite.size() * i / kStretches);
    const auto end = finite.begin() + static_cast<std::ptrdiff_t>(finite.size() * (i + 1) / kStretches);
    const auto [low, high] =
        std::minmax_element(begin, end, [](const Point& one, const Point& other) { return one.second < other.second; });
    std::array<std::vector<Point>::iterator, 4> some = {begin, low, high, end - 1};
    std::sort(some.begin(), some.end());
    const auto some_end = std::unique(some.begin(), some.end());
    for (auto at = some.begin(); at != some_end; ++at) kept.push_back(**at);
  }
  return kept;
}

ReportTable chart_table(const Chart& chart) {
  if (chart.is_distribution) return percentile_table(chart);
  std::set<double> places;
  for (const ChartSeries& series : chart.series)
    for (const Point& point : series.points)
      if (is_finite(point)) places.insert(point.first);
  if (chart.categories.empty() && places.size() > kRowsMost) return summary_table(chart);
  return point_table(chart, places);
}

size_t colour_of(const Chart& chart, size_t series) {
  size_t colour = 0;
  for (size_t i = 0; i < series; ++i) colour += !chart.series[i].is_bound;
  if (!chart.series[series].is_bound) return colour;
  for (size_t i = 0, other = 0; i < chart.series.size(); ++i) {
    if (chart.series[i].is_bound) continue;
    if (chart.series[i].name == chart.series[series].name) return other;
    ++other;
  }
  return colour;
}

std::string missing_note(size_t missing, const char* what) {
  return missing == 0 ? "" : std::to_string(missing) + " more " + what + " in the table only";
}

std::string chart_svg(const Chart& chart) { return chart.categories.empty() ? curves_svg(chart) : bars_svg(chart); }

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "report/axis.h"
#include "report/chart_shapes.h"
#include "report/markup.h"
#include "report/svg.h"

namespace loralei {
namespace {

constexpr double kRight = 84, kGroupGap = 10, kBottom = 46;  // right of the bars stand their values
constexpr double kNarrow = 13, kWide = 18;                   // of a bar, one of several and one alone
constexpr size_t kNameCharacters = 46;

// Where bars lie: groups from the top, in each a bar for each series that is no bound.
struct Rows {
  std::vector<size_t> bars;  // by series: which bar of its group
  size_t a_group = 0;
  double top = 0, bar = 0, left = 0;
  double group_height() const { return static_cast<double>(a_group) * bar + kGroupGap; }
  double group_top(size_t category) const { return top + static_cast<double>(category) * group_height(); }
  double bar_top(size_t category, size_t series) const {
    return group_top(category) + kGroupGap / 2 + static_cast<double>(bars[series]) * bar;
  }
};

Rows rows_of(const Chart& chart, size_t drawn, size_t categories, double top) {
  Rows rows;
  for (size_t i = 0; i < drawn; ++i) rows.a_group += !chart.series[i].is_bound;
  for (size_t i = 0; i < drawn; ++i)
    rows.bars.push_back(chart.series[i].is_bound ? std::min(colour_of(chart, i), std::max<size_t>(rows.a_group, 1) - 1)
                                                 : colour_of(chart, i));
  rows.top = top;
  rows.bar = rows.a_group > 1 ? kNarrow : kWide;
  rows.left = 60;
  for (size_t i = 0; i < categories; ++i)
    rows.left = std::max(rows.left, svg_text_width(shortened(chart.categories[i], kNameCharacters)) + 16);
  return rows;
}

struct Scale {
  double left;
  Axis axis;
  double x(double value) const { return left + (kSvgWidth - kRight - left) * axis.place(value); }
};

Axis value_axis(const Chart& chart, size_t drawn) {
  double least = 0, most = 0;
  const auto add = [&](double value) {
    if (!std::isfinite(value)) return;
    least = std::min(least, value);
    most = std::max(most, value);
  };
  for (size_t i = 0; i < drawn; ++i) {
    for (const auto& point : chart.series[i].points) add(point.second);
    for (const auto& range : chart.series[i].ranges) {
      add(range.first);
      add(range.second);
    }
  }
  for (const ChartRule& rule : chart.rules) add(rule.at);
  return Axis::linear(least, most, true);
}

std::string bar_svg(const ChartSeries& series, size_t point, const Rows& rows, size_t index, size_t colour,
                    const Scale& scale) {
  const double value = series.points[point].second;
  const double top = rows.bar_top(static_cast<size_t>(series.points[point].first), index);
  const double zero = scale.x(0), end = scale.x(value), height = rows.bar - 2;
  const std::string number = std::to_string(colour % kSvgColours);
  if (series.is_bound)
    return svg_line(end, top - 1, end, top + height + 1, "class=\"edge\" stroke=\"#1f2430\" stroke-width=\"2\"");
  std::string out = "<rect x=\"" + svg_number(std::min(zero, end)) + "\" y=\"" + svg_number(top) + "\" width=\"" +
                    svg_number(std::max(0.5, std::fabs(end - zero))) + "\" height=\"" + svg_number(height) +
                    "\" rx=\"1.5\" class=\"f" + number + "\" fill=\"" + svg_colour(colour) + "\"><title>" +
                    markup_text(series.name + ": " + axis_number(value)) + "</title></rect>";
  double text_at = std::max(end, zero);
  if (point < series.ranges.size() && series.ranges[point].first < series.ranges[point].second &&
      std::isfinite(series.ranges[point].first) && std::isfinite(series.ranges[point].second)) {
    const double middle = top + height / 2, high = scale.x(series.ranges[point].second);
    out += svg_line(scale.x(series.ranges[point].first), middle, high, middle, "class=\"edge\" stroke=\"#1f2430\"");
    text_at = std::max(text_at, high);
  }
  return out + svg_text(text_at + 5, top + height / 2 + 4, "start", axis_number(value), " font-size=\"11\"");
}

std::string frame_svg(const Chart& chart, const Rows& rows, size_t categories, const Scale& scale) {
  const std::string quiet = " class=\"quiet\" fill=\"#5a6270\"";
  const double bottom = rows.group_top(categories);
  std::string out;
  for (const AxisMark& mark : scale.axis.marks()) {
    out += svg_line(scale.x(mark.value), rows.top, scale.x(mark.value), bottom, "class=\"grid\" stroke=\"#d9dde5\"");
    out += svg_text(scale.x(mark.value), bottom + 17, "middle", mark.text, quiet);
  }
  out += svg_line(scale.x(0), rows.top, scale.x(0), bottom, "class=\"edge\" stroke=\"#6b7280\"");
  for (size_t i = 0; i < categories; ++i)
    out += svg_text(rows.left - 8, rows.group_top(i) + rows.group_height() / 2 + 4, "end",
                    shortened(chart.categories[i], kNameCharacters));
  return out + svg_text((rows.left + kSvgWidth - kRight) / 2, bottom + 37, "middle", chart.y);
}

}  // namespace

std::string bars_svg(const Chart& chart) {
  const size_t drawn = std::min(chart.series.size(), kChartSeries);
  const size_t categories = std::min(chart.categories.size(), kChartCategories);
  SvgLegend legend(20, kSvgWidth - 20);
  const auto is_bar = [](const ChartSeries& series) { return !series.is_bound; };
  if (std::count_if(chart.series.begin(), chart.series.end(), is_bar) > 1)
    for (size_t i = 0; i < drawn; ++i)
      if (is_bar(chart.series[i])) legend.add(colour_of(chart, i), chart.series[i].name, false);
  const Rows rows = rows_of(chart, drawn, categories, legend.height() + 8);
  const Scale scale{rows.left, value_axis(chart, drawn)};
  std::string shapes;
  for (size_t i = 0; i < drawn; ++i) {
    for (size_t point = 0; point < chart.series[i].points.size(); ++point) {
      const auto& [x, y] = chart.series[i].points[point];
      if (x >= 0 && x < static_cast<double>(categories) && std::isfinite(y))
        shapes += bar_svg(chart.series[i], point, rows, i, colour_of(chart, i), scale);
    }
  }
  const double bottom = rows.group_top(categories);
  std::string out = svg_open(bottom + kBottom, chart.title) + legend.svg() + frame_svg(chart, rows, categories, scale);
  for (const ChartRule& rule : chart.rules) {
    if (!scale.axis.holds(rule.at)) continue;
    out += svg_line(scale.x(rule.at), rows.top, scale.x(rule.at), bottom,
                    "class=\"rule\" stroke=\"#1f2430\" stroke-dasharray=\"2 4\"");
    out += svg_text(scale.x(rule.at) + 5, rows.top + 9, "start", rule.name, " font-size=\"11\"");
  }
  if (shapes.empty()) out += svg_text(kSvgWidth / 2, bottom - 4, "middle", "no values");
  const std::string missing = missing_note(chart.categories.size() - categories, "bars");
  if (!missing.empty()) out += svg_text(kSvgWidth - 20, bottom + 37, "end", missing);
  return out + shapes + "</svg>";
}

}  // namespace loralei

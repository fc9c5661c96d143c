// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "report/axis.h"
#include "report/chart_shapes.h"
#include "report/markup.h"
#include "report/svg.h"

namespace loralei {
namespace {

constexpr double kLeft = 64, kRight = 18, kPlotHeight = 270, kBottom = 50;
constexpr double kLogBeyond = 50;   // kAuto: where the highest is so many times the lowest
constexpr size_t kMarkedMost = 48;  // points that are marked, with a tooltip each

using Point = std::pair<double, double>;

struct Extent {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  double least_positive = least;
  void add(double value) {
    if (!std::isfinite(value)) return;
    least = std::min(least, value);
    most = std::max(most, value);
    if (value > 0) least_positive = std::min(least_positive, value);
  }
};

Axis axis_of(const Extent& extent, ChartScale scale, bool rounded) {
  const bool wide = extent.least > 0 && extent.most / extent.least_positive >= kLogBeyond;
  if (scale == ChartScale::kLog || (scale == ChartScale::kAuto && wide))
    return Axis::logarithmic(extent.least_positive, extent.most);
  return Axis::linear(extent.least, extent.most, rounded);
}

// A chart's axes in the picture.
class Frame {
 public:
  Frame(const Chart& chart, const std::vector<std::vector<Point>>& curves, double top)
      : top_(top), x_axis_(Axis::linear(0, 1, false)), y_axis_(x_axis_) {
    Extent x, y;
    for (size_t i = 0; i < curves.size(); ++i) {
      for (const Point& point : curves[i]) {
        x.add(point.first);
        y.add(point.second);
      }
      for (const Point& range : chart.series[i].ranges) {
        y.add(range.first);
        y.add(range.second);
      }
    }
    for (const ChartRule& rule : chart.rules) (rule.upright ? x : y).add(rule.at);
    x_axis_ = axis_of(x, chart.x_scale, false);
    y_axis_ = chart.is_distribution ? Axis::linear(0, 1, true) : axis_of(y, chart.y_scale, true);
  }
  bool holds(const Point& point) const { return x_axis_.holds(point.first) && y_axis_.holds(point.second); }
  double x(double value) const { return kLeft + (kSvgWidth - kLeft - kRight) * x_axis_.place(value); }
  double y(double value) const { return top_ + kPlotHeight * (1 - y_axis_.place(value)); }
  double bottom() const { return top_ + kPlotHeight; }
  double top() const { return top_; }
  const Axis& x_axis() const { return x_axis_; }
  const Axis& y_axis() const { return y_axis_; }

 private:
  double top_;
  Axis x_axis_, y_axis_;
};

std::string axes_svg(const Chart& chart, const Frame& frame) {
  const std::string grid = "class=\"grid\" stroke=\"#d9dde5\"", edge = "class=\"edge\" stroke=\"#6b7280\"";
  const std::string quiet = " class=\"quiet\" fill=\"#5a6270\"";
  const double right = kSvgWidth - kRight;
  std::string out;
  for (const AxisMark& mark : frame.y_axis().marks()) {
    out += svg_line(kLeft, frame.y(mark.value), right, frame.y(mark.value), grid);
    out += svg_text(kLeft - 8, frame.y(mark.value) + 4, "end",
                    chart.is_distribution ? axis_number(mark.value * 100) + " %" : mark.text, quiet);
  }
  for (const AxisMark& mark : frame.x_axis().marks()) {
    out += svg_line(frame.x(mark.value), frame.bottom(), frame.x(mark.value), frame.bottom() + 5, edge);
    out += svg_text(frame.x(mark.value), frame.bottom() + 19, "middle", mark.text, quiet);
  }
  out += svg_line(kLeft, frame.bottom(), right, frame.bottom(), edge);
  out += svg_text((kLeft + right) / 2, frame.bottom() + 40, "middle", chart.x);
  const std::string middle = svg_number(-(frame.top() + kPlotHeight / 2));
  out += svg_text(0, 0, "middle", chart.y, " transform=\"rotate(-90) translate(" + middle + " 15)\"");
  return out;
}

std::string rules_svg(const Chart& chart, const Frame& frame) {
  const std::string style = "class=\"rule\" stroke=\"#1f2430\" stroke-dasharray=\"2 4\"";
  std::string out;
  for (const ChartRule& rule : chart.rules) {
    const double right = kSvgWidth - kRight;
    if (!(rule.upright ? frame.x_axis() : frame.y_axis()).holds(rule.at)) continue;
    if (rule.upright) {
      const bool late = frame.x(rule.at) > kSvgWidth / 2;
      out += svg_line(frame.x(rule.at), frame.top(), frame.x(rule.at), frame.bottom(), style);
      out += svg_text(frame.x(rule.at) + (late ? -6 : 6), frame.bottom() - 8, late ? "end" : "start", rule.name);
    } else {
      out += svg_line(kLeft, frame.y(rule.at), right, frame.y(rule.at), style);
      out += svg_text(right - 4, frame.y(rule.at) + (frame.y(rule.at) < frame.top() + 16 ? 15 : -6), "end", rule.name);
    }
  }
  return out;
}

std::string tooltip(const std::string& name, const Point& point) {
  return name + ": " + axis_number(point.second) + " at " + axis_number(point.first);
}

std::string marks_svg(const ChartSeries& series, const std::vector<Point>& points, const Frame& frame, size_t colour) {
  const std::string named =
      "class=\"s" + std::to_string(colour % kSvgColours) + "\" stroke=\"" + svg_colour(colour) + "\"";
  std::string out;
  for (size_t i = 0; i < points.size(); ++i) {
    if (!frame.holds(points[i])) continue;
    const double x = frame.x(points[i].first);
    if (i < series.ranges.size() && frame.y_axis().holds(series.ranges[i].first) &&
        frame.y_axis().holds(series.ranges[i].second))
      out += svg_line(x, frame.y(series.ranges[i].first), x, frame.y(series.ranges[i].second),
                      named + " stroke-width=\"1.2\"");
    out += "<circle cx=\"" + svg_number(x) + "\" cy=\"" + svg_number(frame.y(points[i].second)) +
           "\" r=\"3.6\" class=\"f" + std::to_string(colour % kSvgColours) + "\" fill=\"" + svg_colour(colour) + "\">" +
           "<title>" + markup_text(tooltip(series.name, points[i])) + "</title></circle>";
  }
  return out;
}

// Of a distribution: nothing is below its least value, and each value lasts to the next.
std::string path_of(const Chart& chart, const std::vector<Point>& points, const Frame& frame) {
  std::string path;
  double last_y = frame.bottom();
  for (const Point& point : points) {
    if (!frame.holds(point)) continue;
    const std::string x = svg_number(frame.x(point.first)), y = svg_number(frame.y(point.second));
    if (chart.is_distribution) {
      path += (path.empty() ? "M" : "L") + x + " " + svg_number(last_y) + "L" + x + " " + y;
      last_y = frame.y(point.second);
    } else {
      path += (path.empty() ? "M" : "L") + x + " " + y;
    }
  }
  return path;
}

}  // namespace

std::string curves_svg(const Chart& chart) {
  const size_t drawn = std::min(chart.series.size(), kChartSeries);
  SvgLegend legend(kLeft, kSvgWidth - kRight);
  std::vector<std::vector<Point>> curves;
  for (size_t i = 0; i < drawn; ++i) {
    curves.push_back(thinned(chart.series[i].points));
    legend.add(colour_of(chart, i), chart.series[i].name + (chart.series[i].is_bound ? ", bound" : ""),
               chart.series[i].is_bound);
  }
  const Frame frame(chart, curves, legend.height() + 14);
  std::string shapes;
  for (size_t i = 0; i < drawn; ++i) {
    const ChartSeries& series = chart.series[i];
    const size_t colour = colour_of(chart, i);
    const std::string path = path_of(chart, curves[i], frame);
    if (path.empty()) continue;
    shapes += "<path d=\"" + path + "\" fill=\"none\" class=\"s" + std::to_string(colour % kSvgColours) +
              "\" stroke=\"" + svg_colour(colour) + "\" stroke-width=\"2\" stroke-linejoin=\"round\"" +
              (series.is_bound ? " stroke-dasharray=\"6 4\"" : "") + "/>";
    const bool marked = chart.has_marks || curves[i].size() == 1;
    if (marked && curves[i].size() <= kMarkedMost && !series.is_bound)
      shapes += marks_svg(series, curves[i], frame, colour);
  }
  std::string out = svg_open(frame.bottom() + kBottom, chart.title) + legend.svg() + axes_svg(chart, frame);
  if (shapes.empty()) out += svg_text(kSvgWidth / 2, frame.top() + kPlotHeight / 2, "middle", "no values");
  out += rules_svg(chart, frame) + shapes;
  const std::string missing = missing_note(chart.series.size() - drawn, "curves");
  if (!missing.empty()) out += svg_text(kSvgWidth - kRight, frame.bottom() + 40, "end", missing);
  return out + "</svg>";
}

}  // namespace loralei

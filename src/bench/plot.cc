// SPDX-License-Identifier: Apache-2.0
#include "bench/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace loralei {
namespace {

constexpr double kWidth = 760, kHeight = 300;                        // of the picture
constexpr double kLeft = 70, kRight = 170, kTop = 12, kBottom = 46;  // around the curves
constexpr size_t kPointsMost = 600;                                  // of a curve
constexpr double kMarks = 6;                                         // of an axis, about
constexpr const char* kColours[] = {"#3b6fd4", "#d4803b", "#3ba55c", "#b03bd4", "#c0392b", "#6b7280", "#0e9aa7"};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}
std::string pixel(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

struct Scale {
  double most_x = 1, most_y = 1;
  double x(double value) const { return kLeft + (kWidth - kLeft - kRight) * value / most_x; }
  double y(double value) const { return kHeight - kBottom - (kHeight - kTop - kBottom) * value / most_y; }
};

bool is_drawn(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second) && point.first >= 0 && point.second >= 0;
}

Scale scale_of(const BenchPlot& plot) {
  Scale scale{0, 0};
  for (const PlotSeries& series : plot.series) {
    for (const auto& point : series.points) {
      if (!is_drawn(point)) continue;
      scale.most_x = std::max(scale.most_x, point.first);
      scale.most_y = std::max(scale.most_y, point.second);
    }
  }
  if (scale.most_x <= 0) scale.most_x = 1;
  if (scale.most_y <= 0) scale.most_y = 1;
  return scale;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + pixel(x) + "\" y=\"" + pixel(y) + "\" text-anchor=\"" + anchor + "\">" + html_escape(text) +
         "</text>";
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return "<line x1=\"" + pixel(x1) + "\" y1=\"" + pixel(y1) + "\" x2=\"" + pixel(x2) + "\" y2=\"" + pixel(y2) + "\" " +
         style + "/>";
}

std::string axes(const BenchPlot& plot, const Scale& scale) {
  constexpr const char* kGrid = "stroke=\"#8888\" stroke-width=\"0.5\"";
  std::string out;
  for (const double mark : axis_marks(scale.most_x)) {
    out += line(scale.x(mark), scale.y(0), scale.x(mark), scale.y(0) + 4, "stroke=\"currentColor\"");
    out += text_at(scale.x(mark), scale.y(0) + 18, "middle", number(mark));
  }
  for (const double mark : axis_marks(scale.most_y)) {
    out += line(kLeft, scale.y(mark), kWidth - kRight, scale.y(mark), kGrid);
    out += text_at(kLeft - 6, scale.y(mark) + 4, "end", number(mark));
  }
  out += line(kLeft, scale.y(0), kWidth - kRight, scale.y(0), "stroke=\"currentColor\"");
  out += line(kLeft, scale.y(0), kLeft, kTop, "stroke=\"currentColor\"");
  out += text_at((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle", plot.x);
  out += "<text transform=\"rotate(-90)\" x=\"" + pixel(-(kTop + kHeight - kBottom) / 2) +
         "\" y=\"14\" text-anchor=\"middle\">" + html_escape(plot.y) + "</text>";
  return out;
}

// Of many points every n-th, and the last.
std::string curve(const PlotSeries& series, const Scale& scale, const char* colour) {
  const size_t stride = series.points.size() / kPointsMost + 1;
  std::string path;
  std::pair<double, double> last;
  for (size_t i = 0; i < series.points.size(); ++i) {
    const auto& point = series.points[i];
    if ((i % stride != 0 && i + 1 != series.points.size()) || !is_drawn(point)) continue;
    last = point;
    path += (path.empty() ? "M" : "L") + pixel(scale.x(point.first)) + " " + pixel(scale.y(point.second));
  }
  if (path.empty()) return "";
  return "<path d=\"" + path + "\" fill=\"none\" stroke=\"" + colour + "\" stroke-width=\"1.5\"><title>" +
         html_escape(series.name + ": ends at " + number(last.first) + ", " + number(last.second)) + "</title></path>";
}

}  // namespace

std::string html_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> axis_marks(double most) {
  if (!std::isfinite(most) || most <= 0) return {0};
  const double power = std::pow(10, std::floor(std::log10(most / kMarks)));
  double step = power;
  for (const double factor : {2.0, 5.0, 10.0})
    if (most / step > kMarks) step = factor * power;
  std::vector<double> marks;
  for (int i = 0; i * step <= most * (1 + 1e-9); ++i) marks.push_back(i * step);
  return marks;
}

std::string plot_svg(const BenchPlot& plot) {
  const Scale scale = scale_of(plot);
  std::string out = "<svg viewBox=\"0 0 " + pixel(kWidth) + " " + pixel(kHeight) + "\" width=\"" + pixel(kWidth) +
                    "\" role=\"img\" font-size=\"12\" fill=\"currentColor\"><title>" + html_escape(plot.title) +
                    "</title>" + axes(plot, scale);
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const char* const colour = kColours[i % std::size(kColours)];
    const double y = kTop + 10 + 18 * static_cast<double>(i);
    out += curve(plot.series[i], scale, colour);
    const std::string style = std::string("stroke=\"") + colour + "\" stroke-width=\"3\"";
    out += line(kWidth - kRight + 10, y - 4, kWidth - kRight + 28, y - 4, style.c_str());
    out += text_at(kWidth - kRight + 34, y, "start", plot.series[i].name);
  }
  return out + "</svg>";
}

}  // namespace loralei

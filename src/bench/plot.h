// SPDX-License-Identifier: Apache-2.0
// BenchPlot: curves of a bench run, drawn as SVG that stands in a page by itself.
//
// Plain values and a pure function. Points ascend in x; what is not finite is left out.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace loralei {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y
};

struct BenchPlot {
  std::string title, x, y;
  std::vector<PlotSeries> series;
};

// With axes, a legend, and the exact numbers in a tooltip of each curve's end.
std::string plot_svg(const BenchPlot& plot);

// Marks of an axis: a few round numbers (1, 2 or 5 times a power of ten apart) within
// 0 .. most.
std::vector<double> axis_marks(double most);

std::string html_escape(const std::string& text);

}  // namespace loralei

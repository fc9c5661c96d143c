// SPDX-License-Identifier: Apache-2.0
#include "report/merge.h"

#include <algorithm>

namespace loralei {

void merge_chart(const Chart& chart, std::vector<Chart>& charts) {
  const auto same = std::find_if(charts.begin(), charts.end(), [&](const Chart& other) {
    return other.title == chart.title && other.categories.empty() == chart.categories.empty();
  });
  if (same == charts.end()) {
    charts.push_back(chart);
    return;
  }
  std::vector<size_t> places;
  for (const std::string& category : chart.categories) {
    const auto at = std::find(same->categories.begin(), same->categories.end(), category);
    places.push_back(static_cast<size_t>(at - same->categories.begin()));
    if (at == same->categories.end()) same->categories.push_back(category);
  }
  for (ChartSeries series : chart.series) {
    for (auto& point : series.points)
      if (point.first >= 0 && point.first < static_cast<double>(places.size()))
        point.first = static_cast<double>(places[static_cast<size_t>(point.first)]);
    same->series.push_back(std::move(series));
  }
  for (const ChartRule& rule : chart.rules) {
    const auto is_same = [&](const ChartRule& other) { return other.name == rule.name && other.at == rule.at; };
    if (std::none_of(same->rules.begin(), same->rules.end(), is_same)) same->rules.push_back(rule);
  }
}

}  // namespace loralei

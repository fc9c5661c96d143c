// SPDX-License-Identifier: Apache-2.0
#include "bench/row_charts.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>

namespace loralei {
namespace {

constexpr size_t kSeriesMost = 8;  // of a chart; of more each metric has its own
constexpr size_t kChartsMost = 24;

// Parts of names that are numbers, and what they count.
struct NumberPart {
  std::string_view scenario, before, after, what;
};
constexpr NumberPart kNumberParts[] = {
    {"decode", "b", "", "sequences together"},
    {"prefill", "p", "", "tokens of the prompt"},
    {"mixed", "n", "", "adapters together"},
    {"flatness", "n", "", "adapters that requests draw from"},
    {"offload", "", "gb", "memory budget, GB"},
    {"coldstart", "load", "", "requests a second, of what cached completes"},
    {"coldstart", "functions", "", "functions that requests call"},
    {"prefix", "m", "", "share of the agents' steps that another model takes, %"},
    {"machine", "t", "", "threads"},
    {"kv-codec", "t", "", "threads"},
    {"kv-codec", "cos", "", "cosine"},
    {"server", "n", "", "requests together"},
};

struct UnitWords {
  std::string_view unit, title, axis;
};
constexpr UnitWords kUnitWords[] = {
    {"tok/s", "Tokens a second", "tokens a second"},
    {"ms", "Times", "milliseconds"},
    {"s", "Times", "seconds"},
    {"us", "Times", "microseconds"},
    {"ns", "Times", "nanoseconds"},
    {"GB/s", "Bytes a second", "GB/s"},
    {"GB", "Bytes", "GB"},
    {"MB", "Bytes", "MB"},
    {"ratio", "Ratios", "ratio"},
    {"%", "Per cent", "%"},
    {"bits", "Bits", "bits"},
    {"tokens", "Tokens", "tokens"},
    {"requests", "Requests", "requests"},
    {"", "Counts", "count"},
};

// Whether a part is a whole number, or begins as one of those that are counted.
bool is_number_begun(const std::string& scenario, std::string_view part) {
  const auto is_whole = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return is_whole(part) || std::any_of(std::begin(kNumberParts), std::end(kNumberParts), [&](const NumberPart& kind) {
           return kind.scenario == scenario && !kind.before.empty() && part.starts_with(kind.before) &&
                  is_whole(part.substr(kind.before.size()));
         });
}

// At points, but for those within numbers ("load0.3", "1.5gb").
std::vector<std::string> parts_of(const std::string& scenario, const std::string& name) {
  std::vector<std::string> parts(1);
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit_follows = i + 1 < name.size() && name[i + 1] >= '0' && name[i + 1] <= '9';
    if (name[i] == '.' && !(digit_follows && is_number_begun(scenario, parts.back())))
      parts.emplace_back();
    else
      parts.back() += name[i];
  }
  return parts;
}

std::optional<double> number_in(const std::string& part, const NumberPart& kind) {
  if (!part.starts_with(kind.before) || !part.ends_with(kind.after)) return std::nullopt;
  if (part.size() <= kind.before.size() + kind.after.size()) return std::nullopt;
  const char* const begin = part.data() + kind.before.size();
  const char* const end = part.data() + part.size() - kind.after.size();
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

struct NamedRow {
  const BenchRow* row = nullptr;
  std::vector<std::string> parts;  // without the number
  std::optional<double> x;
  std::string number_part;
  std::string_view x_words;
  std::string metric() const { return parts.empty() ? "" : parts.back(); }
  // Without so many parts at the front, and at the end.
  std::string name(size_t from, size_t left_out = 0) const {
    std::string text;
    for (size_t i = from; i + left_out < parts.size(); ++i) text += (text.empty() ? "" : ".") + parts[i];
    return text;
  }
};

NamedRow named(const std::string& scenario, const BenchRow& row) {
  NamedRow one{.row = &row, .parts = parts_of(scenario, row.name), .x = {}, .number_part = "", .x_words = ""};
  for (const NumberPart& kind : kNumberParts) {
    if (kind.scenario != scenario) continue;
    for (size_t i = 1; i < one.parts.size() && !one.x; ++i) {
      one.x = number_in(one.parts[i], kind);
      if (!one.x) continue;
      one.x_words = kind.what;
      one.number_part = one.parts[i];
      one.parts.erase(one.parts.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return one;
}

using Rows = std::vector<NamedRow>;

size_t series_in(const Rows& rows) {
  std::set<std::string> names;
  for (const NamedRow& one : rows) names.insert(one.name(0));
  return names.size();
}

// Parts at the front that all have.
size_t common_parts(const Rows& rows) {
  size_t count = rows.front().parts.size();
  for (const NamedRow& one : rows) {
    const auto [first, second] =
        std::mismatch(rows.front().parts.begin(), rows.front().parts.end(), one.parts.begin(), one.parts.end());
    count = std::min(count, static_cast<size_t>(first - rows.front().parts.begin()));
  }
  return std::min(count, rows.front().parts.size() > 1 ? rows.front().parts.size() - 1 : count);
}

// Parts of names that a chart need not repeat.
struct NameEnds {
  size_t front = 0, back = 0;
};

ChartSeries& series_of(Chart& chart, const std::string& name, bool is_bound) {
  for (ChartSeries& series : chart.series)
    if (series.name == name && series.is_bound == is_bound) return series;
  chart.series.push_back({.name = name, .points = {}, .ranges = {}, .is_bound = is_bound});
  return chart.series.back();
}

void sort_points(ChartSeries& series) {
  std::vector<size_t> order(series.points.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t one, size_t other) { return series.points[one].first < series.points[other].first; });
  ChartSeries sorted = series;
  for (size_t i = 0; i < order.size(); ++i) {
    sorted.points[i] = series.points[order[i]];
    if (!series.ranges.empty()) sorted.ranges[i] = series.ranges[order[i]];
  }
  series = std::move(sorted);
}

// What all have the same bound has one.
void share_bound(Chart& chart) {
  const auto is_bound = [](const ChartSeries& series) { return series.is_bound; };
  const auto first = std::find_if(chart.series.begin(), chart.series.end(), is_bound);
  if (first == chart.series.end() || std::count_if(chart.series.begin(), chart.series.end(), is_bound) < 2) return;
  ChartSeries bound = *first;
  const auto is_other = [&](const ChartSeries& series) { return series.is_bound && series.points != bound.points; };
  if (std::any_of(chart.series.begin(), chart.series.end(), is_other)) return;
  std::erase_if(chart.series, is_bound);
  bound.name = "all";
  chart.series.push_back(std::move(bound));
}

void fill_curves(const Rows& rows, const NameEnds& ends, Chart& chart) {
  chart.has_marks = true;
  chart.x = std::string(rows.front().x_words);
  chart.x_scale = ChartScale::kAuto;
  for (const NamedRow& one : rows) {
    const std::string name = one.name(ends.front, ends.back);
    ChartSeries& series = series_of(chart, name, false);
    series.points.emplace_back(*one.x, one.row->value);
    series.ranges.emplace_back(one.row->min, one.row->max);
    if (one.row->bound) series_of(chart, name, true).points.emplace_back(*one.x, *one.row->bound);
    if (one.row->peer) series_of(chart, name + ", peer", false).points.emplace_back(*one.x, *one.row->peer);
  }
  for (ChartSeries& series : chart.series) sort_points(series);
  share_bound(chart);
}

void fill_bars(const Rows& rows, const NameEnds& ends, Chart& chart) {
  for (const NamedRow& one : rows) {
    const auto x = static_cast<double>(chart.categories.size());
    const std::string name = one.name(ends.front, ends.back);
    chart.categories.push_back(one.number_part + (one.number_part.empty() || name.empty() ? "" : ".") + name);
    ChartSeries& series = series_of(chart, "median", false);
    series.points.emplace_back(x, one.row->value);
    series.ranges.emplace_back(one.row->min, one.row->max);
    if (one.row->bound) series_of(chart, "median", true).points.emplace_back(x, *one.row->bound);
    if (one.row->peer) series_of(chart, "peer", false).points.emplace_back(x, *one.row->peer);
  }
}

Chart chart_of(const Rows& rows) {
  const std::string& unit = rows.front().row->unit;
  Chart chart;
  chart.title = chart.y = unit;
  for (const UnitWords& words : kUnitWords) {
    if (words.unit != unit) continue;
    chart.title = words.title;
    chart.y = words.axis;
  }
  std::map<std::string, std::set<double>> places;
  bool all_have_x = true;
  size_t most = 0;  // places of a curve
  for (const NamedRow& one : rows) {
    all_have_x = all_have_x && one.x;
    std::set<double>& curve = places[one.name(0)];
    if (one.x) curve.insert(*one.x);
    most = std::max(most, curve.size());
  }
  NameEnds ends{.front = common_parts(rows)};
  const bool one_metric = std::all_of(rows.begin(), rows.end(), [&](const NamedRow& one) {
    return one.metric() == rows.front().metric() && one.parts.size() > ends.front + 1;
  });
  ends.back = one_metric ? 1 : 0;
  if (one_metric && unit != "tok/s") chart.title += ": " + rows.front().metric();
  for (size_t i = 1; i < ends.front; ++i) chart.note += (chart.note.empty() ? "" : ".") + rows.front().parts[i];
  if (!chart.note.empty()) chart.note = "Rows of " + chart.note + ".";
  if (all_have_x && most > 1)
    fill_curves(rows, ends, chart);
  else
    fill_bars(rows, ends, chart);
  return chart;
}

// In the order of their first row.
template <typename Key>
std::vector<Rows> grouped(const Rows& rows, const Key& key) {
  std::vector<Rows> groups;
  std::map<std::string, size_t> places;
  for (const NamedRow& one : rows) {
    const auto [at, is_new] = places.try_emplace(key(one), groups.size());
    if (is_new) groups.emplace_back();
    groups[at->second].push_back(one);
  }
  return groups;
}

// "rank_16" of "simulate.rank_16.first_token.p50_ms".
std::optional<std::string> class_of(const std::string& name, const std::string& end) {
  const size_t first = name.find('.');
  if (first == std::string::npos || !name.ends_with(end) || name.size() <= first + 1 + end.size()) return std::nullopt;
  return name.substr(first + 1, name.size() - first - 1 - end.size());
}

}  // namespace

std::vector<Chart> row_charts(const BenchReport& report) {
  Rows rows;
  for (const BenchRow& row : report.rows) rows.push_back(named(report.scenario, row));
  std::vector<Chart> charts;
  for (const Rows& of_unit : grouped(rows, [](const NamedRow& one) { return one.row->unit + (one.x ? " x" : ""); })) {
    const bool split = series_in(of_unit) > kSeriesMost && of_unit.front().x;
    if (!split) charts.push_back(chart_of(of_unit));
    if (!split) continue;
    for (const Rows& of_metric : grouped(of_unit, [](const NamedRow& one) { return one.metric(); }))
      charts.push_back(chart_of(of_metric));
  }
  // One bar says no more than its row.
  const auto says_little = [](const Chart& chart) { return chart.categories.size() == 1; };
  if (!std::all_of(charts.begin(), charts.end(), says_little)) std::erase_if(charts, says_little);
  std::set<std::string> titles;
  for (Chart& chart : charts) {
    if (titles.contains(chart.title)) chart.title += " (" + chart.y + ")";
    while (!titles.insert(chart.title).second) chart.title += ", more";
  }
  if (charts.size() > kChartsMost) charts.resize(kChartsMost);
  return charts;
}

bool is_load_report(const BenchReport& report) { return find_row(report, "all.first_token.p50_ms") != nullptr; }

const BenchRow* find_row(const BenchReport& report, const std::string& name) {
  for (const BenchRow& row : report.rows)
    if (const size_t first = row.name.find('.'); first != std::string::npos && row.name.substr(first + 1) == name)
      return &row;
  return nullptr;
}

std::vector<Chart> load_row_charts(const BenchReport& report) {
  struct Shape {
    const char *title, *name;
  };
  std::vector<Chart> charts;
  for (const Shape& shape :
       {Shape{"Time to the first token, by class", "first_token"}, Shape{"Time to the end, by class", "end"},
        Shape{"Time of a token of the answer, by class", "token"}}) {
    Chart chart{.title = shape.title, .x = "", .y = "milliseconds"};
    for (const char* percentile : {"p50", "p90", "p99"}) {
      const std::string end = std::string(".") + shape.name + "." + percentile + "_ms";
      for (const BenchRow& row : report.rows) {
        const std::optional<std::string> name = class_of(row.name, end);
        if (!name) continue;
        ChartSeries& series = series_of(chart, percentile, false);
        auto at = std::find(chart.categories.begin(), chart.categories.end(), *name);
        if (at == chart.categories.end()) at = chart.categories.insert(at, *name);
        series.points.emplace_back(static_cast<double>(at - chart.categories.begin()), row.value);
      }
    }
    if (chart.categories.size() > 1) charts.push_back(std::move(chart));
  }
  Chart waits{.title = "Waiting, by cause", .x = "", .y = "milliseconds of a request, in the mean"};
  for (const BenchRow& row : report.rows) {
    const size_t at = row.name.find(".waited.");
    constexpr std::string_view kEnd = ".mean_ms";
    if (at == std::string::npos || !row.name.ends_with(kEnd)) continue;
    const size_t begin = at + std::string_view(".waited.").size();
    series_of(waits, "mean", false).points.emplace_back(static_cast<double>(waits.categories.size()), row.value);
    waits.categories.push_back(row.name.substr(begin, row.name.size() - kEnd.size() - begin));
  }
  if (!waits.categories.empty()) charts.push_back(std::move(waits));
  return charts;
}

}  // namespace loralei

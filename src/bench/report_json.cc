// SPDX-License-Identifier: Apache-2.0
// Reports as JSON, written and read.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/report.h"
#include "formats/json_util.h"

namespace loralei {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kReportBytesMost = int64_t{1} << 27;

ordered_json pairs_json(const std::vector<std::pair<double, double>>& points) {
  ordered_json list = ordered_json::array();
  for (const auto& [x, y] : points) list.push_back({x, y});
  return list;
}

ordered_json chart_json(const Chart& chart) {
  ordered_json json{{"title", chart.title}, {"x", chart.x}, {"y", chart.y}};
  if (!chart.categories.empty()) json["categories"] = chart.categories;
  if (!chart.note.empty()) json["note"] = chart.note;
  if (chart.is_distribution) json["distribution"] = true;
  if (chart.has_marks) json["marks"] = true;
  for (const auto& [name, scale] : {std::pair("x_scale", chart.x_scale), std::pair("y_scale", chart.y_scale)})
    if (scale != ChartScale::kLinear) json[name] = scale == ChartScale::kLog ? "log" : "auto";
  json["series"] = ordered_json::array();
  for (const ChartSeries& series : chart.series) {
    ordered_json entry{{"name", series.name}, {"points", pairs_json(thinned(series.points))}};
    if (!series.ranges.empty() && series.points.size() <= kChartPoints) entry["ranges"] = pairs_json(series.ranges);
    if (series.is_bound) entry["bound"] = true;
    json["series"].push_back(std::move(entry));
  }
  for (const ChartRule& rule : chart.rules)
    json["rules"].push_back({{"at", rule.at}, {"name", rule.name}, {"upright", rule.upright}});
  return json;
}

// A list of objects under `key`; an absent one is empty.
Result<std::vector<const Json*>> objects_of(const Json& object, const char* key, const std::string& place) {
  std::vector<const Json*> objects;
  const Json* const list = json_find(object, key);
  if (list == nullptr) return objects;
  const bool is_list = list->is_array();
  if (!is_list || !std::all_of(list->begin(), list->end(), [](const Json& one) { return one.is_object(); }))
    return invalid_argument(place + ": \"" + key + "\" is not a list of objects; give a file that --json wrote.");
  for (const Json& one : *list) objects.push_back(&one);
  return objects;
}

Result<double> number_of(const Json& object, const char* key, const std::string& place) {
  TRY_ASSIGN(const std::optional<double> value, json_number(object, key, place));
  return value.value_or(0);
}
Result<std::string> text_of(const Json& object, const char* key, const std::string& place) {
  TRY_ASSIGN(std::optional<std::string> value, json_string(object, key, place));
  return std::move(value).value_or("");
}
Result<bool> flag_of(const Json& object, const char* key, const std::string& place) {
  TRY_ASSIGN(const std::optional<bool> value, json_bool(object, key, place));
  return value.value_or(false);
}

Result<std::vector<std::pair<double, double>>> points_of(const Json& object, const char* key,
                                                         const std::string& place) {
  std::vector<std::pair<double, double>> points;
  const Json* const list = json_find(object, key);
  if (list == nullptr) return points;
  if (!list->is_array()) return invalid_argument(place + ": \"" + key + "\" is not a list of points.");
  for (const Json& one : *list) {
    // A number that is not finite was written as null.
    if (!one.is_array() || one.size() != 2) return invalid_argument(place + ": a point is not two numbers.");
    if (one[0].is_number() && one[1].is_number()) points.emplace_back(one[0].get<double>(), one[1].get<double>());
  }
  return points;
}

Result<ChartScale> scale_of(const Json& object, const char* key, const std::string& place) {
  TRY_ASSIGN(const std::string name, text_of(object, key, place));
  return name == "log" ? ChartScale::kLog : name == "auto" ? ChartScale::kAuto : ChartScale::kLinear;
}

Result<Chart> parse_chart(const Json& object, const std::string& place) {
  Chart chart;
  TRY_ASSIGN(chart.title, text_of(object, "title", place));
  TRY_ASSIGN(chart.x, text_of(object, "x", place));
  TRY_ASSIGN(chart.y, text_of(object, "y", place));
  TRY_ASSIGN(chart.note, text_of(object, "note", place));
  TRY_ASSIGN(chart.is_distribution, flag_of(object, "distribution", place));
  TRY_ASSIGN(chart.has_marks, flag_of(object, "marks", place));
  TRY_ASSIGN(chart.x_scale, scale_of(object, "x_scale", place));
  TRY_ASSIGN(chart.y_scale, scale_of(object, "y_scale", place));
  TRY_ASSIGN(std::optional<std::vector<std::string>> categories, json_strings(object, "categories", place));
  chart.categories = std::move(categories).value_or(std::vector<std::string>());
  TRY_ASSIGN(const std::vector<const Json*> series, objects_of(object, "series", place));
  for (const Json* one : series) {
    ChartSeries& entry = chart.series.emplace_back();
    TRY_ASSIGN(entry.name, text_of(*one, "name", place));
    TRY_ASSIGN(entry.points, points_of(*one, "points", place));
    TRY_ASSIGN(entry.ranges, points_of(*one, "ranges", place));
    TRY_ASSIGN(entry.is_bound, flag_of(*one, "bound", place));
  }
  TRY_ASSIGN(const std::vector<const Json*> rules, objects_of(object, "rules", place));
  for (const Json* one : rules) {
    ChartRule& rule = chart.rules.emplace_back();
    TRY_ASSIGN(rule.at, number_of(*one, "at", place));
    TRY_ASSIGN(rule.name, text_of(*one, "name", place));
    TRY_ASSIGN(rule.upright, flag_of(*one, "upright", place));
  }
  return chart;
}

Result<BenchRow> parse_row(const Json& object, const std::string& place) {
  BenchRow row;
  TRY_ASSIGN(row.name, text_of(object, "name", place));
  TRY_ASSIGN(row.unit, text_of(object, "unit", place));
  TRY_ASSIGN(row.value, number_of(object, "value", place));
  TRY_ASSIGN(row.min, number_of(object, "min", place));
  TRY_ASSIGN(row.max, number_of(object, "max", place));
  TRY_ASSIGN(const std::optional<int64_t> samples, json_int(object, "n", 0, INT32_MAX, place));
  row.samples = static_cast<int>(samples.value_or(1));
  TRY_ASSIGN(row.bound, json_number(object, "bound", place));
  TRY_ASSIGN(row.peer, json_number(object, "peer", place));
  TRY_ASSIGN(row.note, text_of(object, "note", place));
  return row;
}

std::map<std::string, std::string> words_of(const Json& object, const char* key) {
  std::map<std::string, std::string> words;
  const Json* const found = json_find(object, key);
  if (found == nullptr || !found->is_object()) return words;
  for (const auto& [name, value] : found->items())
    if (value.is_string()) words[name] = value.get<std::string>();
  return words;
}

}  // namespace

std::string report_json(const BenchReport& report) {
  ordered_json json;
  json["scenario"] = report.scenario;
  json["version"] = report.version;
  json["time"] = report.time;
  json["machine"] = report.machine;
  json["args"] = report.args;
  if (!report.command.empty()) json["command"] = report.command;
  json["rows"] = ordered_json::array();
  for (const BenchRow& row : report.rows) {
    ordered_json entry{{"name", row.name}, {"unit", row.unit}, {"value", row.value},
                       {"min", row.min},   {"max", row.max},   {"n", row.samples}};
    if (row.bound) {
      entry["bound"] = *row.bound;
      if (row.fraction()) entry["fraction"] = *row.fraction();
    }
    if (row.peer) {
      entry["peer"] = *row.peer;
      if (row.ratio()) entry["ratio"] = *row.ratio();
    }
    if (row.dropped > 0) entry["dropped"] = row.dropped;
    if (!row.note.empty()) entry["note"] = row.note;
    json["rows"].push_back(std::move(entry));
  }
  json["targets"] = ordered_json::array();
  for (const BenchTarget& target : report.targets) {
    json["targets"].push_back({{"name", target.name},
                               {"op", target.op},
                               {"target", target.target},
                               {"measured", target.measured},
                               {"ok", target.ok()}});
  }
  std::string text = json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
  // A line for each chart: their points would take one each.
  if (!report.plots.empty()) {
    std::string charts;
    for (const Chart& chart : report.plots)
      charts += (charts.empty() ? "\n    " : ",\n    ") +
                chart_json(chart).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    text = text.substr(0, text.size() - 2) + ",\n  \"charts\": [" + charts + "\n  ]\n}";
  }
  return text + "\n";
}

Result<BenchReport> parse_report(std::string_view text, const std::string& place) {
  TRY_ASSIGN(const Json json, parse_json_object(text, place, kReportBytesMost));
  BenchReport report;
  TRY_ASSIGN(report.scenario, text_of(json, "scenario", place));
  TRY_ASSIGN(report.version, text_of(json, "version", place));
  TRY_ASSIGN(report.time, text_of(json, "time", place));
  TRY_ASSIGN(report.command, text_of(json, "command", place));
  report.machine = words_of(json, "machine");
  report.args = words_of(json, "args");
  if (report.scenario.empty() || json_find(json, "rows") == nullptr)
    return invalid_argument(place + " is no report; give files that bench or simulate wrote with --json.");
  TRY_ASSIGN(const std::vector<const Json*> rows, objects_of(json, "rows", place));
  for (const Json* one : rows) {
    TRY_ASSIGN(BenchRow row, parse_row(*one, place));
    report.rows.push_back(std::move(row));
  }
  TRY_ASSIGN(const std::vector<const Json*> targets, objects_of(json, "targets", place));
  for (const Json* one : targets) {
    BenchTarget& target = report.targets.emplace_back();
    TRY_ASSIGN(target.name, text_of(*one, "name", place));
    TRY_ASSIGN(target.op, text_of(*one, "op", place));
    TRY_ASSIGN(target.target, number_of(*one, "target", place));
    TRY_ASSIGN(target.measured, number_of(*one, "measured", place));
  }
  TRY_ASSIGN(const std::vector<const Json*> charts, objects_of(json, "charts", place));
  for (const Json* one : charts) {
    TRY_ASSIGN(Chart chart, parse_chart(*one, place));
    report.plots.push_back(std::move(chart));
  }
  return report;
}

}  // namespace loralei

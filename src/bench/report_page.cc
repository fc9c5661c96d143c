// SPDX-License-Identifier: Apache-2.0
#include "bench/report_page.h"

#include <algorithm>

#include "bench/row_charts.h"
#include "report/merge.h"
#include "report/page.h"

namespace loralei {
namespace {

using Cell = ReportTable::Cell;

constexpr size_t kTilesMost = 6;

Cell number_cell(double value) { return {figure_text(value), true, value}; }

ReportTile tile_of(const BenchRow& row, const std::string& name) { return {figure_text(row.value), row.unit, name}; }

// Of a served workload those that everybody asks for, else the first that have a bound,
// or are rates.
std::vector<ReportTile> tiles_of(const BenchReport& report) {
  constexpr std::pair<const char*, const char*> kLoad[] = {
      {"requests_per_s", "requests completed"},         {"tokens_per_s", "tokens of answers"},
      {"all.first_token.p50_ms", "first token, P50"},   {"all.first_token.p99_ms", "first token, P99"},
      {"between_tokens.p99_ms", "between tokens, P99"}, {"good_share", "within the objectives"},
      {"prefix_hits", "of prompts found in the cache"}};
  std::vector<ReportTile> tiles;
  for (const auto& [name, words] : kLoad)
    if (const BenchRow* const row = find_row(report, name); row != nullptr && tiles.size() < kTilesMost)
      tiles.push_back(tile_of(*row, words));
  if (!tiles.empty()) return tiles;
  const auto short_name = [&](const BenchRow& row) {
    return row.name.starts_with(report.scenario + ".") ? row.name.substr(report.scenario.size() + 1) : row.name;
  };
  for (const BenchRow& row : report.rows)
    if ((row.bound || row.unit == "tok/s") && tiles.size() < kTilesMost) tiles.push_back(tile_of(row, short_name(row)));
  for (const BenchRow& row : report.rows)
    if (tiles.empty() || (tiles.size() < kTilesMost && !row.bound && row.unit == "GB/s"))
      tiles.push_back(tile_of(row, short_name(row)));
  return tiles;
}

ReportTable figures_of(const BenchReport& report) {
  const auto any = [&](auto&& has) { return std::any_of(report.rows.begin(), report.rows.end(), has); };
  const bool bounds = any([](const BenchRow& row) { return row.bound.has_value(); });
  const bool peers = any([](const BenchRow& row) { return row.peer.has_value(); });
  const bool notes = any([](const BenchRow& row) { return !row.note.empty(); });
  ReportTable table{{"figure", "median", "unit", "min", "max", "n"}, {}};
  if (bounds) table.head.insert(table.head.end(), {"bound", "fraction"});
  if (peers) table.head.insert(table.head.end(), {"peer", "ratio"});
  if (notes) table.head.push_back("note");
  const auto some = [](const std::optional<double>& value) { return value ? number_cell(*value) : Cell{}; };
  for (const BenchRow& row : report.rows) {
    std::vector<Cell> cells = {
        {row.name},           number_cell(row.value),
        {row.unit},           number_cell(row.min),
        number_cell(row.max), {std::to_string(row.samples), true, static_cast<double>(row.samples)}};
    if (bounds) cells.insert(cells.end(), {some(row.bound), some(row.fraction())});
    if (peers) cells.insert(cells.end(), {some(row.peer), some(row.ratio())});
    if (notes) cells.push_back({row.note});
    table.rows.push_back(std::move(cells));
  }
  return table;
}

std::string seed_text(const BenchReport& report) {
  for (const char* name : {"--seed", "--faults"})
    if (const auto found = report.args.find(name); found != report.args.end()) return found->second;
  return "the scenario's own: the same requests in every run";
}

void add_facts(const BenchReport& report, ReportPage& page) {
  page.facts.emplace_back("version", report.version);
  if (!report.time.empty()) page.facts.emplace_back("date", report.time);
  for (const auto& [name, value] : report.machine) page.facts.emplace_back(name, value);
}

std::vector<Chart> charts_of(const BenchReport& report) {
  std::vector<Chart> charts = report.plots;
  for (Chart& chart : is_load_report(report) ? load_row_charts(report) : row_charts(report))
    charts.push_back(std::move(chart));
  return charts;
}

bool is_of_output(const std::string& option) {
  for (const char* name : {"--json", "--html", "--report", "--step-log", "--memory-trace"})
    if (option == name) return true;
  return false;
}

std::string file_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// Options that not all runs have, or not with one value.
std::vector<std::string> options_that_differ(std::span<const NamedReport> runs) {
  std::map<std::string, std::pair<size_t, std::string>> seen;  // in so many runs, with this value
  std::vector<std::string> names;
  const auto differs = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const NamedReport& run : runs) {
    for (const auto& [name, value] : run.report.args) {
      if (is_of_output(name)) continue;
      const auto [at, is_new] = seen.try_emplace(name, 0, value);
      ++at->second.first;
      if (at->second.second != value) differs(name);
    }
  }
  for (const auto& [name, counted] : seen)
    if (counted.first < runs.size()) differs(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string name_by(const BenchReport& report, const std::vector<std::string>& options, bool workload_too) {
  std::string text;
  for (const std::string& name : options) {
    const auto found = report.args.find(name);
    if (found == report.args.end() || (name == "--workload" && !workload_too)) continue;
    const bool is_path = found->second.find('/') != std::string::npos;
    const std::string value = is_path ? file_name(found->second) : found->second;
    text += (text.empty() ? "" : " ") + (value == "true"        ? name.substr(2)
                                         : name == "--workload" ? value
                                                                : name.substr(2) + " " + value);
  }
  return text;
}

// What served workloads came to, against the rate at which their requests came.
void add_rate_charts(std::span<const NamedReport> runs, std::vector<Chart>& charts) {
  struct Figure {
    const char *title, *row, *y;
  };
  constexpr Figure kFigures[] = {
      {"Share within the objectives, against the rate", "good_share", "share of requests"},
      {"Goodput against the rate", "good_per_s", "requests a second within the objectives"},
      {"Time to the first token (P50) against the rate", "all.first_token.p50_ms", "milliseconds"},
      {"Time to the first token (P99) against the rate", "all.first_token.p99_ms", "milliseconds"},
      {"Time between tokens (P99) against the rate", "between_tokens.p99_ms", "milliseconds"},
      {"Tokens a second against the rate", "tokens_per_s", "tokens a second"}};
  const std::vector<std::string> options = options_that_differ(runs);
  std::map<std::string, std::map<double, const BenchReport*>> groups;
  size_t most = 0;
  for (const NamedReport& run : runs) {
    const BenchRow* const rate = find_row(run.report, "offered_per_s");
    if (rate == nullptr) continue;
    auto& group = groups[name_by(run.report, options, false)];
    group[rate->value] = &run.report;
    most = std::max(most, group.size());
  }
  if (most < 2) return;
  for (const Figure& figure : kFigures) {
    Chart chart{.title = figure.title, .x = "requests a second that come", .y = figure.y, .has_marks = true};
    for (const auto& [name, group] : groups) {
      ChartSeries series{.name = name.empty() ? "all runs" : name};
      for (const auto& [rate, report] : group)
        if (const BenchRow* const row = find_row(*report, figure.row); row != nullptr)
          series.points.emplace_back(rate, row->value);
      if (!series.points.empty()) chart.series.push_back(std::move(series));
    }
    if (!chart.series.empty()) charts.push_back(std::move(chart));
  }
}

ReportTable compared_figures(std::span<const NamedReport> runs, const std::vector<std::string>& names) {
  ReportTable table{{"figure", "unit"}, {}};
  table.head.insert(table.head.end(), names.begin(), names.end());
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const BenchRow& row : runs[i].report.rows) {
      const auto [at, is_new] = places.try_emplace(row.name, table.rows.size());
      if (is_new) {
        table.rows.emplace_back(runs.size() + 2);
        table.rows.back()[0] = {row.name};
        table.rows.back()[1] = {row.unit};
      }
      table.rows[at->second][i + 2] = number_cell(row.value);
    }
  }
  return table;
}

ReportPage page_of(const BenchReport& report) {
  ReportPage page;
  page.title = "loralei " + report.scenario;
  page.subtitle = report.version + (report.time.empty() ? "" : " · " + report.time);
  page.command = report.command;
  add_facts(report, page);
  page.facts.emplace_back("seed", seed_text(report));
  page.tiles = tiles_of(report);
  for (const BenchTarget& target : report.targets)
    page.claims.push_back({target.name + " " + target.op + " " + figure_text(target.target) + ": measured " +
                               figure_text(target.measured),
                           target.ok()});
  page.charts = charts_of(report);
  page.figures = figures_of(report);
  return page;
}

}  // namespace

std::string report_html(const BenchReport& report) { return report_page(page_of(report)); }

std::vector<std::string> run_names(std::span<const NamedReport> runs) {
  const std::vector<std::string> options = options_that_differ(runs);
  std::vector<std::string> names;
  for (const NamedReport& run : runs) {
    names.push_back(name_by(run.report, options, true));
    if (names.back().empty()) names.back() = file_name(run.file);
  }
  for (size_t i = 0; i < names.size(); ++i)
    if (std::count(names.begin(), names.end(), names[i]) > 1) names[i] += " (" + file_name(runs[i].file) + ")";
  return names;
}

std::string comparison_html(const std::string& title, const std::string& command, std::span<const NamedReport> runs) {
  ReportPage page;
  if (runs.size() == 1) page = page_of(runs[0].report);
  page.title = title;
  if (runs.size() == 1) return report_page(page);
  page.subtitle = std::to_string(runs.size()) + " runs beside each other";
  page.command = command;
  const std::vector<std::string> names = run_names(runs);
  add_rate_charts(runs, page.charts);
  for (size_t i = 0; i < runs.size(); ++i) {
    const BenchReport& report = runs[i].report;
    const std::string who = names[i];
    for (Chart& chart : charts_of(report)) {
      for (ChartSeries& series : chart.series) series.name = chart.series.size() == 1 ? who : who + ": " + series.name;
      merge_chart(chart, page.charts);
    }
    std::string machine;
    for (const auto& [name, value] : report.machine) machine += ", " + name + " " + value;
    page.facts.emplace_back(who, runs[i].file + ": " + report.scenario + ", " + report.version +
                                     (report.time.empty() ? "" : ", " + report.time) + machine +
                                     (report.command.empty() ? "" : "; " + report.command));
  }
  page.figures = compared_figures(runs, names);
  return report_page(page);
}

}  // namespace loralei

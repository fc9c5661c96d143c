// SPDX-License-Identifier: Apache-2.0
#include "bench/coldstart_figures.h"

#include <algorithm>

#include "base/check.h"

namespace loralei {
namespace {

constexpr double kMs = 1e-6;  // of a nanosecond

// CaraServe with helpers over its CACHED (section 7.2), and what is wanted here.
struct Limits {
  double target, goal;
};
constexpr Limits kFirst = {22, 5}, kToken = {11, 3}, kRequest = {9, 3};

template <typename Value>
std::vector<double> by_round(const ColdWay& way, Value&& value) {
  std::vector<double> values;
  for (size_t round = 0; round < way.rounds.size(); ++round) values.push_back(value(round));
  return values;
}

using Figure = double ColdFigures::*;

std::vector<double> over(const ColdWay& way, const ColdWay& cached, Figure figure) {
  return by_round(way,
                  [&](size_t round) { return percent_over(way.rounds[round].*figure, cached.rounds[round].*figure); });
}

// Of a point of the distribution.
std::vector<double> over_at(const ColdWay& way, const ColdWay& cached, int percent) {
  const auto at = static_cast<size_t>(std::find(kColdPoints.begin(), kColdPoints.end(), percent) - kColdPoints.begin());
  return by_round(way, [&](size_t round) {
    return percent_over(way.rounds[round].first_ms.at(at), cached.rounds[round].first_ms.at(at));
  });
}

void add_times(const std::string& prefix, const ColdWay& way, BenchReport& report) {
  const auto row = [&](const std::string& name, std::vector<double> values) {
    report.rows.push_back(summarise(prefix + name, "ms", std::move(values)));
  };
  row("first_token_ms", by_round(way, [&](size_t round) { return way.rounds[round].first_mean_ms; }));
  for (size_t at = 0; at < kColdPoints.size(); ++at) {
    row("first_token_p" + std::to_string(kColdPoints[at]) + "_ms",
        by_round(way, [&](size_t round) { return way.rounds[round].first_ms[at]; }));
  }
  row("token_ms", by_round(way, [&](size_t round) { return way.rounds[round].token_mean_ms; }));
  row("request_ms", by_round(way, [&](size_t round) { return way.rounds[round].request_mean_ms; }));
}

bool has_helpers(const ColdWay& way) { return way.way == ColdStart::kAssisted || way.way == ColdStart::kAuto; }

// Over `cached`.
void add_overheads(const std::string& prefix, const ColdWay& way, const ColdWay& cached, BenchReport& report) {
  const auto row = [&](const char* name, std::vector<double> values) {
    report.rows.push_back(summarise(prefix + name, "%", std::move(values)));
  };
  const auto limited = [&](const char* name, Figure figure, const Limits& limits) {
    row(name, over(way, cached, figure));
    const BenchRow& added = report.rows.back();
    if (!has_helpers(way)) return;
    report.targets.push_back({added.name, "<=", limits.target, added.value});
    report.targets.push_back({added.name + " (goal)", "<=", limits.goal, added.value});
  };
  limited("first_token_over", &ColdFigures::first_mean_ms, kFirst);
  row("first_token_p50_over", over_at(way, cached, 50));
  row("first_token_p99_over", over_at(way, cached, 99));
  limited("token_over", &ColdFigures::token_mean_ms, kToken);
  limited("request_over", &ColdFigures::request_mean_ms, kRequest);
}

// The layer from which the device went on alone, in the mean of the steps with helpers.
double mean_handover(const ColdStarts& starts) {
  uint64_t steps = 0;
  for (const uint64_t count : starts.handovers) steps += count;
  return steps == 0 ? 0 : static_cast<double>(starts.handover_layers) / static_cast<double>(steps);
}

void add_starts(const std::string& prefix, const ColdWay& way, BenchReport& report) {
  const auto row = [&](const char* name, const char* unit, const auto& value) {
    report.rows.push_back(summarise(prefix + name, unit, by_round(way, [&](size_t round) {
                                      return static_cast<double>(value(way.starts[round]));
                                    })));
  };
  const auto began = [](ColdStart how) {
    return [how](const ColdStarts& starts) { return starts.requests[static_cast<size_t>(how)]; };
  };
  row("began_layered", "requests", began(ColdStart::kLayered));
  row("began_assisted", "requests", began(ColdStart::kAssisted));
  row("waited_for_all", "requests", began(ColdStart::kOndemand));
  row("hidden_s", "s", [](const ColdStarts& starts) { return starts.hidden_s; });
  row("layers_waited", "layers", [](const ColdStarts& starts) { return starts.layers_waited; });
  row("layers_waited_s", "s", [](const ColdStarts& starts) { return starts.waited_s; });
  row("steps_given_up", "steps", [](const ColdStarts& starts) { return starts.given_up; });
  if (!has_helpers(way)) return;
  row("assisted_layers", "layers", [](const ColdStarts& starts) { return starts.assisted_layers; });
  row("handover_layer", "", mean_handover);
  row("helpers", "", [](const ColdStarts& starts) { return starts.helpers; });
  row("helper_restarts", "", [](const ColdStarts& starts) { return starts.helper_restarts; });
}

ChartSeries distribution(const ColdWay& way) {
  std::vector<double> sorted = way.first_ms;
  std::sort(sorted.begin(), sorted.end());
  ChartSeries series{.name = way.name()};
  for (size_t i = 0; i < sorted.size(); ++i)
    series.points.emplace_back(sorted[i], static_cast<double>(i + 1) / static_cast<double>(sorted.size()));
  return series;
}

}  // namespace

ColdFigures cold_figures(std::span<const WorkloadRequest> workload, std::span<const ServedRequest> served) {
  CHECK(!workload.empty() && workload.size() == served.size());
  ColdFigures figures;
  std::vector<double> first_ms;
  for (size_t i = 0; i < workload.size(); ++i) {
    CHECK(!served[i].failed && served[i].tokens > 0);
    first_ms.push_back(static_cast<double>(served[i].first_ns - workload[i].at_ns) * kMs);
    const double request_ms = static_cast<double>(served[i].end_ns - workload[i].at_ns) * kMs;
    figures.first_mean_ms += first_ms.back();
    figures.request_mean_ms += request_ms;
    figures.token_mean_ms += request_ms / served[i].tokens;
  }
  for (double* const sum : {&figures.first_mean_ms, &figures.request_mean_ms, &figures.token_mean_ms})
    *sum /= static_cast<double>(workload.size());
  for (size_t at = 0; at < kColdPoints.size(); ++at)
    figures.first_ms[at] = percentile(first_ms, kColdPoints[at] * 0.01);
  return figures;
}

ColdStarts cold_starts_since(const ColdStarts& before, const ColdStarts& after) {
  ColdStarts since = after;
  for (size_t i = 0; i < since.requests.size(); ++i) since.requests[i] -= before.requests[i];
  for (size_t i = 0; i < since.handovers.size(); ++i) since.handovers[i] -= before.handovers[i];
  for (const auto member : {&ColdStarts::layers_waited, &ColdStarts::given_up, &ColdStarts::assisted_layers,
                            &ColdStarts::handover_layers, &ColdStarts::helper_restarts})
    since.*member -= before.*member;
  since.waited_s -= before.waited_s;
  since.hidden_s -= before.hidden_s;
  return since;
}

double percent_over(double time, double cached) { return (time / cached - 1) * 100; }

void add_cold_rows(const std::string& prefix, std::span<const ColdWay> ways, BenchReport& report) {
  CHECK(!ways.empty() && ways.front().way == ColdStart::kCached);
  Chart plot{.title = "Times to the first token, " + prefix.substr(0, prefix.size() - 1),
             .x = "ms",
             .y = "share of the requests",
             .is_distribution = true,
             .x_scale = ChartScale::kAuto};
  for (const ColdWay& way : ways) {
    CHECK(way.rounds.size() == ways.front().rounds.size() && way.starts.size() == way.rounds.size());
    const std::string of_way = prefix + way.name() + ".";
    add_times(of_way, way, report);
    plot.series.push_back(distribution(way));
    if (way.way == ColdStart::kCached) continue;
    add_overheads(of_way, way, ways.front(), report);
    add_starts(of_way, way, report);
  }
  report.plots.push_back(std::move(plot));
}

}  // namespace loralei

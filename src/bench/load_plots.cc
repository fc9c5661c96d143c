// SPDX-License-Identifier: Apache-2.0
#include "bench/load_plots.h"

#include <algorithm>
#include <functional>
#include <map>

#include "report/merge.h"

namespace loralei {
namespace {

constexpr size_t kWindows = 60;        // of the time over which latency is drawn
constexpr size_t kAdaptersDrawn = 12;  // those that are asked for most

using Points = std::vector<std::pair<double, double>>;

// Titles and axes that curves share.
struct Frame {
  const char *title, *x, *y;
  bool is_distribution = false;
};

void add_curve(const Frame& frame, std::string name, Points points, std::vector<Chart>& plots,
               const std::vector<ChartRule>& rules = {}) {
  if (points.empty()) return;
  Chart chart{.title = frame.title,
              .x = frame.x,
              .y = frame.y,
              .rules = rules,
              .is_distribution = frame.is_distribution,
              .x_scale = frame.is_distribution ? ChartScale::kAuto : ChartScale::kLinear};
  chart.series.push_back({.name = std::move(name), .points = std::move(points), .ranges = {}});
  merge_chart(chart, plots);
}

Points distribution(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Points points;
  for (size_t i = 0; i < values.size(); ++i)
    points.emplace_back(values[i], static_cast<double>(i + 1) / static_cast<double>(values.size()));
  return points;
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

std::vector<ChartRule> rule_of(const std::optional<double>& objective, bool upright) {
  if (!objective) return {};
  return {{.at = *objective, .name = "objective", .upright = upright}};
}

void add_distributions(const std::string& who, const LoadPicture& picture, std::vector<Chart>& plots) {
  std::vector<double> first, end;
  std::map<int32_t, std::vector<double>> by_rank;
  for (size_t i = 0; i < picture.workload.size(); ++i) {
    const WorkloadRequest& request = picture.workload[i];
    const ServedRequest& served = picture.served[i];
    if (served.failed) continue;
    first.push_back(seconds(served.first_ns - request.at_ns));
    end.push_back(seconds(served.end_ns - request.at_ns));
    by_rank[request.rank].push_back(first.back());
  }
  const char* const kShare = "share of requests";
  const std::vector<ChartRule> to_first = rule_of(picture.objectives.first_s, true);
  add_curve({"Time to the first token", "seconds", kShare, true}, who, distribution(first), plots, to_first);
  if (by_rank.size() > 1) {
    for (auto& [rank, values] : by_rank)
      add_curve({"Time to the first token, by rank", "seconds", kShare, true},
                who + (rank > 0 ? ", rank " + std::to_string(rank) : ", no rank"), distribution(std::move(values)),
                plots, to_first);
  }
  add_curve({"Time between tokens", "seconds", "share of gaps", true}, who, picture.gaps->distribution(), plots);
  add_curve({"Time to the end", "seconds", kShare, true}, who, distribution(std::move(end)), plots);
}

// Windows of the time at which requests were due.
int64_t window_of(const LoadPicture& picture) {
  return std::max<int64_t>(1, picture.workload.back().at_ns / static_cast<int64_t>(kWindows) + 1);
}

// A value of each request that ended well, by the time at which it was due.
std::map<int64_t, std::vector<double>> windows_of(const LoadPicture& picture,
                                                  const std::function<double(size_t)>& value) {
  const int64_t window_ns = window_of(picture);
  std::map<int64_t, std::vector<double>> windows;
  for (size_t i = 0; i < picture.workload.size(); ++i)
    if (!picture.served[i].failed) windows[picture.workload[i].at_ns / window_ns].push_back(value(i));
  return windows;
}

double middle_s(int64_t window, int64_t window_ns) { return seconds(window * window_ns + window_ns / 2); }

void add_percentiles(const std::string& who, const char* title, const LoadPicture& picture,
                     const std::function<double(size_t)>& value, const std::optional<double>& objective,
                     std::vector<Chart>& plots) {
  Points middle, high;
  for (auto& [window, values] : windows_of(picture, value)) {
    const double at_s = middle_s(window, window_of(picture));
    const Percentiles percentiles = percentiles_of(std::move(values));
    middle.emplace_back(at_s, percentiles.p50);
    high.emplace_back(at_s, percentiles.p99);
  }
  const Frame frame{title, "due at, seconds", "seconds"};
  add_curve(frame, who + ", P50", std::move(middle), plots, rule_of(objective, false));
  add_curve(frame, who + ", P99", std::move(high), plots);
}

double first_s(const LoadPicture& picture, size_t i) {
  return seconds(picture.served[i].first_ns - picture.workload[i].at_ns);
}
double token_s(const LoadPicture& picture, size_t i) {
  return seconds(picture.served[i].end_ns - picture.workload[i].at_ns) / std::max(1, picture.served[i].tokens);
}

void add_latency(const std::string& who, const LoadPicture& picture, std::vector<Chart>& plots) {
  const auto first = [&](size_t i) { return first_s(picture, i); };
  const auto gap = [&](size_t i) {
    const ServedRequest& served = picture.served[i];
    return seconds(served.end_ns - served.first_ns) / std::max(1, served.tokens - 1);
  };
  add_percentiles(who, "Time to the first token, over time", picture, first, picture.objectives.first_s, plots);
  add_percentiles(who, "Time between tokens of a request (its mean), over time", picture, gap, std::nullopt, plots);
  if (!picture.objectives.any()) return;
  Points share;
  const auto is_good = [&](size_t i) {
    const ServedObjectives& keep = picture.objectives;
    return (!keep.first_s || first_s(picture, i) <= *keep.first_s) &&
                   (!keep.token_s || token_s(picture, i) <= *keep.token_s)
               ? 1.0
               : 0.0;
  };
  for (const auto& [window, values] : windows_of(picture, is_good)) {
    double sum = 0;
    for (const double value : values) sum += value;
    share.emplace_back(middle_s(window, window_of(picture)), sum / static_cast<double>(values.size()));
  }
  add_curve({"Share within the objectives, over time", "due at, seconds", "share of requests that ended well"}, who,
            std::move(share), plots);
}

// Requests that come and end, tokens of those that end, and what of prompts was found.
void add_rates(const std::string& who, const LoadPicture& picture, std::vector<Chart>& plots) {
  struct Sums {
    double due = 0, ended = 0, tokens = 0, prompt = 0, cached = 0;
  };
  const int64_t window_ns = window_of(picture);
  std::map<int64_t, Sums> windows;
  int64_t last = 0;
  for (size_t i = 0; i < picture.workload.size(); ++i) {
    const ServedRequest& served = picture.served[i];
    Sums& due = windows[picture.workload[i].at_ns / window_ns];
    last = std::max(last, picture.workload[i].at_ns / window_ns);
    due.due += 1;
    if (served.failed) continue;
    due.prompt += picture.workload[i].prompt_tokens;
    due.cached += served.cached_tokens;
    Sums& end = windows[served.end_ns / window_ns];
    last = std::max(last, served.end_ns / window_ns);
    end.ended += 1;
    end.tokens += served.tokens;
  }
  if (last > 100 * static_cast<int64_t>(kWindows)) return;  // all came at once, and took long
  Points came, ended, tokens, found;
  for (int64_t window = 0; window <= last; ++window) {
    const Sums& sums = windows[window];
    const double at_s = middle_s(window, window_ns), width_s = seconds(window_ns);
    came.emplace_back(at_s, sums.due / width_s);
    ended.emplace_back(at_s, sums.ended / width_s);
    tokens.emplace_back(at_s, sums.tokens / width_s);
    if (sums.prompt > 0) found.emplace_back(at_s, sums.cached / sums.prompt);
  }
  const Frame requests{"Requests a second, over time", "seconds", "requests a second"};
  add_curve(requests, who + ", due", std::move(came), plots);
  add_curve(requests, who + ", ended", std::move(ended), plots);
  add_curve({"Tokens a second of answers that end, over time", "seconds", "tokens a second"}, who, std::move(tokens),
            plots);
  add_curve({"Prompts found in the cache, over time", "due at, seconds", "share of prompt tokens"}, who,
            std::move(found), plots);
}

// Those that are asked for most.
void add_adapters(const std::string& who, const LoadPicture& picture, std::vector<Chart>& plots) {
  std::map<std::string, std::vector<double>> by_adapter;
  for (size_t i = 0; i < picture.workload.size(); ++i)
    if (!picture.served[i].failed) by_adapter[picture.workload[i].adapter].push_back(first_s(picture, i));
  if (by_adapter.size() < 2) return;
  std::vector<std::pair<size_t, std::string>> order;
  for (const auto& [name, values] : by_adapter) order.emplace_back(values.size(), name);
  std::sort(order.begin(), order.end(), [](const auto& one, const auto& other) {
    return one.first != other.first ? one.first > other.first : one.second < other.second;
  });
  order.resize(std::min(order.size(), kAdaptersDrawn));
  Chart chart{.title = "Time to the first token, by adapter", .x = "", .y = "seconds"};
  chart.note = "The " + std::to_string(order.size()) + " of " + std::to_string(by_adapter.size()) +
               " adapters that most requests ask for, with their requests.";
  chart.series = {{.name = who + ", P50", .points = {}, .ranges = {}},
                  {.name = who + ", P99", .points = {}, .ranges = {}}};
  for (const auto& [count, name] : order) {
    const auto x = static_cast<double>(chart.categories.size());
    chart.categories.push_back((name.empty() ? "the base model" : name) + " (" + std::to_string(count) + ")");
    const Percentiles percentiles = percentiles_of(by_adapter[name]);
    chart.series[0].points.emplace_back(x, percentiles.p50);
    chart.series[1].points.emplace_back(x, percentiles.p99);
  }
  merge_chart(chart, plots);
}

void add_memory(const std::string& who, std::span<const LoadSample> samples, std::vector<Chart>& plots) {
  const auto over_time = [&](const char* title, const char* unit, const char* what, double scale, auto value) {
    Points points;
    for (const LoadSample& sample : samples)
      points.emplace_back(seconds(sample.at_ns), static_cast<double>(sample.*value) * scale);
    add_curve({title, "seconds", unit}, who + ", " + what, std::move(points), plots);
  };
  const char* const kMemory = "Memory by use, over time";
  over_time(kMemory, "MB", "KV in use", 1e-6, &LoadSample::kv_used_bytes);
  over_time(kMemory, "MB", "KV of prefixes", 1e-6, &LoadSample::kv_cached_bytes);
  over_time(kMemory, "MB", "adapters in use", 1e-6, &LoadSample::adapters_used_bytes);
  over_time(kMemory, "MB", "idle adapters", 1e-6, &LoadSample::adapters_idle_bytes);
  over_time("Requests, over time", "requests", "running", 1, &LoadSample::running);
  over_time("Requests, over time", "requests", "waiting", 1, &LoadSample::waiting);
}

}  // namespace

void add_load_plots(const std::string& who, const LoadPicture& picture, std::vector<Chart>& plots) {
  add_distributions(who, picture, plots);
  if (!picture.workload.empty()) {
    add_latency(who, picture, plots);
    add_rates(who, picture, plots);
    add_adapters(who, picture, plots);
  }
  add_memory(who, picture.samples, plots);
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "bench/load_plots.h"

#include <algorithm>
#include <map>

namespace loralei {
namespace {

constexpr size_t kWindows = 60;  // of the time over which latency is drawn

using Points = std::vector<std::pair<double, double>>;

void add_curve(const char* title, const char* x, const char* y, std::string name, Points points,
               std::vector<BenchPlot>& plots) {
  if (points.empty()) return;
  auto plot = std::find_if(plots.begin(), plots.end(), [&](const BenchPlot& one) { return one.title == title; });
  if (plot == plots.end()) plot = plots.insert(plots.end(), {title, x, y, {}});
  plot->series.push_back({std::move(name), std::move(points)});
}

Points distribution(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Points points;
  for (size_t i = 0; i < values.size(); ++i)
    points.emplace_back(values[i], static_cast<double>(i + 1) / static_cast<double>(values.size()));
  return points;
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

void add_distributions(const std::string& who, const LoadPicture& picture, std::vector<BenchPlot>& plots) {
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
  add_curve("Time to the first token", "seconds", kShare, who, distribution(first), plots);
  if (by_rank.size() > 1) {
    for (auto& [rank, values] : by_rank)
      add_curve("Time to the first token, by rank", "seconds", kShare,
                who + (rank > 0 ? ", rank " + std::to_string(rank) : ", no rank"), distribution(std::move(values)),
                plots);
  }
  add_curve("Time between tokens", "seconds", "share of gaps", who, picture.gaps->distribution(), plots);
  add_curve("Time to the end", "seconds", kShare, who, distribution(std::move(end)), plots);
}

// By the time at which requests were due.
void add_latency(const std::string& who, const LoadPicture& picture, std::vector<BenchPlot>& plots) {
  if (picture.workload.empty()) return;
  const int64_t window_ns = std::max<int64_t>(1, picture.workload.back().at_ns / static_cast<int64_t>(kWindows) + 1);
  std::map<int64_t, std::vector<double>> windows;
  for (size_t i = 0; i < picture.workload.size(); ++i) {
    if (picture.served[i].failed) continue;
    const int64_t at_ns = picture.workload[i].at_ns;
    windows[at_ns / window_ns].push_back(seconds(picture.served[i].first_ns - at_ns));
  }
  Points middle, high;
  for (auto& [window, values] : windows) {
    const double at_s = seconds(window * window_ns + window_ns / 2);
    const Percentiles percentiles = percentiles_of(std::move(values));
    middle.emplace_back(at_s, percentiles.p50);
    high.emplace_back(at_s, percentiles.p99);
  }
  const char* const kTitle = "Time to the first token, over time";
  add_curve(kTitle, "due at, seconds", "seconds", who + ", P50", std::move(middle), plots);
  add_curve(kTitle, "due at, seconds", "seconds", who + ", P99", std::move(high), plots);
}

void add_memory(const std::string& who, std::span<const LoadSample> samples, std::vector<BenchPlot>& plots) {
  const auto over_time = [&](const char* title, const char* unit, const char* what, double scale, auto value) {
    Points points;
    for (const LoadSample& sample : samples)
      points.emplace_back(seconds(sample.at_ns), static_cast<double>(sample.*value) * scale);
    add_curve(title, "seconds", unit, who + ", " + what, std::move(points), plots);
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

void add_load_plots(const std::string& who, const LoadPicture& picture, std::vector<BenchPlot>& plots) {
  add_distributions(who, picture, plots);
  add_latency(who, picture, plots);
  add_memory(who, picture.samples, plots);
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "bench/load_rows.h"

#include <algorithm>

namespace loralei {

void add_load_rows(const std::string& prefix, const ServedSummary& summary, const ServedObjectives& objectives,
                   BenchReport& report) {
  const auto row = [&](const std::string& name, const char* unit, double value, int64_t samples) {
    report.rows.push_back({.name = prefix + name, .unit = unit, .value = value, .min = value, .max = value});
    report.rows.back().samples = static_cast<int>(samples);
  };
  const auto times = [&](const std::string& name, const Percentiles& seconds, int64_t samples) {
    row(name + ".p50_ms", "ms", seconds.p50 * 1e3, samples);
    row(name + ".p90_ms", "ms", seconds.p90 * 1e3, samples);
    row(name + ".p99_ms", "ms", seconds.p99 * 1e3, samples);
  };
  const int64_t requests = summary.classes.front().requests;
  row("offered_per_s", "1/s", summary.offered_per_s, requests);
  row("requests_per_s", "1/s", summary.requests_per_s, requests);
  row("tokens_per_s", "tok/s", summary.tokens_per_s, requests);
  if (objectives.any()) {
    row("good_per_s", "1/s", summary.good_per_s, requests);
    row("good_share", "ratio", summary.good_share, requests);
  }
  for (const ServedClass& one : summary.classes) {
    row(one.name + ".first_token.mean_ms", "ms", one.mean_first_s * 1e3, one.requests);
    times(one.name + ".first_token", one.first_s, one.requests);
    row(one.name + ".end.mean_ms", "ms", one.mean_end_s * 1e3, one.requests);
    times(one.name + ".end", one.end_s, one.requests);
    row(one.name + ".token.mean_ms", "ms", one.mean_token_s * 1e3, one.requests);
    times(one.name + ".token", one.token_s, one.requests);
    if (one.failed > 0) row(one.name + ".failed", "requests", static_cast<double>(one.failed), one.requests);
  }
  times("between_tokens", summary.gap_s, requests);
}

void add_count_rows(const std::string& prefix, const EngineStats& counted, int64_t requests, BenchReport& report) {
  const auto row = [&](const std::string& name, const char* unit, double value) {
    report.rows.push_back({.name = prefix + name, .unit = unit, .value = value, .min = value, .max = value});
  };
  const double each_ms = 1e3 / static_cast<double>(std::max<int64_t>(1, requests));
  for (size_t i = 0; i < kWaitCauses; ++i)
    row(std::string("waited.") + kWaitCauseNames[i] + ".mean_ms", "ms", counted.waited_s[i] * each_ms);
  const auto looked_up = static_cast<double>(counted.prefix_queries);
  row("prefix_hits", "ratio", looked_up > 0 ? static_cast<double>(counted.prefix_hits) / looked_up : 0);
  row("steps", "steps", static_cast<double>(counted.steps));
  row("preemptions", "times", static_cast<double>(counted.preemptions));
  row("adapter_loads", "loads", static_cast<double>(counted.adapter_loads));
  row("adapter_loaded_gb", "GB", static_cast<double>(counted.adapter_load_bytes) * 1e-9);
  row("adapter_evictions", "times", static_cast<double>(counted.adapter_evictions));
  row("adapter_predicted_loads", "loads", static_cast<double>(counted.adapter_loads_ahead));
  row("adapter_predicted_loads_used", "loads", static_cast<double>(counted.adapter_loads_ahead_used));
  row("adapter_uploads", "uploads", static_cast<double>(counted.adapter_uploads));
  row("adapter_uploaded_gb", "GB", static_cast<double>(counted.adapter_upload_bytes) * 1e-9);
}

namespace {

template <typename Merge>
void merge_counts(const EngineStats& other, EngineStats& stats, const Merge& merge) {
  merge(other.steps, stats.steps);
  merge(other.preemptions, stats.preemptions);
  merge(other.prefix_queries, stats.prefix_queries);
  merge(other.prefix_hits, stats.prefix_hits);
  merge(other.adapter_loads, stats.adapter_loads);
  merge(other.adapter_load_bytes, stats.adapter_load_bytes);
  merge(other.adapter_evictions, stats.adapter_evictions);
  merge(other.adapter_loads_ahead, stats.adapter_loads_ahead);
  merge(other.adapter_loads_ahead_used, stats.adapter_loads_ahead_used);
  merge(other.adapter_uploads, stats.adapter_uploads);
  merge(other.adapter_upload_bytes, stats.adapter_upload_bytes);
  for (size_t i = 0; i < kWaitCauses; ++i) merge(other.waited_s[i], stats.waited_s[i]);
}

}  // namespace

EngineStats counts_since(const EngineStats& now, const EngineStats& before) {
  EngineStats since = now;
  merge_counts(before, since, [](const auto& earlier, auto& count) { count -= earlier; });
  return since;
}

void add_counts(const EngineStats& other, EngineStats& sum) {
  merge_counts(other, sum, [](const auto& more, auto& count) { count += more; });
}

}  // namespace loralei

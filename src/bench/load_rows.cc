// SPDX-License-Identifier: Apache-2.0
#include "bench/load_rows.h"

namespace loralei {

void add_load_rows(const std::string& prefix, const ServedSummary& summary, std::optional<double> slo_first_s,
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
  row("requests_per_s", "1/s", summary.requests_per_s, requests);
  row("tokens_per_s", "tok/s", summary.tokens_per_s, requests);
  if (slo_first_s) row("good_per_s", "1/s", summary.good_per_s, requests);
  for (const ServedClass& one : summary.classes) {
    row(one.name + ".first_token.mean_ms", "ms", one.mean_first_s * 1e3, one.requests);
    times(one.name + ".first_token", one.first_s, one.requests);
    times(one.name + ".end", one.end_s, one.requests);
    if (one.failed > 0) row(one.name + ".failed", "requests", static_cast<double>(one.failed), one.requests);
  }
  times("between_tokens", summary.gap_s, requests);
}

}  // namespace loralei

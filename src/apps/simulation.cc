// SPDX-License-Identifier: Apache-2.0
#include "apps/simulation.h"

#include <algorithm>

#include "base/units.h"
#include "bench/load_plots.h"
#include "bench/load_rows.h"
#include "sys/file.h"

namespace loralei {

Result<Profile> find_profile(const std::string& name) {
  if (const auto device = device_profile(name)) return *device;
  const PosixFileSystem files;
  const auto text = files.read_all(name, kMiB);
  if (text.ok()) return parse_profile(*text, name);
  std::string known;
  for (const std::string& device : device_names()) known += (known.empty() ? "" : ", ") + device;
  return Error(text.error()).with_context("a profile is a file or one of " + known);
}

void add_simulation(const std::string& prefix, const Workload& workload, const sim::SimulatedRun& run,
                    std::optional<double> slo_first_s, BenchReport& report) {
  add_load_rows(prefix, summarise(workload, run.requests, run.gaps, slo_first_s), slo_first_s, report);
  const auto machines_ns =
      static_cast<double>(run.replicas.size()) * static_cast<double>(std::max<int64_t>(1, run.end_ns));
  const double busy = static_cast<double>(run.busy_ns) / machines_ns;
  report.rows.push_back({.name = prefix + "busy", .unit = "ratio", .value = busy, .min = busy, .max = busy});
  EngineStats counted;
  for (const EngineStats& replica : run.replicas) add_counts(replica, counted);
  add_count_rows(prefix, counted, static_cast<int64_t>(workload.size()), report);
  add_load_plots("simulated", {workload, run.requests, &run.gaps, run.samples}, report.plots);
}

}  // namespace loralei

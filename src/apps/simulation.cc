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

// Of requests whose adapter was not on the device, and of their layers.
static void add_cold_start_rows(const std::string& prefix, const sim::SimulatedRun& run, BenchReport& report) {
  ColdStarts all;
  for (const EngineStats& replica : run.replicas) {
    const ColdStarts& one = replica.cold_starts;
    for (size_t way = 0; way < all.requests.size(); ++way) all.requests[way] += one.requests[way];
    all.layers_waited += one.layers_waited;
    all.given_up += one.given_up;
    all.assisted_layers += one.assisted_layers;
    all.hidden_s += one.hidden_s;
  }
  const auto row = [&](const char* name, const char* unit, double value) {
    report.rows.push_back({.name = prefix + name, .unit = unit, .value = value, .min = value, .max = value});
  };
  const auto requests = [&](ColdStart way) { return static_cast<double>(all.requests[static_cast<size_t>(way)]); };
  row("cold.began_layered", "requests", requests(ColdStart::kLayered));
  row("cold.began_assisted", "requests", requests(ColdStart::kAssisted));
  row("cold.waited_for_all", "requests", requests(ColdStart::kOndemand));
  row("cold.hidden_s", "s", all.hidden_s);
  row("cold.layers_waited", "layers", static_cast<double>(all.layers_waited));
  row("cold.steps_given_up", "steps", static_cast<double>(all.given_up));
  row("cold.assisted_layers", "layers", static_cast<double>(all.assisted_layers));
}

// Of a fleet that finds itself through etcd.
static void add_fleet_rows(const std::string& prefix, const sim::FleetRun& fleet, BenchReport& report) {
  const auto row = [&](const char* name, const char* unit, double value) {
    report.rows.push_back({.name = prefix + name, .unit = unit, .value = value, .min = value, .max = value});
  };
  const sim::FleetCounts& counts = fleet.counts;
  row("fleet.joined", "members", static_cast<double>(counts.joined));
  row("fleet.left", "members", static_cast<double>(counts.left));
  row("fleet.deaths", "servers", static_cast<double>(counts.deaths));
  row("fleet.retries", "requests", static_cast<double>(fleet.retries));
  row("fleet.errors", "requests", static_cast<double>(fleet.errors));
  row("fleet.planners", "routers", static_cast<double>(counts.planners));
  row("fleet.cut_off", "times", static_cast<double>(counts.cuts));
  row("fleet.lists", "lists", static_cast<double>(counts.lists));
  row("fleet.etcd_leaders", "leaders", static_cast<double>(counts.etcd_leaders));
  row("fleet.etcd_compactions", "compactions", static_cast<double>(counts.compactions));
  row("fleet.etcd_away_s", "s", counts.away_s);
}

void add_simulation(const std::string& prefix, const Workload& workload, const sim::SimulatedRun& run,
                    const ServedObjectives& objectives, BenchReport& report) {
  add_load_rows(prefix, summarise(workload, run.requests, run.gaps, objectives), objectives, report);
  const auto machines_ns =
      static_cast<double>(run.replicas.size()) * static_cast<double>(std::max<int64_t>(1, run.end_ns));
  const double busy = static_cast<double>(run.busy_ns) / machines_ns;
  report.rows.push_back({.name = prefix + "busy", .unit = "ratio", .value = busy, .min = busy, .max = busy});
  EngineStats counted;
  for (const EngineStats& replica : run.replicas) add_counts(replica, counted);
  for (const EngineStats& replica : run.ended) add_counts(replica, counted);
  add_count_rows(prefix, counted, static_cast<int64_t>(workload.size()), report);
  add_cold_start_rows(prefix, run, report);
  const auto row = [&](const char* name, const char* unit, double value) {
    report.rows.push_back({.name = prefix + name, .unit = unit, .value = value, .min = value, .max = value});
  };
  if (run.replicas.size() > 1 && counted.adapter_loads > 0) {
    row("adapters.loads", "loads", static_cast<double>(counted.adapter_loads));
    row("adapters.loaded_bytes", "bytes", static_cast<double>(counted.adapter_load_bytes));
    row("adapters.placed", "loads", static_cast<double>(run.placed));
    row("adapters.placed_bytes", "bytes", static_cast<double>(run.placed_bytes));
  }
  if (run.fleet) add_fleet_rows(prefix, *run.fleet, report);
  add_load_plots("simulated", {workload, run.requests, &run.gaps, run.samples, objectives}, report.plots);
}

}  // namespace loralei

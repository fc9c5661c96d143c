// SPDX-License-Identifier: Apache-2.0
// bench machine, profile: what the machine can do at most.
#include <algorithm>
#include <map>

#include "base/units.h"
#include "bench/probes.h"
#include "bench/scenarios.h"
#include "ops/probe.h"
#include "sys/cpu.h"

namespace loralei {
namespace {

constexpr double kDiskProbeSeconds = 1.5;

// Samples by row name, in the order of the first sample.
class Samples {
 public:
  void add(const std::string& name, const char* unit, double value) {
    const auto [at, is_new] = places_.try_emplace(name, rows_.size());
    if (is_new) rows_.push_back({name, unit, {}});
    rows_[at->second].values.push_back(value);
  }
  void report(BenchReport& report) const {
    for (const Row& row : rows_) report.rows.push_back(summarise(row.name, row.unit, row.values));
  }

 private:
  struct Row {
    std::string name;
    const char* unit;
    std::vector<double> values;
  };
  std::map<std::string, size_t> places_;
  std::vector<Row> rows_;
};

Status measure_cpu(int threads, int rounds, BenchReport& report) {
  const SteadyClock clock;
  ThreadPool pool(threads);
  const std::string suffix = ".t" + std::to_string(threads);
  Samples samples;
  for (int round = 0; round < rounds; ++round) {
    TRY_ASSIGN(const double huge, probe_read_gb_s(pool, clock, {}));
    samples.add("machine.read_gb_s" + suffix, "GB/s", huge);
    TRY_ASSIGN(const double small, probe_read_gb_s(pool, clock, {.pages = PageSize::kSmall}));
    samples.add("machine.read_small_pages_gb_s" + suffix, "GB/s", small);
    const std::vector<KindRate> f32 = probe_f32_kinds(pool, clock), int8 = probe_int8_kinds(pool, clock);
    samples.add("machine.f32_gflop_s" + suffix, "Gflop/s", f32.front().gop_s);
    for (const KindRate& rate : f32)
      samples.add("machine.f32_" + rate.kind + "_gflop_s" + suffix, "Gflop/s", rate.gop_s);
    samples.add("machine.int8_gop_s" + suffix, "Gop/s", int8.empty() ? 0 : int8.front().gop_s);
    for (const KindRate& rate : int8) samples.add("machine.int8_" + rate.kind + "_gop_s" + suffix, "Gop/s", rate.gop_s);
    if (const int bits = int8_bits(DType::kQ4_0); bits < 8) {
      for (const KindRate& rate : probe_int8_kinds(pool, clock, 5, bits))
        samples.add("machine.int8_" + rate.kind + "_4bit_gop_s" + suffix, "Gop/s", rate.gop_s);
    }
    if (const double bf16 = probe_bf16_gflop_s(pool, clock); bf16 > 0)
      samples.add("machine.bf16_gflop_s" + suffix, "Gflop/s", bf16);
    if (const double amx = probe_amx_int8_gop_s(pool, clock); amx > 0)
      samples.add("machine.amx_int8_gop_s" + suffix, "Gop/s", amx);
    samples.add("machine.wake_us" + suffix, "us", probe_wake_us(pool, clock));
    if (threads > 1) samples.add("machine.line_ns" + suffix, "ns", probe_line_ns(pool, clock));
  }
  samples.report(report);
  return {};
}

Status measure_device(const BenchOptions& options, BenchReport& report) {
  Samples samples;
  for (int round = 0; round < options.rounds; ++round) {
    TRY_ASSIGN(const DeviceRates rates, options.host.device.rates());
    samples.add("device.read_gb_s", "GB/s", rates.read_gb_s);
    samples.add("device.product_tflop_s", "Tflop/s", rates.product_tflop_s);
    samples.add("device.upload_gb_s", "GB/s", rates.upload_gb_s);
  }
  samples.report(report);
  return {};
}

}  // namespace

Status bench_machine(const BenchOptions& options, LogSink& log, BenchReport& report) {
  const int threads_most = options.host.threads > 0 ? options.host.threads : usable_cpus();
  for (int threads = 1; threads < threads_most; threads *= 2) TRY(measure_cpu(threads, options.rounds, report));
  TRY(measure_cpu(threads_most, options.rounds, report));
  if (options.host.device.rates) TRY(measure_device(options, report));
  auto path = disk_probe_file(options.cache_dir);
  if (!path.ok()) {
    log.log(LogLevel::kWarning, "disk not measured: " + path.error().message);
    return {};
  }
  for (const auto& [block, depth] : {std::pair<int64_t, int>{128 * kKiB, 4}, {kMiB, 1}, {kMiB, 4}, {4 * kMiB, 4}}) {
    auto rate = probe_disk_gb_s(*path, block, depth, kDiskProbeSeconds);
    if (!rate.ok()) {
      log.log(LogLevel::kWarning, "disk not measured: " + rate.error().message);
      break;
    }
    report.rows.push_back(summarise(
        "machine.disk_gb_s.b" + std::to_string(block / kKiB) + "k.d" + std::to_string(depth), "GB/s", {*rate}));
  }
  return {};
}

}  // namespace loralei

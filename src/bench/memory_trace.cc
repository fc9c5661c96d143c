// SPDX-License-Identifier: Apache-2.0
#include "bench/memory_trace.h"

#include <algorithm>
#include <cstdio>

#include "memory/ledger.h"

namespace loralei {
namespace {

double seconds_of(const MemoryTrace& trace, const MemorySample& sample) {
  return static_cast<double>(sample.at_ns - trace.samples().front().at_ns) * 1e-9;
}

}  // namespace

std::function<void(const StepRecord&)> MemoryTrace::on_step() {
  return [this](const StepRecord& record) {
    EngineHost* const host = host_.load();
    if (host == nullptr) return;
    const EngineStats stats = host->engine().stats();
    const Ledger& ledger = host->ledger();
    add({.at_ns = record.begin_ns,
         .total = stats.kv_blocks_total,
         .leased = stats.kv_blocks_used,
         .raw = stats.kv_blocks_cached - stats.kv_coded.pages,
         .pages = stats.kv_coded.pages,
         .blob_bytes = stats.kv_coded.bytes,
         .kv_bytes = ledger.used_bytes(MemoryUse::kKv),
         .used_bytes = ledger.used_bytes(),
         .budget_bytes = ledger.budget_bytes()});
  };
}

int64_t samples_beyond(const MemoryTrace& trace, int64_t kv_bytes) {
  return std::count_if(trace.samples().begin(), trace.samples().end(), [&](const MemorySample& sample) {
    const int64_t least = std::min({sample.leased, sample.raw, sample.pages, sample.free()});
    return sample.used_bytes > sample.budget_bytes || sample.kv_bytes > kv_bytes || least < 0 ||
           sample.blob_bytes * sample.total > sample.pages * sample.kv_bytes;
  });
}

std::string memory_csv_head() {
  return "run,seconds,kv_total_bytes,kv_running_bytes,kv_prefix_bytes,kv_encoded_page_bytes,kv_encoded_bytes,"
         "kv_free_bytes,used_bytes,budget_bytes\n";
}

std::string memory_csv(const std::string& name, const MemoryTrace& trace) {
  std::string text;
  for (const MemorySample& sample : trace.samples()) {
    const int64_t block_bytes = sample.kv_bytes / sample.total;
    char line[320];
    std::snprintf(line, sizeof line, ",%.6f,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld\n", seconds_of(trace, sample),
                  static_cast<long long>(sample.kv_bytes), static_cast<long long>(sample.leased * block_bytes),
                  static_cast<long long>(sample.raw * block_bytes), static_cast<long long>(sample.pages * block_bytes),
                  static_cast<long long>(sample.blob_bytes), static_cast<long long>(sample.free() * block_bytes),
                  static_cast<long long>(sample.used_bytes), static_cast<long long>(sample.budget_bytes));
    text += name + line;
  }
  return text;
}

Chart memory_plot(const std::string& title, const MemoryTrace& trace) {
  Chart plot{.title = title, .x = "seconds", .y = "MB"};
  const auto curve = [&](const char* name, auto blocks) {
    ChartSeries& series = plot.series.emplace_back(ChartSeries{.name = name});
    for (const MemorySample& sample : trace.samples()) {
      const double block_mb = static_cast<double>(sample.kv_bytes) * 1e-6 / static_cast<double>(sample.total);
      series.points.emplace_back(seconds_of(trace, sample), static_cast<double>(blocks(sample)) * block_mb);
    }
  };
  curve("all of the pool", [](const MemorySample& sample) { return sample.total; });
  curve("in use", [](const MemorySample& sample) { return sample.total - sample.free(); });
  curve("running", [](const MemorySample& sample) { return sample.leased; });
  curve("prefixes in blocks", [](const MemorySample& sample) { return sample.raw; });
  curve("prefixes encoded", [](const MemorySample& sample) { return sample.pages; });
  return plot;
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// MemoryTrace: a running engine's memory by use, one sample for every step: what the KV
// cache's blocks are for, and what the ledger counts. A sample shows them as they were
// while the step was computed.
//
// Thread: samples are taken on the engine's thread; they are read when the engine has
// stopped, or does nothing.
// Ownership: borrows the host, which is watched until it goes or another is.
// Failure: writing the file answers a sentence.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cost/step_features.h"
#include "engine/engine_host.h"
#include "report/chart.h"

namespace loralei {

// KV in blocks, the rest in bytes.
struct MemorySample {
  int64_t at_ns = 0;
  int64_t total = 0, leased = 0, raw = 0, pages = 0;  // raw: of prefixes; pages: of encoded ones
  int64_t blob_bytes = 0;                             // in the pages
  int64_t kv_bytes = 0, used_bytes = 0, budget_bytes = 0;

  int64_t free() const { return total - leased - raw - pages; }
};

class MemoryTrace {
 public:
  // For EngineHostOptions::on_step; the trace outlives the host.
  std::function<void(const StepRecord&)> on_step();
  // From now on; null: nobody.
  void watch(EngineHost* host) { host_.store(host); }

  void add(const MemorySample& sample) { samples_.push_back(sample); }
  const std::vector<MemorySample>& samples() const { return samples_; }

 private:
  std::atomic<EngineHost*> host_ = nullptr;
  std::vector<MemorySample> samples_;
};

// Those in which more was in use than the budget has, or the KV cache had more than it
// was given or held more than it has.
int64_t samples_beyond(const MemoryTrace& trace, int64_t kv_bytes);

// The column names and a line for each sample; seconds from the first one.
std::string memory_csv_head();
std::string memory_csv(const std::string& name, const MemoryTrace& trace);
// KV by use over time, in MB.
Chart memory_plot(const std::string& title, const MemoryTrace& trace);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// DeviceFactory: what computes steps in the place of this machine's cores, chosen by the
// program, so that the engine builds and links without any device's libraries.
//
// Thread: budget and make are called once, by the thread that starts the engine; the
// executor is used by the engine's thread alone; taken_bytes by any thread; rates by any
// thread, while no step runs.
// Ownership: `owns` holds what the executor borrows and outlives it; the device's
// ledger outlives both.
// Invariant: what a backend allocates on its device lies under grants of the device's
// ledger, made before anything is uploaded, and pinned host memory under one of the
// host's; a probe of rates, which only benches make, takes memory beside that. Where the
// device's memory is the host's (of_host), weights are loaded under the device's ledger.
// Failure: a sentence says why the device cannot do (no such device, too little memory)
// and which flag to change.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "device/device_rates.h"
#include "device/host/thread_pool.h"
#include "engine/executor.h"
#include "engine/layer_assist.h"
#include "engine/memory_plan.h"
#include "formats/model_config.h"
#include "memory/ledger.h"
#include "ops/op_table.h"
#include "sched/cold_start.h"
#include "weights/weight_store.h"

namespace loralei {

// What this program may use of a device.
struct DeviceBudget {
  std::string device;  // as users name it: cuda:0
  int64_t bytes = 0;
  int64_t taken_bytes = 0;         // of the device already: by this program's context and by other programs
  bool of_host = false;            // it is memory of this machine, which the host's budget leaves to it
  std::vector<std::string> notes;  // what a user should know, one sentence each
};

// What the device has to compute. The references are valid during the call; weights, ops,
// pool and the ledgers outlive the backend; what else is needed later is copied. `log`
// may be null, else it outlives the backend.
struct DeviceRequest {
  const ModelConfig& config;
  WeightStore& weights;  // all in host memory; they stay where the budget is of_host
  const OpTable& ops;    // of the host
  ThreadPool& pool;      // the same
  ModelLimits limits;    // max_model_len: the most that the plan may give
  DType kv_dtype = DType::kF16;
  MemoryRequest memory;  // as stated by the user; what is left and the bytes of a block are the device's to say
  AssistSetup assist;    // none: without helpers
  std::optional<ColdStart> cold_start;  // as stated by the user
  Ledger& ledger;                       // the device's
  Ledger& host_ledger;
  LogSink* log = nullptr;
};

struct DeviceBackend {
  std::shared_ptr<void> owns;
  std::unique_ptr<Executor> executor;
  MemoryPlan plan;   // of the device's memory
  std::string name;  // part of the fingerprint
};

// What takes of a device's memory beside what this program asked for.
struct DeviceOverhead {
  int64_t before_bytes = 0;             // when the budget was made: this program's context and other programs
  std::atomic<int64_t> since_bytes{0};  // kernels' code, recorded graphs, rounding; what other programs took since
};

struct DeviceFactory {
  std::function<Result<DeviceBudget>()> budget;  // asked before weights are loaded
  std::function<Result<DeviceBackend>(const DeviceRequest&)> make;
  // Of the device's memory, by all programs, now; empty: nobody else takes of it.
  std::function<Result<int64_t>()> taken_bytes;
  std::function<Result<DeviceRates>()> rates;  // measures them now; empty: they are the cores'

  explicit operator bool() const { return make != nullptr; }
};

}  // namespace loralei

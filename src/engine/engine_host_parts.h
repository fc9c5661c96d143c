// SPDX-License-Identifier: Apache-2.0
// What an EngineHost is made of. Internal to engine_host.cc (start),
// engine_host_device.cc (a device computes), engine_host_kv.cc (how KV is encoded) and
// engine_host_budget.cc (another budget).
//
// Thread: start() and apply_budget() write, the latter on the engine's thread between
// two steps; prepare_budget() runs beside steps, reads what does not change meanwhile
// and sets packed_path alone. What it shares with mend_packed(), on the engine's thread,
// is packed_path and how matrices are stored, under packed_mutex.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "adapters/adapter.h"
#include "engine/engine_host.h"
#include "engine/heap_keeper.h"
#include "engine/memory_plan.h"
#include "engine/pace.h"
#include "engine/packed_mender.h"
#include "engine/process_share.h"
#include "engine/rank_threads.h"
#include "engine/request_budget.h"
#include "engine/start.h"
#include "model/model.h"
#include "parallel/thread_group.h"
#include "weights/weight_store.h"

namespace loralei {

// Refuses more than the machine or the cgroup has: whoever used it would be killed.
Status check_budget(int64_t budget_bytes);

// In the order of construction: what is declared later is destroyed first.
struct EngineHost::Parts {
  BaseModelFile file;
  SteadyClock clock;
  std::unique_ptr<Ledger> ledger;
  std::unique_ptr<Ledger> device_ledger;
  std::unique_ptr<ThreadPool> pool;
  const OpTable* ops = nullptr;
  WeightOptions weight_options;
  std::unique_ptr<WeightStore> weights;
  Grant scratch;
  ProcessShare process;
  std::shared_ptr<RequestBudget> requests;
  std::optional<HeapKeeper> heap;
  std::unique_ptr<ThreadGroup> group;  // null: one rank computes
  std::unique_ptr<Model> model;        // rank 0's; null: a device computes
  std::unique_ptr<RankThreads> ranks;  // the others
  DeviceBudget device_budget;
  DeviceOverhead device_overhead;
  bool overhead_told = false;
  int32_t helpers = 0;  // processes that compute beside a device
  std::shared_ptr<void> device;
  PaceSleep pace;
  std::string computed_by;
  std::unique_ptr<Engine> engine;
  MemoryPlan plan;
  DType kv_dtype = DType::kF16;
  std::string kv_steps_text;  // where steps of KV come from, for the banner
  KvStreamShape streams;      // of KV blocks, where some borrow
  std::string lending_text;   // who, for the banner
  int32_t kv_blocks_max = 0;
  KvTables kv_tables;  // of its blocks
  EngineHostOptions options;
  std::mutex packed_mutex;
  std::string packed_path;   // "" until the weights are streamed for the first time
  std::string mend_failure;  // of the last time that the packed file was to be made again
  int64_t mend_again_ns = 0;
  PackedMender mender;
};

// What does not depend on where the weights are.
struct FixedBytes {
  DType kv_dtype = DType::kF16;
  ModelLimits limits;
  int64_t scratch = 0;   // activations and the kernels' memory, where the cores compute
  int64_t outputs = 0;   // logits and hidden states of a step, and what KV is encoded in; the engine holds them
  int64_t requests = 0;  // reserved for them
  int64_t kv_block = 0;  // of kKvBlockTokens tokens in the layers of a block
  KvTables tables;
  int64_t state = 0;  // of a sequence's state; 0: it has none
  int64_t other = 0;  // code, vocabulary, connections; asked before weights are loaded
};

// The share of each use when weights are streamed: everything else first, the weights
// take what is left.
struct StreamShares {
  int64_t kv = 0;
  int64_t adapters = 0;
  int64_t weights = 0;  // locked and window
};

// Several ranks (engine_host_ranks.cc).
// Whether the options go together with them, and the model can be cut.
Status check_ranks(const EngineHostOptions& options, const BaseModelFile& model, const WeightOptions& weights);
int threads_of_rank(const EngineHostOptions& options);
// Of the ranks in this process.
Result<int64_t> weight_bytes_of_ranks(const EngineHostOptions& options, const BaseModelFile& model,
                                      WeightOptions weights);
int64_t scratch_bytes_of_ranks(const EngineHostOptions& options, const ModelConfig& config, const OpTable& ops,
                               const ModelLimits& limits, int threads);
// What of the model this process's KV cache is for: all, or its rank's heads.
ModelConfig config_of_cache(const EngineHostOptions& options, const ModelConfig& config);
Error parts_are_not_streamed(const EngineHostOptions& options, const BaseModelFile& model, int64_t weight_bytes,
                             int64_t budget);
// Of engine_host.cc.
int threads_of(const EngineHostOptions& options);
int64_t budget_of(const EngineHostOptions& options);
WeightOptions weight_options_of(const EngineHostOptions& options, int threads);
Result<const OpTable*> op_table_of(const EngineHostOptions& options);

JointMemory joint_memory(const EngineOptions& options);

// What the options ask of the KV cache and of adapters.
MemoryRequest asked_of(const EngineOptions& options, int64_t block_bytes, const KvTables& tables = {},
                       int64_t state_bytes = 0);
// The same at start: what is left for it is still to be said, and for a device the bytes
// of a block.
MemoryRequest memory_request(const EngineOptions& options, const ModelConfig& config, int64_t block_bytes,
                             const KvTables& tables = {}, int64_t state_bytes = 0);

// engine_host_kv.cc: whether the options go together with a model whose sequences have a
// state.
Status check_states(const EngineHostOptions& options, const ModelConfig& config);
// engine_host_kv.cc: what asks for the KV of the whole text in layers that attend to
// windows; "": nothing does.
std::string whole_windows_for(const EngineHostOptions& options);
KvTables kv_tables_of(const EngineHostOptions& options, const ModelConfig& config, const ModelLimits& limits);

// What a device has of this machine's memory is not the host's as well.
Status leave_to_device(const DeviceBudget& device, bool stated, int64_t& budget_bytes);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// Starting an engine from its parts. apps/ and tests call this; everybody else sees
// engine/api.h only.
//
// Thread: start_engine by one thread; the Engine it returns is thread-safe.
// Ownership: the engine owns its executor and the functions in `adapters`; ledgers,
// clock, log, pool and the model behind the executor are borrowed and must outlive it.
// Two engines in one process share nothing but what they are given.
// Failure: a sentence with the numbers when KV or scratch do not fit the budget.
//
// Order at start: options -> step_limits() -> Model::create(limits) -> make_host_executor
// -> start_engine. The ledger's budget then holds weights and the model's scratch
// already; start_engine grants KV (EngineOptions::kv_cache_bytes) and caps adapters
// (adapter_bytes). An executor that computes in a memory of its own has its KV blocks
// there (Executor::kv_blocks) and the engine counts their ids only.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "adapters/load_pool.h"
#include "base/clock.h"
#include "base/log.h"
#include "codec/kv_steps.h"
#include "cost/step_features.h"
#include "device/host/thread_pool.h"
#include "engine/api.h"
#include "engine/executor.h"
#include "engine/kv_lending.h"
#include "engine/request_budget.h"
#include "formats/model_config.h"
#include "kv/kv_events.h"
#include "memory/ledger.h"
#include "sched/lengths_state.h"

namespace loralei {

// The model limits that serve these options: rows for the token budget, logits for every
// sequence and some drafts or prompt log-probabilities, segments for as many adapters as
// every sequence may use, the configured length.
ModelLimits step_limits(const EngineOptions& options, const ModelConfig& config);

// Gives the KV cache another number of blocks, up to kv_blocks_max, and at least those
// of one sequence of the longest length: cached prefixes are evicted and the youngest
// sequences preempted as it takes. Only growing can be refused.
using ResizeKv = std::function<Status(int32_t blocks)>;

// What gives way to another memory budget, between two steps.
struct RoomMaker {
  ResizeKv resize_kv;
  int64_t idle_adapter_bytes = 0;  // of adapters that nobody uses and that are not pinned
  // Those go, in their order of eviction, until all adapters hold no more, or none
  // of them is left.
  std::function<void(int64_t bytes)> shrink_adapters;
  std::function<void(int64_t bytes)> set_adapter_floor;  // KvRoom's
  int32_t kv_blocks = 0;                                 // of the KV cache's floor
};

// Of KV and adapters, who may have more than it has at start (engine/kv_room.h).
struct JointMemory {
  bool kv = false, adapters = false;
};
// Of the budget one part in so many stays free for what cannot ask.
inline constexpr int32_t kReservePart = 32;
// What adapters may have of so much that is left for them and the reserve.
inline constexpr int64_t joint_adapter_bytes(int64_t left_bytes, int64_t floor_bytes, int64_t budget_bytes) {
  return std::max(floor_bytes, left_bytes - budget_bytes / kReservePart);
}

// How another memory budget is made true; empty functions: it cannot be changed.
struct MemoryControl {
  // On a thread of its own, beside running steps; may take long, and ends soon when it is
  // told to stop. idle_adapter_bytes: as of late.
  std::function<Status(int64_t budget_bytes, int64_t idle_adapter_bytes, std::stop_token stop)> prepare;
  // On the engine thread, between two steps.
  std::function<Status(int64_t budget_bytes, const RoomMaker& room)> apply;
  // On the engine thread, between two steps, about once a second while it has something
  // to do; empty: not asked.
  // True: again in a second even if there is nothing to do.
  std::function<bool(const std::function<void(int64_t bytes)>& give_way)> watch;  // ProcessShare's GiveWay
  JointMemory joint;
  int32_t kv_blocks_max = 0;  // addresses are set aside for so many, if that is more than the cache starts with
};

struct DeviceOverhead;

// What an engine computes for and borrows, the same for its thread and its loop.
struct EngineContext {
  ModelConfig config;
  std::vector<TokenId> eos;  // joined from config and generation config; empty: config.eos
  Ledger* ledger = nullptr;
  std::string device;                     // EngineStats::device
  const Ledger* device_ledger = nullptr;  // of the executor's own memory; null: it computes in the host's
  const DeviceOverhead* device_overhead = nullptr;
  const Clock* clock = nullptr;
  LogSink* log = nullptr;
  // Told of every step that ended well, on the engine thread, which it must not hold up;
  // Engine::stats() shows there what memory was while the step was computed. Empty:
  // nothing is recorded.
  std::function<void(const StepRecord&)> on_step;
  // What was learned of answers' lengths: by an earlier process (null: nothing), and in
  // this one, told on the engine thread every few minutes and at the end. Empty: it is
  // not kept.
  std::shared_ptr<const LengthsState> lengths;
  std::function<void(LengthsState&&)> keep_lengths;
  // Where what the KV cache holds is told; null: nobody is told.
  std::shared_ptr<KvEvents> kv_events;
  ThreadPool* pool = nullptr;  // samples rows side by side; null: on the engine thread. Used between steps only.
};

struct EngineParts : EngineContext {
  std::unique_ptr<Executor> executor;
  AdapterSource adapters;
  bool shared_adapters = false;             // are read into memory that helpers may be given
  std::shared_ptr<RequestBudget> requests;  // of the ledger; null: made with a reserve of nothing
  EngineOptions options;
  int32_t state_slots = 0;  // of a model whose sequences have states; 0: as many as sequences, and copies
  KvTables kv_tables;       // of blocks in host memory; with windows: nothing encodes, keeps on disk or tells
  MemoryControl memory;
  std::function<void()> before_stop;  // ends what steps and loads may wait for; any thread; empty: nothing
  std::string fingerprint;
  std::optional<KvSteps> kv_steps;  // of the base, for KvSharing::kBounded; none: nobody measured any
  // In their place: what an earlier process found with this model; or else who keeps what
  // this one finds, on the disk's thread (KvDisk::learn_grid). Neither without --kv-dir.
  std::optional<KvGrid> kv_grid;
  std::function<Status(const KvGrid&)> keep_kv_grid;
  KvLending kv_lending;  // for KvSharing::kBorrow; empty: nobody borrows
};

Result<std::unique_ptr<Engine>> start_engine(EngineParts parts);

}  // namespace loralei

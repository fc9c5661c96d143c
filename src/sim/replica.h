// SPDX-License-Identifier: Apache-2.0
// Replica: one engine loop on the kernel's clock, with a profile in the place of a
// machine. It takes messages as the engine's inbox does, and turns the loop where the
// engine's thread would.
//
// Thread: one; any number of replicas live on one kernel. Ownership: owns the loop and
// what it stands on; borrows kernel, profile and adapters. Failure: create() answers the
// sentence that a server would end its start with.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/log.h"
#include "engine/loop.h"
#include "memory/ledger.h"
#include "sim/cost_executor.h"
#include "sim/sized_adapters.h"
#include "workload/served.h"

namespace loralei::sim {

// The kernel's time as a machine tells it that may have slept meanwhile.
class SleepyClock final : public Clock {
 public:
  explicit SleepyClock(const Clock& clock) : clock_(clock) {}
  int64_t now_ns() const override { return clock_.now_ns() + slept_ns_; }
  void sleep(int64_t ns) { slept_ns_ += ns; }
  int64_t slept_ns() const { return slept_ns_; }

 private:
  const Clock& clock_;
  int64_t slept_ns_ = 0;
};

struct ReplicaOptions {
  EngineOptions engine;                    // as a server's; bytes that are 0 are the profile's
  bool adapters_in_memory = false;         // of the host, before the first request: they take nothing from the disk
  CostExecutor::StepSeconds step_seconds;  // empty: what the profile predicts
  std::function<void(const StepRecord&)> on_step;
  std::function<double(const Submit&)> foresee_output;  // LoopParts
};

class Replica {
 public:
  using Sink = std::function<void(const EngineOutput&)>;
  static Result<std::unique_ptr<Replica>> create(Kernel& kernel, const Profile& profile, SizedAdapters& adapters,
                                                 Faults& faults, const ReplicaOptions& options,
                                                 CostExecutor::NextToken next_token, Sink sink);
  ~Replica();

  void submit(Submit request);
  void deliver(Message message);
  // So much of the KV cache and of the adapters' memory is left, of what there was at the
  // start.
  void set_memory(uint64_t ticket, double share);
  // The machine slept for so long: its clock steps.
  void sleep(int64_t ns);
  int32_t max_model_len() const { return max_model_len_; }
  int64_t context_tokens_max() const { return blocks_ * kKvBlockTokens; }  // of the KV cache, at the start
  int64_t adapter_bytes_max() const { return host_bytes_; }                // in its memory, at the start
  int32_t outstanding() const { return outstanding_; }                     // requests that have not ended
  EngineStats stats() const;
  int64_t busy_ns() const { return executor_->busy_ns(); }
  void add_to(LoadSample& sample) const;
  bool holds_something() const;  // a request, a block, an adapter in use
  void check() const;

 private:
  Replica(Kernel& kernel, Sink sink) : kernel_(kernel), sink_(std::move(sink)), clock_(kernel.clock()) {}
  Status start(const Profile& profile, SizedAdapters& adapters, Faults& faults, const ReplicaOptions& options,
               CostExecutor::NextToken next_token);
  void make_executor(const Profile& profile, const ReplicaOptions& options, const ModelLimits& limits,
                     int64_t adapter_bytes, Faults& faults, CostExecutor::NextToken next_token);
  Status make_ledger(const EngineOptions& engine, int64_t adapter_bytes, int64_t kv_bytes);
  int32_t blocks_most() const;
  Status apply_memory(int64_t parts, const RoomMaker& room);
  void wake();
  void turn();
  void emit();

  Kernel& kernel_;
  const Sink sink_;
  SleepyClock clock_;
  NullLogSink log_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<CostExecutor> executor_;
  std::unique_ptr<SimulatedLoads> loads_;
  std::unique_ptr<EngineLoop> loop_;
  std::atomic<int32_t> queued_{0};
  std::vector<Message> messages_;
  EngineOutput output_;
  bool turn_planned_ = false;
  bool cached_ = false;  // all adapters are there, and stay
  bool joint_ = false;   // KV and adapters share the ledger's budget
  uint64_t turns_ = 0;
  int32_t max_model_len_ = 0, outstanding_ = 0;
  int64_t blocks_ = 0, host_bytes_ = 0;  // at the start
  int64_t block_bytes_ = 0;
};

}  // namespace loralei::sim

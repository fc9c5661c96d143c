// SPDX-License-Identifier: Apache-2.0
// HostSums: LayerSums by helper processes, and by this machine's cores for rows that no
// helper takes, or whose helper dies or is late.
//
// Thread: the executor's, which is worker 0 of the pool.
// Ownership: owns what the cores' kernels work in; borrows the helpers, and adapters in
// host memory from know() to forget().
// Invariants: no part goes without its sums; add() allocates nothing in steady state.
// Failure: create() where there is no memory.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "adapters/adapter.h"
#include "device/host/arena.h"
#include "device/host/thread_pool.h"
#include "engine/layer_assist.h"
#include "formats/model_config.h"
#include "memory/ledger.h"
#include "model/layer_sums.h"
#include "ops/op_table.h"

namespace loralei {

class HostSums final : public LayerSums {
 public:
  // Helpers, op table, pool and ledger outlive it.
  static Result<std::unique_ptr<HostSums>> create(LayerAssist& assist, const ModelConfig& config, int32_t rank_max,
                                                  const OpTable& ops, ThreadPool& pool, Ledger& ledger);

  // Of an adapter that helpers know.
  void know(const Adapter& adapter) { known_.emplace(adapter.version, &adapter); }
  void forget(AdapterVersionId version) { known_.erase(version); }
  bool computes(AdapterVersionId version) const override { return known_.count(version) != 0; }
  void add(std::span<const LayerSumsPart> parts) override;
  int64_t parts_here() const { return parts_here_; }  // that no helper computed

 private:
  HostSums(LayerAssist& assist, const OpTable& ops) : assist_(assist), ops_(ops) {}
  void add_here(const LayerSumsPart& part);

  LayerAssist& assist_;
  const OpTable& ops_;
  Grant grant_;
  HostBuffer scratch_;
  OpContext context_;
  std::unordered_map<AdapterVersionId, const Adapter*> known_;
  std::vector<Result<AssistTicket>> tickets_;
  std::vector<LoraSource> sources_;
  std::vector<LoraTarget> targets_;
  int64_t parts_here_ = 0;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "engine/emulated/emulated_backend.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/units.h"
#include "engine/emulated/emulated_executor.h"
#include "kv/block_pool.h"
#include "sys/cpu.h"

namespace loralei {
namespace {

// In the order of construction: the bytes go before their grants.
struct EmulatedParts {
  SteadyClock clock;
  Grant scratch, adapters;
  std::unique_ptr<Model> model;
  std::unique_ptr<BlockPool> kv;
};

Result<DeviceBudget> emulated_budget(const EmulatedOptions& options) {
  CHECK(options.memory_share > 0 && options.memory_share < 1);
  DeviceBudget budget;
  budget.device = options.name;
  budget.bytes = static_cast<int64_t>(options.memory_share * static_cast<double>(available_memory_bytes()));
  budget.of_host = true;
  char link[96];
  std::snprintf(link, sizeof link, "%.4g GB/s and %.4g us a copy", options.link.bytes_per_s * 1e-9,
                static_cast<double>(options.link.latency_ns) * 1e-3);
  budget.notes.push_back("--device " + options.name + ": the cores compute with adapters that are copied to " +
                         format_bytes(budget.bytes) + " of this machine's memory over a link of " + link +
                         ". That is for tests and sizing; --device cpu is as fast without.");
  return budget;
}

// Shares out the device's ledger, in which the weights are already.
Status take_shares(const DeviceRequest& request, EmulatedParts& parts, MemoryPlan& plan) {
  Ledger& ledger = request.ledger;
  const int64_t scratch = Model::scratch_bytes(request.config, request.ops, request.limits, request.pool.threads());
  MemoryRequest memory = request.memory;
  memory.on_device = true;
  memory.block_bytes =
      kv_block_bytes({kv_layers(request.config), request.config.kv_heads, request.config.head_dim, request.kv_dtype});
  memory.left_bytes = ledger.available_bytes(MemoryUse::kKv) - scratch;
  if (memory.left_bytes < memory.block_bytes) {
    return too_large("The model needs " + format_bytes(ledger.used_bytes(MemoryUse::kWeights)) +
                     " of the device's memory for weights and " + format_bytes(scratch) +
                     " for activations, and the budget is " + format_bytes(ledger.budget_bytes()) +
                     ", of which a KV cache must have something: raise --gpu-memory-utilization, lower "
                     "--max-num-batched-tokens, or run it with --device cpu.");
  }
  TRY_ASSIGN(plan, plan_memory(memory));
  const auto grant = [&](MemoryUse use, int64_t share) {
    auto granted = ledger.try_grant(use, share);
    CHECK(granted);  // the plan is within what is available, and nobody else asks
    return std::move(*granted);
  };
  parts.scratch = grant(MemoryUse::kScratch, scratch);
  parts.adapters = grant(MemoryUse::kAdapters, plan.adapter_bytes);
  ledger.set_cap(MemoryUse::kAdapters, plan.adapter_bytes);
  return {};
}

Result<DeviceBackend> make_emulated_backend(const EmulatedOptions& options, const DeviceRequest& request) {
  const ModelConfig& config = request.config;
  auto parts = std::make_shared<EmulatedParts>();
  DeviceBackend backend;
  TRY(take_shares(request, *parts, backend.plan));
  ModelLimits limits = request.limits;
  limits.max_model_len = backend.plan.max_model_len;
  TRY_ASSIGN(parts->model, Model::create(config, request.weights, request.ops, request.pool, limits));
  const KvShape shape{kv_layers(config), config.kv_heads, config.head_dim, request.kv_dtype};
  TRY_ASSIGN(parts->kv, BlockPool::create(shape, backend.plan.kv_blocks, request.ledger));
  EmulatedTierOptions tier;
  tier.bytes_max = backend.plan.adapter_bytes;
  tier.shape = copy_shape_of(config);
  tier.poison = tier.poison || options.poison;
  std::unique_ptr<Link> link =
      options.make_link ? options.make_link(parts->clock) : std::make_unique<ThrottledLink>(options.link, parts->clock);
  TRY_ASSIGN(auto made, EmulatedTier::create(tier, std::move(link), parts->clock));
  std::unique_ptr<LayerAssist> assist;
  if (request.assist.helpers > 0) {
    CHECK(request.log != nullptr);
    TRY_ASSIGN(assist, LayerAssist::start(request.assist, config, limits.rank_max, request.ops, request.host_ledger,
                                          parts->clock, *request.log));
  }
  backend.executor = make_emulated_executor(*parts->model, limits, *parts->kv, std::move(made), request.host_ledger,
                                            std::move(assist));
  backend.name = request.ops.name;  // the numbers are the cores'
  backend.owns = std::move(parts);
  return backend;
}

}  // namespace

DeviceFactory emulated_factory(const EmulatedOptions& options) {
  return {.budget = [options] { return emulated_budget(options); },
          .make = [options](const DeviceRequest& request) { return make_emulated_backend(options, request); },
          .taken_bytes = {},
          .rates = {}};
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cuda_backend.h"

#include <algorithm>

#include "base/clock.h"
#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "engine/cuda/cuda_executor.h"

namespace loralei {
namespace {

// In the order of construction: the bytes go before their grants.
struct CudaParts {
  SteadyClock clock;
  Grant weights, scratch, driver, kv_bytes, adapters, pinned;
  std::unique_ptr<CudaModel> model;
  CudaKv kv;
};

Result<CudaDeviceInfo> device_info(int ordinal) {
  const CudaDevices devices = cuda_devices();
  if (devices.list.empty()) return unsupported(devices.reason + " Start with --device cpu.");
  for (const CudaDeviceInfo& info : devices.list) {
    if (info.ordinal == ordinal) return info;
  }
  return invalid_argument("There is no GPU " + std::to_string(ordinal) + ": this machine has " +
                          std::to_string(devices.list.size()) + ", numbered from 0; choose one with --device cuda:N.");
}

Result<DeviceBudget> cuda_budget(const CudaBackendOptions& options) {
  CHECK(options.memory_utilization > 0 && options.memory_utilization <= 1);
  TRY(device_info(options.ordinal));
  TRY(set_cuda_device(options.ordinal));
  TRY_ASSIGN(const CudaMemoryInfo info, cuda_memory_info());
  DeviceBudget budget;
  budget.device = "cuda:" + std::to_string(options.ordinal);
  const auto share = static_cast<int64_t>(options.memory_utilization * static_cast<double>(info.total_bytes));
  budget.bytes = std::min(share, info.free_bytes);
  budget.taken_bytes = info.total_bytes - info.free_bytes;
  if (budget.bytes < share) {
    budget.notes.push_back("Of the " + format_bytes(info.total_bytes) + " of " + budget.device + " " +
                           format_bytes(info.free_bytes) +
                           " were free at start (other programs and the driver hold the rest); they are the budget, "
                           "less than --gpu-memory-utilization allows (" +
                           format_bytes(share) + ").");
  }
  return budget;
}

// On a GPU only where the user has said so: it is unproven there.
bool begins_early(const DeviceRequest& request) {
  const auto way = request.cold_start;
  return way == ColdStart::kAuto || way == ColdStart::kLayered || way == ColdStart::kAssisted;
}

// Shares out the device's ledger, before a byte is uploaded.
Status take_shares(const DeviceRequest& request, const CudaModelOptions& options, CudaParts& parts, MemoryPlan& plan) {
  Ledger& ledger = request.ledger;
  TRY_ASSIGN(const CudaModel::DeviceBytes bytes, CudaModel::device_bytes(request.config, request.weights, options));
  MemoryRequest memory = request.memory;
  memory.on_device = true;
  memory.block_bytes = CudaKv::block_bytes(request.config, request.kv_dtype);
  memory.left_bytes = ledger.available_bytes(MemoryUse::kKv) - bytes.weights - bytes.scratch - bytes.driver;
  if (memory.left_bytes < memory.block_bytes) {
    return too_large("The model needs " + format_bytes(bytes.weights) + " of GPU memory for weights, " +
                     format_bytes(bytes.scratch) + " for activations and " + format_bytes(bytes.driver) +
                     " for the driver, and the budget is " + format_bytes(ledger.budget_bytes()) +
                     ", of which a KV cache must have something: raise --gpu-memory-utilization, lower "
                     "--max-num-batched-tokens or --max-num-seqs, use a smaller format (--quant q4_0), or run it with "
                     "--device cpu.");
  }
  TRY_ASSIGN(plan, plan_memory(memory));
  const auto grant = [&](MemoryUse use, int64_t share) {
    auto granted = ledger.try_grant(use, share);
    CHECK(granted);  // the plan is within what is available, and nobody else asks
    return std::move(*granted);
  };
  parts.weights = grant(MemoryUse::kWeights, bytes.weights);
  parts.scratch = grant(MemoryUse::kScratch, bytes.scratch);
  parts.driver = grant(MemoryUse::kOther, bytes.driver);
  parts.kv_bytes = grant(MemoryUse::kKv, plan.kv_bytes);
  parts.adapters = grant(MemoryUse::kAdapters, plan.adapter_bytes);
  ledger.set_cap(MemoryUse::kAdapters, plan.adapter_bytes);

  const int64_t pinned = CudaModel::pinned_bytes(request.config, options);
  auto granted = request.host_ledger.try_grant(MemoryUse::kScratch, pinned);
  if (!granted) {
    return too_large("Results and tables of a step and uploads need " + format_bytes(pinned) + " of host memory, and " +
                     format_bytes(request.host_ledger.available_bytes(MemoryUse::kScratch)) +
                     " of the memory budget are free; raise --memory-budget or lower --max-num-seqs.");
  }
  parts.pinned = std::move(*granted);
  return {};
}

// The helpers that were asked for.
Result<CudaAssist> make_assist(const DeviceRequest& request, const CudaParts& parts) {
  CudaAssist assist;
  if (request.assist.helpers == 0) return assist;
  CHECK(request.log != nullptr);
  const int32_t rank_max = request.limits.rank_max;
  TRY_ASSIGN(assist.helpers, LayerAssist::create(request.assist, request.config, rank_max, request.ops,
                                                 request.host_ledger, parts.clock, *request.log));
  TRY_ASSIGN(assist.sums, HostSums::create(*assist.helpers, request.config, rank_max, request.ops, request.pool,
                                           request.host_ledger));
  return assist;
}

Result<DeviceBackend> make_cuda_backend(const CudaBackendOptions& options, const DeviceRequest& request) {
  TRY_ASSIGN(const CudaDeviceInfo info, device_info(options.ordinal));
  CudaModelOptions model;
  model.device = options.ordinal;
  model.limits = request.limits;
  model.activation = options.activation;
  model.graphs = options.graphs;
  model.batch_invariant = options.batch_invariant;
  model.layered_adapters = begins_early(request);
  if (model.layered_adapters)
    model.host_rows_max = std::min(request.limits.rows_max, request.assist.helpers * LayerAssist::kRowsMost);
  model.log = request.log;
  auto parts = std::make_shared<CudaParts>();
  DeviceBackend backend;
  TRY(take_shares(request, model, *parts, backend.plan));
  model.limits.max_model_len = backend.plan.max_model_len;
  model.adapter_bytes_max = backend.plan.adapter_bytes;
  TRY_ASSIGN(parts->model, CudaModel::create(request.config, request.weights, model));
  TRY_ASSIGN(parts->kv, CudaKv::create(request.config, request.kv_dtype, backend.plan.kv_blocks));
  TRY_ASSIGN(CudaAssist assist, make_assist(request, *parts));
  backend.executor = make_cuda_executor(*parts->model, parts->kv, request.host_ledger, std::move(assist));
  backend.name = "cuda-" + info.name;
  for (char& c : backend.name) c = c == ' ' ? '-' : c;
  if (options.batch_invariant) backend.name += "-batch-invariant";
  backend.owns = std::move(parts);
  return backend;
}

Result<int64_t> taken_bytes(int ordinal) {
  TRY(set_cuda_device(ordinal));
  TRY_ASSIGN(const CudaMemoryInfo info, cuda_memory_info());
  return info.total_bytes - info.free_bytes;
}

Result<DeviceRates> measure_rates(const CudaBackendOptions& options) {
  auto rates = cuda::probe_cuda(options.ordinal, options.probe);
  if (rates.ok() || rates.error().code != ErrorCode::kOverloaded) return rates;
  return too_large("Measuring what the GPU can do takes " + format_bytes(options.probe.bytes()) +
                   " of its memory beside the model's: lower --gpu-memory-utilization.");
}

}  // namespace

DeviceFactory cuda_factory(const CudaBackendOptions& options) {
  return {.budget = [options] { return cuda_budget(options); },
          .make = [options](const DeviceRequest& request) { return make_cuda_backend(options, request); },
          .taken_bytes = [ordinal = options.ordinal] { return taken_bytes(ordinal); },
          .rates = [options] { return measure_rates(options); }};
}

}  // namespace loralei

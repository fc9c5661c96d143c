// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cuda_backend.h"

#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "engine/cuda/cuda_executor.h"

namespace loralei {
namespace {

struct CudaParts {
  std::unique_ptr<CudaModel> model;
  CudaKv kv;
};

constexpr int64_t kDriverReserve = int64_t{256} << 20;  // graphs, cuBLASLt's workspaces

// The share of adapters is one piece of memory: what the host gives them, as far as model and KV cache leave room.
Result<int64_t> adapter_share(const DeviceRequest& request, const CudaModelOptions& options) {
  TRY(set_cuda_device(options.device));
  TRY_ASSIGN(const CudaMemoryInfo memory, cuda_memory_info());
  TRY_ASSIGN(const int64_t model_bytes, CudaModel::device_bytes(request.config, request.weights, options));
  const int64_t kv_bytes = request.kv_blocks * CudaKv::block_bytes(request.config, request.kv_dtype);
  return std::clamp<int64_t>(memory.free_bytes - model_bytes - kv_bytes - kDriverReserve, 0, request.adapter_bytes);
}

}  // namespace

Result<DeviceBackend> make_cuda_backend(const CudaBackendOptions& options, const DeviceRequest& request) {
  const CudaDevices devices = cuda_devices();
  if (devices.list.empty()) return unsupported(devices.reason + " Start with --device cpu.");
  if (options.ordinal < 0 || options.ordinal >= std::ssize(devices.list)) {
    return invalid_argument("There is no GPU " + std::to_string(options.ordinal) + ": this machine has " +
                            std::to_string(devices.list.size()) +
                            ", numbered from 0; choose one with --device cuda:N.");
  }
  auto parts = std::make_shared<CudaParts>();
  CudaModelOptions model;
  model.device = options.ordinal;
  model.limits = request.limits;
  model.activation = options.activation;
  model.graphs = options.graphs;
  model.log = request.log;
  TRY_ASSIGN(model.adapter_bytes_max, adapter_share(request, model));
  TRY_ASSIGN(parts->model, CudaModel::create(request.config, request.weights, model));
  TRY_ASSIGN(parts->kv, CudaKv::create(request.config, request.kv_dtype, request.kv_blocks));
  DeviceBackend backend;
  backend.executor = make_cuda_executor(*parts->model, parts->kv);
  backend.name = "cuda-" + devices.list[static_cast<size_t>(options.ordinal)].name;
  for (char& c : backend.name) c = c == ' ' ? '-' : c;
  backend.owns = std::move(parts);
  return backend;
}

}  // namespace loralei

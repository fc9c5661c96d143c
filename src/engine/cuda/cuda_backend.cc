// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cuda_backend.h"

#include "device/cuda/cuda_device.h"
#include "engine/cuda/cuda_executor.h"

namespace loralei {
namespace {

struct CudaParts {
  std::unique_ptr<CudaModel> model;
  CudaKv kv;
};

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
  model.adapter_bytes_max = request.adapter_bytes;
  model.graphs = options.graphs;
  model.batch_invariant = options.batch_invariant;
  model.log = request.log;
  TRY_ASSIGN(parts->model, CudaModel::create(request.config, request.weights, model));
  TRY_ASSIGN(parts->kv, CudaKv::create(request.config, request.kv_dtype, request.kv_blocks));
  DeviceBackend backend;
  backend.executor = make_cuda_executor(*parts->model, parts->kv);
  backend.name = "cuda-" + devices.list[static_cast<size_t>(options.ordinal)].name;
  for (char& c : backend.name) c = c == ' ' ? '-' : c;
  if (options.batch_invariant) backend.name += "-batch-invariant";
  backend.owns = std::move(parts);
  return backend;
}

}  // namespace loralei

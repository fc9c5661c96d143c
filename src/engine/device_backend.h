// SPDX-License-Identifier: Apache-2.0
// DeviceBackend: what computes steps in the place of this machine's cores, made by a factory that the program chose, so
// that the engine builds and links without any device's libraries.
//
// Thread: a factory is called once, by the thread that starts the engine; the executor is used by the engine's thread
// alone. Ownership: `owns` holds what the executor borrows and outlives it. Failure: a sentence says why the device
// cannot do (no such device, too little memory, weights that stream).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "engine/executor.h"
#include "formats/model_config.h"
#include "weights/weight_store.h"

namespace loralei {

// What the device has to compute. The references are valid during the call; what is needed later is copied. `log` may
// be null, else it outlives the backend.
struct DeviceRequest {
  const ModelConfig& config;
  const WeightStore& weights;
  ModelLimits limits;
  DType kv_dtype = DType::kF16;
  int32_t kv_blocks = 0;
  int64_t adapter_bytes = 0;
  LogSink* log = nullptr;
};

struct DeviceBackend {
  std::shared_ptr<void> owns;
  std::unique_ptr<Executor> executor;
  std::string name;  // part of the fingerprint
};

using DeviceFactory = std::function<Result<DeviceBackend>(const DeviceRequest&)>;

}  // namespace loralei

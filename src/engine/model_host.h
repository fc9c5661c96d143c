// SPDX-License-Identifier: Apache-2.0
// ModelHost: a model opened as EngineHost opens it (memory planned, weights loaded or
// streamed, kernels chosen), without an engine: for who runs steps of their own and looks
// at the KV cache (calibrate-kv). The cores compute.
//
// Thread: one. Ownership: owns every part; what it gives is borrowed from it.
// Failure: a sentence that names the file, flag or number.
#pragma once

#include <memory>
#include <string>

#include "adapters/adapter.h"
#include "engine/engine_host.h"
#include "engine/executor.h"

namespace loralei {

class ModelHost {
 public:
  // Refuses options with a device.
  static Result<std::unique_ptr<ModelHost>> start(const EngineHostOptions& options, LogSink& log,
                                                  const LoadProgress& progress);
  ~ModelHost();
  ModelHost(const ModelHost&) = delete;
  ModelHost& operator=(const ModelHost&) = delete;

  Executor& executor();
  Ledger& ledger();
  const BaseModelFile& file() const { return host_->file(); }
  const std::string& fingerprint() const;  // of the base (WeightStore::fingerprint)
  DType kv_dtype() const { return host_->kv_dtype(); }
  int64_t max_model_len() const;
  // As the options say adapters are read; its bytes are granted while the host lives.
  Result<std::shared_ptr<const Adapter>> load_adapter(const std::string& path, AdapterVersionId version);

 private:
  struct Engine;
  ModelHost();
  std::unique_ptr<EngineHost> host_;
  std::unique_ptr<Engine> engine_;  // borrows of the host
};

}  // namespace loralei

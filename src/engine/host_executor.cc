// SPDX-License-Identifier: Apache-2.0
#include "engine/executor.h"

namespace loralei {
namespace {

class HostExecutor final : public Executor {
 public:
  HostExecutor(Model& model, const ModelLimits& limits) : model_(model), limits_(limits) {}
  Status execute(const ModelBatch& batch, const KvView& kv) override { return model_.forward(batch, kv); }
  const ModelLimits& limits() const override { return limits_; }
  ModelTimes times() const override { return model_.times(); }
  int64_t streamed_bytes() const override { return model_.streamed_bytes(); }

 private:
  Model& model_;
  const ModelLimits limits_;
};

}  // namespace

std::unique_ptr<Executor> make_host_executor(Model& model, const ModelLimits& limits) {
  return std::make_unique<HostExecutor>(model, limits);
}

}  // namespace loralei

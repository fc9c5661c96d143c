// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "engine/executor.h"

namespace loralei {
namespace {

class HostExecutor final : public Executor {
 public:
  HostExecutor(Model& model, const ModelLimits& limits, std::function<Status()> ready)
      : model_(model), limits_(limits), ready_(std::move(ready)) {}
  Status execute(const ModelBatch& batch, const KvView& kv) override { return model_.forward(batch, kv); }
  Status ready() override { return ready_ ? ready_() : Status(); }
  const ModelLimits& limits() const override { return limits_; }
  ModelTimes times() const override { return model_.times(); }
  int64_t streamed_bytes() const override { return model_.streamed_bytes(); }

 private:
  Model& model_;
  const ModelLimits limits_;
  const std::function<Status()> ready_;
};

}  // namespace

std::unique_ptr<Executor> make_host_executor(Model& model, const ModelLimits& limits, std::function<Status()> ready) {
  return std::make_unique<HostExecutor>(model, limits, std::move(ready));
}

}  // namespace loralei

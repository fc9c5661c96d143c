// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "engine/executor.h"
#include "engine/model_step.h"

namespace loralei {
namespace {

class HostExecutor final : public Executor {
 public:
  HostExecutor(Model& model, const ModelLimits& limits, Ledger& ledger, std::function<Status()> ready)
      : model_(model), limits_(limits), ready_(std::move(ready)), step_(limits, model.config(), ledger) {}
  void use_kv(const KvView& kv, const KvStreams& streams) override {
    kv_ = kv;
    streams_ = streams;
  }
  void use_states(const StateView& states) override { step_.use_states(states); }
  void announce(const Adapter& adapter) override { step_.announce(adapter); }
  bool begins_early() const override { return true; }
  void announce_early(const Adapter& adapter, std::shared_ptr<const Arrivals> arrivals) override {
    step_.announce(adapter, std::move(arrivals), true);
  }
  void withdraw(AdapterVersionId version) override { step_.withdraw(version); }
  Status reserve_vocab(int32_t vocab) override { return step_.reserve_vocab(vocab); }
  void start(const StepBatch& batch) override {
    const ModelBatch& rows = step_.fill(batch, streams_.shape.dim > 0);
    Status status = model_.forward(rows, kv_, streams_);
    end_step({batch.step, std::move(status), step_.waits()});
  }
  StepResult result() const override { return step_.result(); }
  Status ready() override { return ready_ ? ready_() : Status(); }
  const ModelLimits& limits() const override { return limits_; }
  ModelTimes times() const override { return model_.times(); }
  int64_t streamed_bytes() const override { return model_.streamed_bytes(); }

 private:
  Model& model_;
  const ModelLimits limits_;
  const std::function<Status()> ready_;
  ModelStep step_;
  KvView kv_;
  KvStreams streams_;
};

}  // namespace

std::unique_ptr<Executor> make_host_executor(Model& model, const ModelLimits& limits, Ledger& ledger,
                                             std::function<Status()> ready) {
  return std::make_unique<HostExecutor>(model, limits, ledger, std::move(ready));
}

}  // namespace loralei

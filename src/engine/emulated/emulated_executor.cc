// SPDX-License-Identifier: Apache-2.0
#include "engine/emulated/emulated_executor.h"

#include <utility>

#include "base/units.h"
#include "engine/model_step.h"

namespace loralei {
namespace {

class EmulatedExecutor final : public Executor {
 public:
  EmulatedExecutor(Model& model, const ModelLimits& limits, const BlockPool& kv, std::unique_ptr<EmulatedTier> tier,
                   Ledger& ledger)
      : model_(model), limits_(limits), kv_(kv), step_(limits, model.config(), ledger), tier_(std::move(tier)) {
    tier_->on_copies(
        {.comes = [this](const Adapter& copy,
                         std::shared_ptr<const Arrivals> arrivals) { step_.announce(copy, std::move(arrivals)); },
         .leaves = [this](AdapterVersionId version) { step_.withdraw(version); }});
  }
  // What lies in host memory is nothing that steps read.
  void announce(const Adapter&) override {}
  void withdraw(AdapterVersionId) override {}
  Status reserve_vocab(int32_t vocab) override { return step_.reserve_vocab(vocab); }
  void start(const StepBatch& batch) override {
    Status status = model_.forward(step_.fill(batch), kv_.view());
    end_step({batch.step, std::move(status), step_.waits()});
  }
  StepResult result() const override { return step_.result(); }
  DeviceTier* device_tier() override { return tier_.get(); }
  int32_t kv_blocks() const override { return kv_.total(); }
  int64_t adapter_bytes() const override { return tier_->bytes(); }
  const ModelLimits& limits() const override { return limits_; }
  ModelTimes times() const override { return model_.times(); }

  Status accepts(const Adapter& adapter) const override {
    const int64_t bytes = tier_->bytes_of(adapter);
    if (bytes <= tier_->bytes_max()) return {};
    return too_large("it needs " + format_bytes(bytes) + " of the device's memory and adapters have " +
                     format_bytes(tier_->bytes_max()) + " together; give them more with --adapter-memory.");
  }

 private:
  Model& model_;
  const ModelLimits limits_;
  const BlockPool& kv_;
  ModelStep step_;
  const std::unique_ptr<EmulatedTier> tier_;
};

}  // namespace

std::unique_ptr<Executor> make_emulated_executor(Model& model, const ModelLimits& limits, const BlockPool& kv,
                                                 std::unique_ptr<EmulatedTier> tier, Ledger& ledger) {
  return std::make_unique<EmulatedExecutor>(model, limits, kv, std::move(tier), ledger);
}

}  // namespace loralei

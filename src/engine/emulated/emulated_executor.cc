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
                   Ledger& ledger, std::unique_ptr<LayerAssist> assist)
      : model_(model),
        limits_(limits),
        kv_(kv),
        assist_(std::move(assist)),
        step_(limits, model.config(), ledger),
        tier_(std::move(tier)) {
    tier_->on_copies(
        {.comes = [this](const Adapter& copy,
                         std::shared_ptr<const Arrivals> arrivals) { step_.announce(copy, std::move(arrivals)); },
         .leaves = [this](AdapterVersionId version) { step_.withdraw(version); }});
  }
  // What lies in host memory is nothing that steps read.
  void announce(const Adapter&) override {}
  void withdraw(AdapterVersionId version) override {
    if (assist_ != nullptr) assist_->forget(version);
  }
  Status reserve_vocab(int32_t vocab) override { return step_.reserve_vocab(vocab); }
  void start(const StepBatch& batch) override {
    forget_arrived();
    Status status = model_.forward(step_.fill(batch, false, assist_.get()), kv_.view());
    end_step({batch.step, std::move(status), step_.waits()});
  }
  StepResult result() const override { return step_.result(); }
  AssistOffer assist_with(const Adapter& adapter) override {
    if (assist_ == nullptr) return {};
    const auto way = tier_->on_its_way(adapter.version);
    if (!way || way->arrivals->whole()) return {};
    if (!assist_->knows(adapter.version)) assisted_.emplace_back(adapter.version, way->arrivals);
    return assist_->offer(adapter);
  }
  AssistState assist_state() const override {
    if (assist_ == nullptr) return {};
    return {assist_->helpers(), assist_->rows(), assist_->stats().restarts};
  }
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
  // Helpers need no longer know what has arrived, or will not.
  void forget_arrived() {
    std::erase_if(assisted_, [this](const auto& one) {
      if (!one.second->whole() && !one.second->failed()) return false;
      assist_->forget(one.first);
      return true;
    });
  }

  Model& model_;
  const ModelLimits limits_;
  const BlockPool& kv_;
  const std::unique_ptr<LayerAssist> assist_;
  std::vector<std::pair<AdapterVersionId, std::shared_ptr<const Arrivals>>> assisted_;  // that helpers know
  ModelStep step_;
  const std::unique_ptr<EmulatedTier> tier_;
};

}  // namespace

std::unique_ptr<Executor> make_emulated_executor(Model& model, const ModelLimits& limits, const BlockPool& kv,
                                                 std::unique_ptr<EmulatedTier> tier, Ledger& ledger,
                                                 std::unique_ptr<LayerAssist> assist) {
  return std::make_unique<EmulatedExecutor>(model, limits, kv, std::move(tier), ledger, std::move(assist));
}

}  // namespace loralei

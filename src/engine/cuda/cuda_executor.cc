// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cuda_executor.h"

#include <optional>
#include <string>
#include <utility>

#include "base/units.h"
#include "engine/model_step.h"

namespace loralei {
namespace {

class CudaExecutor final : public Executor, public DeviceTier {
 public:
  CudaExecutor(CudaModel& model, const CudaKv& kv, Ledger& ledger, CudaAssist assist)
      : model_(model), kv_(kv), assist_(std::move(assist)), step_(model.limits(), model.config(), ledger) {}
  void announce(const Adapter& adapter) override { step_.announce(adapter); }
  void withdraw(AdapterVersionId version) override {
    step_.withdraw(version);
    std::erase_if(assisted_, [version](const auto& one) { return one.first == version; });
    forget_helped(version);
  }
  Status reserve_vocab(int32_t vocab) override { return step_.reserve_vocab(vocab); }
  void start(const StepBatch& batch) override {
    forget_arrived();
    Status status = model_.forward(step_.fill(batch), kv_, batch.arrivals_wait_ns, assist_.sums.get());
    end_step({batch.step, std::move(status), model_.waits()});
  }
  AssistOffer assist_with(const Adapter& adapter) override {
    if (assist_.helpers == nullptr) return {};
    const auto way = on_its_way(adapter.version);
    if (!way || way->arrivals->whole()) return {};
    const AssistOffer offer = assist_.helpers->offer(adapter);
    if (offer.rows == 0) return offer;
    if (!assist_.sums->computes(adapter.version)) assisted_.emplace_back(adapter.version, way->arrivals);
    assist_.sums->know(adapter);
    return offer;
  }
  AssistState assist_state() const override {
    if (assist_.helpers == nullptr) return {};
    return {assist_.helpers->helpers(), assist_.helpers->rows(), assist_.helpers->stats().restarts};
  }
  StepResult result() const override { return step_.result(); }
  int32_t kv_blocks() const override { return kv_.blocks(); }
  int64_t adapter_bytes() const override { return model_.adapters().bytes(); }
  const ModelLimits& limits() const override { return model_.limits(); }
  DeviceTier* device_tier() override { return this; }
  bool chooses_tokens() const override { return true; }

  Status accepts(const Adapter& adapter) const override {
    if (adapter.vocab > model_.vocab_max()) {
      return unsupported("it has a vocabulary of " + std::to_string(adapter.vocab) + " tokens, and the logits of " +
                         std::to_string(model_.limits().logits_rows_max) + " rows have room for up to " +
                         std::to_string(model_.vocab_max()) +
                         " on the GPU; start with a lower --max-num-seqs, or run it on the CPU.");
    }
    for (const LoraPair& pair : adapter.pairs) {
      if (pair.rank > model_.limits().rank_max) {
        return unsupported("it has rank " + std::to_string(pair.rank) + " and the model was made for ranks up to " +
                           std::to_string(model_.limits().rank_max) + "; start it with a higher largest rank.");
      }
    }
    const int64_t bytes = model_.adapters().adapter_bytes(factors_of(adapter));
    if (bytes <= model_.adapters().bytes_max()) return {};
    return too_large("it needs " + format_bytes(bytes) + " of GPU memory and adapters have " +
                     format_bytes(model_.adapters().bytes_max()) + " together; give them more with --adapter-memory.");
  }

  Result<bool> hold(std::span<const Adapter* const> adapters) override {
    factors_.clear();
    for (const Adapter* adapter : adapters) factors_.push_back(factors_of(*adapter));
    const Result<bool> held = model_.adapters().hold(factors_);
    factors_.clear();  // no share of host memory is kept
    return held;
  }
  Result<bool> arrived(AdapterVersionId version) override { return model_.adapters().arrived(version); }
  std::optional<AdapterOnItsWay> on_its_way(AdapterVersionId version) const override {
    const auto way = model_.adapters().on_its_way(version);
    if (!way) return std::nullopt;
    return AdapterOnItsWay{way->arrivals, way->bytes_through, way->bytes_before};
  }
  void release(AdapterVersionId version) override { model_.adapters().release(version); }
  void forget(AdapterVersionId version) override { model_.adapters().forget(version); }
  bool has(AdapterVersionId version) const override { return model_.adapters().has(version); }
  void drop_unused(AdapterVersionId version) override { model_.adapters().drop_unused(version); }
  void on_upload(std::function<void(UploadDone&&)> call) override {
    if (call == nullptr) return model_.adapters().on_upload({});
    model_.adapters().on_upload([call = std::move(call)](AdapterVersionId version, const Status& status) {
      call({version, status});
    });
  }
  int64_t bytes_max() const override { return model_.adapters().bytes_max(); }
  void choose_leaving(ChooseLeaving choose) override { model_.adapters().choose_leaving(std::move(choose)); }
  DeviceTierStats stats() const override {
    const CudaAdapters& adapters = model_.adapters();
    return {adapters.uploads(), adapters.uploaded_bytes(), adapters.upload_ns()};
  }

 private:
  static AdapterFactors factors_of(const Adapter& adapter) {
    return {adapter.version, adapter.pairs, adapter.storage, adapter.saved.any() ? &adapter.saved : nullptr};
  }

  // Helpers need no longer know what has arrived, or will not.
  void forget_arrived() {
    std::erase_if(assisted_, [this](const auto& one) {
      if (!one.second->whole() && !one.second->failed()) return false;
      forget_helped(one.first);
      return true;
    });
  }
  void forget_helped(AdapterVersionId version) {
    if (assist_.helpers == nullptr) return;
    assist_.sums->forget(version);
    assist_.helpers->forget(version);
  }

  CudaModel& model_;
  const CudaKv& kv_;
  CudaAssist assist_;
  std::vector<std::pair<AdapterVersionId, std::shared_ptr<const Arrivals>>> assisted_;  // that helpers know
  ModelStep step_;
  std::vector<AdapterFactors> factors_;
};

}  // namespace

std::unique_ptr<Executor> make_cuda_executor(CudaModel& model, const CudaKv& kv, Ledger& ledger, CudaAssist assist) {
  return std::make_unique<CudaExecutor>(model, kv, ledger, std::move(assist));
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// CostExecutor: steps that cost what a profile says and compute nothing. LinkTier: a
// device's memory of adapters at the end of a link, over which they come in layers where
// the profile says how many.
//
// A step ends as an event of the kernel, as late as the profile predicts (or as
// `step_times` say, in a replay). A token is what the workload says: the end of the text
// where its request has had its number of tokens, some other token before. So no policy
// can know the length of an answer before it has ended. A step with an adapter that is on
// its way also takes what it waits for layers, or what helpers take for those that are
// not there, whichever is less.
//
// Thread: one. Ownership: borrows the kernel and the profile.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cost/profile.h"
#include "engine/executor.h"
#include "engine/step_record.h"
#include "sim/fake_model.h"
#include "sim/faults.h"
#include "sim/kernel.h"

namespace loralei::sim {

inline constexpr int32_t kSimulatedVocab = 32000;
inline constexpr TokenId kSimulatedEnd = 2;     // ends a text
inline constexpr TokenId kSimulatedFirst = 16;  // of the tokens of texts

class LinkTier final : public DeviceTier {
 public:
  // layers 0: adapters come as a whole.
  LinkTier(Kernel& kernel, const TransferCost& link, int64_t bytes_max, int32_t layers, Faults& faults)
      : kernel_(kernel),
        link_(link),
        layers_(layers),
        faults_(faults),
        memory_(bytes_max, layers),
        free_at_ns_(static_cast<size_t>(link.at_once)) {}

  Result<bool> hold(std::span<const Adapter* const> adapters) override;
  Result<bool> arrived(AdapterVersionId version) override { return memory_.arrived(version); }
  std::optional<AdapterOnItsWay> on_its_way(AdapterVersionId version) const override;
  void release(AdapterVersionId version) override { memory_.release(version); }
  void forget(AdapterVersionId version) override { memory_.forget(version); }
  bool has(AdapterVersionId version) const override { return memory_.has(version); }
  void drop_unused(AdapterVersionId version) override { memory_.drop_unused(version); }
  void on_upload(std::function<void(UploadDone&&)> call) override { call_ = std::move(call); }
  int64_t bytes_max() const override { return memory_.bytes_max(); }
  void choose_leaving(ChooseLeaving choose) override { memory_.choose_leaving(std::move(choose)); }
  DeviceTierStats stats() const override { return stats_; }
  const FakeTier& memory() const { return memory_; }
  int32_t layers() const { return layers_; }
  // When this layer of it, or what comes behind them, will be there; in the past: it is.
  int64_t arrival_ns(AdapterVersionId version, int32_t piece) const;
  bool comes(AdapterVersionId version) const { return uploads_.count(version) != 0; }
  // It will come to nothing.
  bool fails(AdapterVersionId version) const { return uploads_.at(version).fails; }

 private:
  struct Upload {
    int64_t begin_ns = 0, end_ns = 0;
    bool fails = false;
  };
  Kernel& kernel_;
  const TransferCost link_;
  const int32_t layers_;
  Faults& faults_;
  FakeTier memory_;
  std::vector<int64_t> free_at_ns_;             // each of as many uploads as go at once
  std::map<AdapterVersionId, Upload> uploads_;  // that have not ended
  DeviceTierStats stats_;
  std::function<void(UploadDone&&)> call_;
};

// Helpers beside the device, and what each takes.
struct SimulatedHelpers {
  int32_t count = 0;
  AssistCost cost = {};
};

class CostExecutor final : public Executor {
 public:
  // The token at a position of the text of the request with this seed.
  using NextToken = std::function<TokenId(uint64_t seed, uint64_t position)>;
  // Seconds of a step.
  using StepSeconds = std::function<double(uint64_t step, const StepFeatures& features)>;

  CostExecutor(Kernel& kernel, const ModelLimits& limits, StepSeconds seconds, NextToken next_token,
               std::unique_ptr<LinkTier> tier, const SimulatedHelpers& helpers = {})
      : kernel_(kernel),
        limits_(limits),
        seconds_(std::move(seconds)),
        next_token_(std::move(next_token)),
        tier_(std::move(tier)),
        helpers_(helpers) {}

  void announce(const Adapter& adapter) override { ranks_.announce(adapter); }
  void withdraw(AdapterVersionId version) override {
    ranks_.withdraw(version);
    offers_.erase(version);
  }
  AssistOffer assist_with(const Adapter& adapter) override;
  AssistState assist_state() const override { return {helpers_.count, assist_rows(), 0}; }
  Status reserve_vocab(int32_t) override { return {}; }
  void start(const StepBatch& batch) override;
  StepResult result() const override { return {.chosen = chosen_}; }
  const ModelLimits& limits() const override { return limits_; }
  bool chooses_tokens() const override { return true; }
  DeviceTier* device_tier() override { return tier_.get(); }
  int64_t adapter_bytes() const override { return tier_ == nullptr ? 0 : tier_->memory().bytes(); }
  int64_t busy_ns() const { return busy_ns_; }
  int64_t held_adapter_bytes() const { return tier_ == nullptr ? 0 : tier_->memory().held_bytes(); }
  int32_t copies_on_device() const { return tier_ == nullptr ? 0 : static_cast<int32_t>(tier_->memory().copies()); }
  int32_t held_on_device() const { return tier_ == nullptr ? 0 : tier_->memory().holds(); }

 private:
  // A step that computes for so long, with what it waits.
  struct Pass {
    int64_t ns = 0;
    StepWaits waits = {};
  };
  Pass pass_of(const StepBatch& batch, int64_t compute_ns);
  bool pass_layer(const StepBatch& batch, int32_t layer, int64_t layer_ns, Pass& pass);
  int32_t assist_rows() const;

  Kernel& kernel_;
  const ModelLimits limits_;
  const StepSeconds seconds_;
  const NextToken next_token_;
  const std::unique_ptr<LinkTier> tier_;  // null: adapters are used in host memory
  const SimulatedHelpers helpers_;
  AdapterRanks ranks_;
  std::map<AdapterVersionId, AssistOffer> offers_;  // of those that helpers know
  std::vector<TokenId> chosen_;
  int64_t busy_ns_ = 0;
};

}  // namespace loralei::sim

// SPDX-License-Identifier: Apache-2.0
// CostExecutor: steps that cost what a profile says and compute nothing. LinkTier: a
// device's memory of adapters at the end of a link.
//
// A step ends as an event of the kernel, as late as the profile predicts (or as
// `step_times` say, in a replay). A token is what the workload says: the end of the text
// where its request has had its number of tokens, some other token before. So no policy
// can know the length of an answer before it has ended.
//
// Thread: one. Ownership: borrows the kernel and the profile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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
  LinkTier(Kernel& kernel, const TransferCost& link, int64_t bytes_max, Faults& faults)
      : kernel_(kernel),
        link_(link),
        faults_(faults),
        memory_(bytes_max),
        free_at_ns_(static_cast<size_t>(link.at_once)) {}

  Result<bool> hold(std::span<const Adapter* const> adapters) override;
  Result<bool> arrived(AdapterVersionId version) override { return memory_.arrived(version); }
  void release(AdapterVersionId version) override { memory_.release(version); }
  void forget(AdapterVersionId version) override { memory_.forget(version); }
  bool has(AdapterVersionId version) const override { return memory_.has(version); }
  void drop_unused(AdapterVersionId version) override { memory_.drop_unused(version); }
  void on_upload(std::function<void(UploadDone&&)> call) override { call_ = std::move(call); }
  int64_t bytes_max() const override { return memory_.bytes_max(); }
  void choose_leaving(ChooseLeaving choose) override { memory_.choose_leaving(std::move(choose)); }
  DeviceTierStats stats() const override { return stats_; }
  const FakeTier& memory() const { return memory_; }

 private:
  Kernel& kernel_;
  const TransferCost link_;
  Faults& faults_;
  FakeTier memory_;
  std::vector<int64_t> free_at_ns_;  // each of as many uploads as go at once
  DeviceTierStats stats_;
  std::function<void(UploadDone&&)> call_;
};

class CostExecutor final : public Executor {
 public:
  // The token at a position of the text of the request with this seed.
  using NextToken = std::function<TokenId(uint64_t seed, uint64_t position)>;
  // Seconds of a step.
  using StepSeconds = std::function<double(uint64_t step, const StepFeatures& features)>;

  CostExecutor(Kernel& kernel, const ModelLimits& limits, StepSeconds seconds, NextToken next_token,
               std::unique_ptr<LinkTier> tier)
      : kernel_(kernel),
        limits_(limits),
        seconds_(std::move(seconds)),
        next_token_(std::move(next_token)),
        tier_(std::move(tier)) {}

  void announce(const Adapter& adapter) override { ranks_.announce(adapter); }
  void withdraw(AdapterVersionId version) override { ranks_.withdraw(version); }
  Status reserve_vocab(int32_t) override { return {}; }
  void start(const StepBatch& batch) override;
  StepResult result() const override { return {.chosen = chosen_}; }
  const ModelLimits& limits() const override { return limits_; }
  bool chooses_tokens() const override { return true; }
  DeviceTier* device_tier() override { return tier_.get(); }
  int64_t adapter_bytes() const override { return tier_ == nullptr ? 0 : tier_->memory().bytes(); }
  int64_t busy_ns() const { return busy_ns_; }
  int64_t held_adapter_bytes() const { return tier_ == nullptr ? 0 : tier_->memory().held_bytes(); }
  int32_t held_on_device() const { return tier_ == nullptr ? 0 : tier_->memory().holds(); }

 private:
  Kernel& kernel_;
  const ModelLimits limits_;
  const StepSeconds seconds_;
  const NextToken next_token_;
  const std::unique_ptr<LinkTier> tier_;  // null: adapters are used in host memory
  AdapterRanks ranks_;
  std::vector<TokenId> chosen_;
  int64_t busy_ns_ = 0;
};

}  // namespace loralei::sim

// SPDX-License-Identifier: Apache-2.0
#include "sim/cost_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loralei::sim {

Result<bool> LinkTier::hold(std::span<const Adapter* const> adapters) {
  std::vector<const Adapter*> missing;
  for (const Adapter* adapter : adapters)
    if (!memory_.has(adapter->version)) missing.push_back(adapter);
  TRY_ASSIGN(const bool held, memory_.hold(adapters));
  if (!held) return false;
  for (const Adapter* adapter : missing) {
    const int64_t cost_ns = simulated_ns(faults_.upload_slowness() * link_.predict_s(adapter->bytes));
    int64_t& lane_ns = *std::min_element(free_at_ns_.begin(), free_at_ns_.end());
    lane_ns = std::max(lane_ns, kernel_.now_ns()) + cost_ns;
    ++stats_.uploads;
    stats_.upload_bytes += adapter->bytes;
    stats_.upload_ns += cost_ns;
    kernel_.at(lane_ns, EventOrder::kEnded, [this, version = adapter->version] {
      auto done = memory_.end_upload(!faults_.upload_fails(), version);
      CHECK(done);
      if (call_) call_(std::move(*done));
    });
  }
  return true;
}

void CostExecutor::start(const StepBatch& batch) {
  chosen_.clear();
  CHECK(batch.choices.size() == batch.logits_rows.size());
  for (const RowChoice& choice : batch.choices) {
    CHECK(choice.vocab > 0);
    chosen_.push_back(next_token_(choice.seed, choice.position));
  }
  if (tier_ != nullptr)
    for (const AdapterVersionId version : batch.adapters) tier_->memory().expect_usable(version);
  const double seconds = seconds_(batch.step, features_of(batch, ranks_));
  const int64_t ns = std::max<int64_t>(1, simulated_ns(seconds));
  busy_ns_ += ns;
  kernel_.after(ns, EventOrder::kEnded, [this, step = batch.step] { end_step({step, {}}); });
}

}  // namespace loralei::sim

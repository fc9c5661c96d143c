// SPDX-License-Identifier: Apache-2.0
#include "sim/cost_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/layer_assist.h"

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
    const int64_t begin_ns = std::max(lane_ns, kernel_.now_ns());
    lane_ns = begin_ns + cost_ns;
    ++stats_.uploads;
    stats_.upload_bytes += adapter->bytes;
    stats_.upload_ns += cost_ns;
    uploads_[adapter->version] = {begin_ns, lane_ns, faults_.upload_fails()};
    for (int32_t layer = 0; layer < layers_; ++layer) {
      kernel_.at(arrival_ns(adapter->version, layer), EventOrder::kEnded,
                 [this, version = adapter->version] { memory_.bring_layer(version); });
    }
    kernel_.at(lane_ns, EventOrder::kEnded, [this, version = adapter->version] {
      auto done = memory_.end_upload(!uploads_.at(version).fails, version);
      uploads_.erase(version);
      CHECK(done);
      if (call_) call_(std::move(*done));
    });
  }
  return true;
}

int64_t LinkTier::arrival_ns(AdapterVersionId version, int32_t piece) const {
  const Upload& upload = uploads_.at(version);
  return upload.begin_ns + (upload.end_ns - upload.begin_ns) * (piece + 1) / (layers_ + 1);
}

std::optional<AdapterOnItsWay> LinkTier::on_its_way(AdapterVersionId version) const {
  std::optional<AdapterOnItsWay> way = memory_.on_its_way(version);
  const auto upload = uploads_.find(version);
  if (!way || upload == uploads_.end()) return way;
  const int64_t until_ns = std::max<int64_t>(0, upload->second.begin_ns - kernel_.now_ns());
  way->bytes_before = static_cast<int64_t>(static_cast<double>(until_ns) * 1e-9 * link_.bytes_per_second);
  return way;
}

int32_t CostExecutor::assist_rows() const { return helpers_.count * LayerAssist::kRowsMost; }

AssistOffer CostExecutor::assist_with(const Adapter& adapter) {
  if (helpers_.count == 0 || !tier_->comes(adapter.version)) return {};
  const double row_s = helpers_.cost.row_seconds_per_rank * std::max(1, ranks_.rank(adapter.version));
  const double rows_each = LayerAssist::kWorkPerMessage * helpers_.cost.message_seconds / row_s;
  const AssistOffer offer{
      .rows = assist_rows(),
      .rows_each = std::clamp(static_cast<int32_t>(std::min(rows_each, 1e6)), 1, LayerAssist::kRowsMost),
      .helpers = helpers_.count,
      .row_s = row_s,
      .message_s = helpers_.cost.message_seconds};
  offers_[adapter.version] = offer;
  return offer;
}

// The time until a layer has been computed. False: it comes too late, and ends the step.
bool CostExecutor::pass_layer(const StepBatch& batch, int32_t layer, int64_t layer_ns, Pass& pass) {
  const int64_t begin_ns = kernel_.now_ns() + pass.ns;
  int64_t wait_ns = 0, taken_ns = layer_ns;
  bool helped = false;
  for (size_t slot = 0; slot < batch.adapters.size(); ++slot) {
    const AdapterVersionId version = batch.adapters[slot];
    if (!tier_->comes(version)) continue;
    // What never comes is known when its upload ends.
    const int64_t there_ns = tier_->arrival_ns(version, tier_->fails(version) ? tier_->layers() : layer);
    const int64_t missing_ns = there_ns - begin_ns;
    if (missing_ns <= 0) continue;
    const auto offer = offers_.find(version);
    if (offer != offers_.end() && layer < tier_->layers()) {
      int32_t rows = 0;
      for (const LoraSegment& segment : batch.segments)
        rows += segment.slot == static_cast<int32_t>(slot) ? segment.row_count : 0;
      const int64_t helpers_ns = std::max(layer_ns, simulated_ns(offer->second.layer_s(rows)));
      if (helpers_ns <= missing_ns + layer_ns) {
        helped = true;
        taken_ns = std::max(taken_ns, helpers_ns);
        continue;
      }
    }
    wait_ns = std::max(wait_ns, missing_ns);
    const bool late = pass.waits.ns + wait_ns > batch.arrivals_wait_ns;
    if (late || tier_->fails(version)) pass.waits.ended_by = version;
  }
  pass.waits.layers += wait_ns > 0 ? 1 : 0;
  wait_ns = std::min(wait_ns, std::max<int64_t>(0, batch.arrivals_wait_ns - pass.waits.ns));
  pass.waits.ns += wait_ns;
  pass.ns += wait_ns;
  if (pass.waits.ended_by != AdapterVersionId{}) return false;
  pass.waits.assisted_layers += helped ? 1 : 0;
  if (helped) {
    pass.waits.handover_layer = -1;
  } else if (pass.waits.assisted_layers > 0 && pass.waits.handover_layer < 0) {
    pass.waits.handover_layer = layer;
  }
  pass.ns += taken_ns;
  return true;
}

CostExecutor::Pass CostExecutor::pass_of(const StepBatch& batch, int64_t compute_ns) {
  const auto comes = [this](AdapterVersionId version) { return tier_->comes(version); };
  if (tier_ == nullptr || tier_->layers() == 0 || std::none_of(batch.adapters.begin(), batch.adapters.end(), comes))
    return {compute_ns};
  Pass pass;
  const int32_t layers = tier_->layers();
  for (int32_t layer = 0; layer < layers; ++layer) {
    const int64_t layer_ns = compute_ns * (layer + 1) / layers - compute_ns * layer / layers;
    if (!pass_layer(batch, layer, layer_ns, pass)) return pass;
  }
  return pass;
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
  const Pass pass = pass_of(batch, std::max<int64_t>(1, simulated_ns(seconds)));
  busy_ns_ += pass.ns;
  kernel_.after(std::max<int64_t>(1, pass.ns), EventOrder::kEnded, [this, step = batch.step, waits = pass.waits] {
    end_step({step, {}, waits});
  });
}

}  // namespace loralei::sim

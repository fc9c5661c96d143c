// SPDX-License-Identifier: Apache-2.0
#include "engine/model_step.h"

#include <algorithm>

#include "base/check.h"

namespace loralei {

void ModelStep::withdraw(AdapterVersionId version) {
  adapters_.erase(version);
  if (std::find(slots_.begin(), slots_.end(), version) != slots_.end()) slots_.clear();
}

const Adapter& ModelStep::announced(AdapterVersionId version) const {
  const auto found = adapters_.find(version);
  CHECK(found != adapters_.end());
  return *found->second.adapter;
}

// The step waits for what it has not got yet.
void ModelStep::expect(int32_t slot, AdapterVersionId version) {
  Announced& announced = adapters_.at(version);
  if (announced.arrivals == nullptr) return;
  if (!announced.arrivals->whole())
    return inputs_.add(slot, *announced.adapter, announced.arrivals, announced.whole_for_results);
  announced.arrivals.reset();
}

void ModelStep::fill_sources(std::span<const AdapterVersionId> slots, std::span<const int32_t> first_layers) {
  CHECK(first_layers.empty() || first_layers.size() == slots.size());
  if (std::ranges::equal(slots_, slots) && std::ranges::equal(first_layers_, first_layers)) return;
  slots_.assign(slots.begin(), slots.end());
  first_layers_.assign(first_layers.begin(), first_layers.end());
  experts_.clear();
  bool any_experts = false;
  for (const AdapterVersionId version : slots) {
    const ExpertPairs& experts = announced(version).experts;
    experts_.push_back(experts.any() ? &experts : nullptr);
    any_experts = any_experts || experts.any();
  }
  if (!any_experts) experts_.clear();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const auto& pairs = announced(slots[slot]).pairs;
    if (slot == 0) sources_.resize(pairs.size() * slots.size());
    CHECK(pairs.size() * slots.size() == sources_.size());
    const auto first = static_cast<size_t>(first_layers.empty() ? 0 : first_layers[slot]);
    const size_t head = pairs.size() - 2, embed = pairs.size() - 1;
    for (size_t module = 0; module < pairs.size(); ++module) {
      const bool below = module == embed ? first > 0 : module < std::min(head, first * kLayerModules);
      const bool present = !below && (pairs[module].rank > 0 || pairs[module].bias_delta != nullptr);
      sources_[module * slots.size() + slot].pair = present ? &pairs[module] : nullptr;
    }
  }
}

const ModelBatch& ModelStep::fill(const StepBatch& batch, bool streams, LayerAssist* assist) {
  groups_.clear();
  table_strides_.clear();
  states_.clear();
  for (const BatchGroup& group : batch.groups) {
    CHECK(group.blocks_begin >= 0 &&
          group.blocks_begin + tables_ * group.blocks_count <= static_cast<int32_t>(batch.blocks.size()));
    groups_.push_back({group.row_begin, group.row_count, group.position, batch.blocks.data() + group.blocks_begin});
    table_strides_.push_back(group.blocks_count);
    CHECK(state_view_.slots == 0 || (group.state >= 0 && group.state < state_view_.slots));
    if (state_view_.slots > 0) states_.push_back(state_view_.at(group.state));
  }
  overrides_.clear();
  for (const VersionRows& run : batch.replaced) {
    CHECK(std::ranges::binary_search(batch.adapters, run.version));
    overrides_.push_back({run.row_begin, run.row_count, &announced(run.version).saved, run.version});
  }
  streams_.clear();
  for (const BatchGroup& group : batch.groups) {
    CHECK(streams || group.stream.begin_layer == 0);
    if (streams) streams_.push_back(group.stream);
  }
  if (!batch.segments.empty()) fill_sources(batch.adapters, batch.first_layers);
  batch_.tokens = batch.tokens;
  batch_.positions = batch.positions;
  batch_.groups = groups_;
  batch_.table_strides = table_strides_;
  batch_.streams = streams_;
  batch_.states = states_;
  batch_.segments = batch.segments;
  batch_.sources = batch.segments.empty() ? nullptr : sources_.data();
  batch_.slots = static_cast<int32_t>(batch.adapters.size());
  batch_.experts = batch.segments.empty() ? std::span<const ExpertPairs* const>() : experts_;
  batch_.expert_layers = batch_.experts.empty() ? std::span<const int32_t>() : first_layers_;
  batch_.versions = batch.adapters;
  batch_.overrides = overrides_;
  // Helpers compute all layers of an adapter.
  CHECK(assist == nullptr || std::ranges::all_of(batch.first_layers, [](int32_t layer) { return layer == 0; }));
  inputs_.begin(batch.arrivals_wait_ns, assist);
  for (size_t slot = 0; slot < batch.adapters.size(); ++slot) expect(static_cast<int32_t>(slot), batch.adapters[slot]);
  batch_.inputs = inputs_.empty() ? nullptr : &inputs_;
  batch_.logits_rows = batch.logits_rows;
  batch_.choices = batch.choices;
  batch_.hidden_rows = batch.hidden_rows;
  outputs_.begin(batch.choices.size(), batch_);
  return batch_;
}

}  // namespace loralei

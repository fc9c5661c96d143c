// SPDX-License-Identifier: Apache-2.0
// StepTables: the table of LoRA sources.
#include <algorithm>
#include <string>

#include "model/cuda/step_tables.h"

namespace loralei {

Status StepTables::check(const LoraPair& pair) const {
  if (pair.rank > options_.limits.rank_max) {
    return unsupported("An adapter has rank " + std::to_string(pair.rank) + " and the model was made for ranks up to " +
                       std::to_string(options_.limits.rank_max) + ": start it with a higher largest rank.");
  }
  return {};
}

// Every adapter of the step is on the device; the engine sees to that before
// (CudaAdapters::hold), others wait here.
Status StepTables::ensure_adapters(const ModelBatch& batch, CudaAdapters& adapters) {
  const auto slots = static_cast<size_t>(batch.slots);
  for (size_t slot = 0; slot < slots; ++slot) {
    pairs_.clear();
    for (size_t module = 0; module < shape_.ranks.size(); ++module) {
      const LoraPair* const pair = batch.sources[module * slots + slot].pair;
      if (pair == nullptr) continue;
      TRY(check(*pair));
      pairs_.push_back({static_cast<int32_t>(module), pair});
    }
    if (adapters.is_arriving(batch.versions[slot])) continue;
    TRY(adapters.ensure(batch.versions[slot], pairs_));
  }
  return {};
}

// Whether the table is what this step wants, as it lies on the device.
bool StepTables::is_filled_from(const ModelBatch& batch, const CudaAdapters& adapters) const {
  return filled_.slots == shape_.slots && filled_.generation == adapters.generation() &&
         std::equal(filled_.versions.begin(), filled_.versions.end(), batch.versions.begin(), batch.versions.end());
}

// The table and the ranks. It is made and copied where something is another than in
// the step before, and for each step with adapters that are on their way.
Status StepTables::put_sources(const ModelBatch& batch, CudaAdapters& adapters, bool layered, CudaStream& stream) {
  if (is_filled_from(batch, adapters)) {
    adapters.use(filled_.slabs);
    shape_.ranks = filled_.ranks;
    return {};
  }
  filled_.versions.clear();
  TRY(ensure_adapters(batch, adapters));
  const auto slots = static_cast<size_t>(shape_.slots), own_slots = static_cast<size_t>(batch.slots);
  auto* const table = reinterpret_cast<cuda::DeviceLora*>(host_.data());
  const size_t count = shape_.ranks.size() * slots;
  std::fill_n(table, count, cuda::DeviceLora{});
  for (size_t module = 0; module < shape_.ranks.size(); ++module) {
    for (size_t slot = 0; slot < own_slots; ++slot) {
      const LoraPair* const pair = batch.sources[module * own_slots + slot].pair;
      if (pair == nullptr) continue;
      const auto number = static_cast<int32_t>(module);
      const cuda::DeviceLora* lora = adapters.find(batch.versions[slot], number);
      if (lora == nullptr) lora = adapters.find_arriving(batch.versions[slot], number);
      if (lora == nullptr) return lost_on_its_way();
      table[module * slots + slot] = *lora;
      shape_.ranks[module] = std::max({shape_.ranks[module], lora->rank, 1});
    }
  }
  TRY(copy_to_device(device_.data(), host_.data(), static_cast<int64_t>(count * sizeof(cuda::DeviceLora)), stream));
  ++sources_made_;
  if (layered) return {};
  filled_.versions.assign(batch.versions.begin(), batch.versions.end());
  filled_.slots = shape_.slots;
  filled_.ranks = shape_.ranks;
  filled_.generation = adapters.generation();
  adapters.used(filled_.slabs);
  return {};
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// StepTables: the table of LoRA sources.
#include <algorithm>
#include <cstring>
#include <string>

#include "model/cuda/step_tables.h"
#include "model/layer_program.h"

namespace loralei {
namespace {

Module module_kind(const ModelConfig& config, size_t module) {
  const size_t layers = static_cast<size_t>(config.layers) * static_cast<size_t>(kLayerModules);
  if (module < layers) return static_cast<Module>(module % kLayerModules);
  return module == layers ? Module::kLmHead : Module::kEmbed;
}

AdapterVersionId version_of(const ModelBatch& batch, size_t slot) {
  return batch.versions.empty() ? AdapterVersionId() : batch.versions[slot];
}

}  // namespace

Result<cuda::DeviceLora> StepTables::put_delta(const ModelBatch& batch, size_t module, size_t slot,
                                               const float* delta) {
  const Module kind = module_kind(*config_, module);
  const auto out = static_cast<size_t>(kind == Module::kLmHead ? vocab_ : module_out(*config_, kind));
  const size_t stride = kind == Module::kLmHead ? static_cast<size_t>(batch.logits_stride) : out;
  int32_t rows = 0;
  for (const LoraSegment& segment :
       kind == Module::kLmHead ? std::span<const LoraSegment>(head_segments_) : batch.segments) {
    if (segment.slot == static_cast<int32_t>(slot)) rows = std::max(rows, segment.row_count);
  }
  cuda::DeviceLora lora;
  if (rows == 0) return lora;
  float* host = nullptr;
  TRY(take(static_cast<size_t>(rows) * out, &host, &lora.delta));
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    std::memcpy(host + row * out, delta + row * stride, out * sizeof(float));
  }
  lora.present = 1;
  return lora;
}

Status StepTables::check(const LoraPair& pair) const {
  if (pair.rank > options_.limits.rank_max) {
    return unsupported("An adapter has rank " + std::to_string(pair.rank) + " and the model was made for ranks up to " +
                       std::to_string(options_.limits.rank_max) + ": start it with a higher largest rank.");
  }
  return {};
}

Result<cuda::DeviceLora> StepTables::source(const ModelBatch& batch, const ResolvedLora& from, size_t module,
                                            size_t slot, CudaAdapters& adapters) {
  if (from.delta != nullptr) {
    shape_.ranks[module] = std::max(shape_.ranks[module], 1);
    return put_delta(batch, module, slot, from.delta);
  }
  if (from.pair == nullptr) return cuda::DeviceLora{};
  const AdapterVersionId version = version_of(batch, slot);
  const CudaAdapters::Entry* entry = adapters.find(*from.pair, version);
  if (entry == nullptr) {  // became resident since its column was looked through
    const LoraPair* const late[] = {from.pair};
    TRY(check(*from.pair));
    TRY(adapters.ensure(late, version));
    entry = adapters.find(*from.pair, version);
  }
  shape_.ranks[module] = std::max(shape_.ranks[module], std::max(entry->lora.rank, 1));
  return entry->lora;
}

// Every adapter of the step is on the device; the engine sees to that before
// (CudaAdapters::hold), others wait here.
Status StepTables::ensure_adapters(const ModelBatch& batch, CudaAdapters& adapters) {
  const auto slots = static_cast<size_t>(batch.slots);
  for (size_t slot = 0; slot < slots; ++slot) {
    pairs_.clear();
    for (size_t module = 0; module < shape_.ranks.size(); ++module) {
      const LoraSource& source = batch.sources[module * slots + slot];
      if (source.kind.load(std::memory_order_acquire) != LoraSourceKind::kResident) continue;
      TRY(check(*source.pair));
      pairs_.push_back(source.pair);
    }
    TRY(adapters.ensure(pairs_, version_of(batch, slot)));
  }
  return {};
}

// Whether the table is what this step wants, as it lies on the device.
bool StepTables::is_filled_from(const ModelBatch& batch, const CudaAdapters& adapters) const {
  if (filled_.versions.empty() || filled_.slots != shape_.slots || filled_.generation != adapters.generation() ||
      !std::equal(filled_.versions.begin(), filled_.versions.end(), batch.versions.begin(), batch.versions.end())) {
    return false;
  }
  for (size_t i = 0; i < filled_.pairs.size(); ++i) {
    const LoraSource& source = batch.sources[i];
    const LoraSourceKind kind = source.kind.load(std::memory_order_acquire);
    const bool same = kind == LoraSourceKind::kNone
                          ? filled_.pairs[i] == nullptr
                          : kind == LoraSourceKind::kResident && source.pair == filled_.pairs[i];
    if (!same) return false;
  }
  return true;
}

// The table and the ranks. It is made and copied where something is another than in
// the step before, or may be: a host delta is the step's own, and what has no version
// cannot be known.
Status StepTables::put_sources(const ModelBatch& batch, CudaAdapters& adapters, CudaStream& stream) {
  if (is_filled_from(batch, adapters)) {
    adapters.use(filled_.slabs);
    shape_.ranks = filled_.ranks;
    return {};
  }
  filled_.versions.clear();
  filled_.pairs.clear();
  TRY(ensure_adapters(batch, adapters));
  const auto slots = static_cast<size_t>(shape_.slots), own_slots = static_cast<size_t>(batch.slots);
  auto* const table = reinterpret_cast<cuda::DeviceLora*>(host_.data());
  const size_t count = shape_.ranks.size() * slots;
  std::fill_n(table, count, cuda::DeviceLora{});
  bool stays = std::none_of(batch.versions.begin(), batch.versions.end(),
                            [](AdapterVersionId version) { return version == AdapterVersionId(); });
  for (size_t module = 0; module < shape_.ranks.size(); ++module) {
    for (size_t slot = 0; slot < own_slots; ++slot) {
      const ResolvedLora from = resolve_lora(batch.sources[module * own_slots + slot]);
      TRY_ASSIGN(table[module * slots + slot], source(batch, from, module, slot, adapters));
      stays = stays && from.delta == nullptr;
      filled_.pairs.push_back(from.pair);
    }
  }
  TRY(copy_to_device(device_.data(), host_.data(), static_cast<int64_t>(count * sizeof(cuda::DeviceLora)), stream));
  ++sources_made_;
  if (!stays) return {};
  filled_.versions.assign(batch.versions.begin(), batch.versions.end());
  filled_.slots = shape_.slots;
  filled_.ranks = shape_.ranks;
  filled_.generation = adapters.generation();
  adapters.used(filled_.slabs);
  return {};
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/step_tables.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>

#include "base/limits.h"
#include "base/units.h"
#include "model/cuda/cuda_kv.h"
#include "model/layer_program.h"
#include "ops/lora_source.h"

namespace loralei {
namespace {

constexpr int64_t kAlign = 16;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

size_t module_count(const ModelConfig& config) {
  return static_cast<size_t>(config.layers) * static_cast<size_t>(kLayerModules) + 2;
}

Module module_kind(const ModelConfig& config, size_t module) {
  const size_t layers = static_cast<size_t>(config.layers) * static_cast<size_t>(kLayerModules);
  if (module < layers) return static_cast<Module>(module % kLayerModules);
  return module == layers ? Module::kLmHead : Module::kEmbed;
}

cuda::LoraPlan::Limits plan_limits(const ModelLimits& limits) {
  return {.rows = std::max(limits.rows_max, limits.logits_rows_max),
          .segments = limits.segments_max,
          .entries = StepTables::entries_max(limits)};
}

template <typename T>
int64_t room(int64_t count) {
  return aligned(count * static_cast<int64_t>(sizeof(T)));
}

template <typename T>
std::span<const T> used_part(std::span<const T> items) {
  size_t count = 0;
  while (count < items.size() && items[count].row_count > 0) ++count;
  return items.first(count);
}

AdapterVersionId version_of(const ModelBatch& batch, size_t slot) {
  return batch.versions.empty() ? AdapterVersionId() : batch.versions[slot];
}

}  // namespace

int32_t StepTables::entries_max(const ModelLimits& limits) {
  return std::max(limits.rows_max, limits.logits_rows_max) * kMaxAdaptersPerRequest;
}

int64_t StepTables::bytes(const ModelConfig& config, const Options& options) {
  const cuda::LoraPlan::Limits plan = plan_limits(options.limits);
  const int64_t rows = options.limits.rows_max;
  const int64_t lora = room<cuda::DeviceLoraSegment>(plan.segments) + room<cuda::DeviceLoraPart>(plan.entries) +
                       room<cuda::DeviceLoraRun>(plan.rows) + room<int32_t>(plan.entries);
  return 4 * room<int32_t>(rows) + room<int32_t>(options.limits.logits_rows_max) +
         room<int32_t>(options.table_blocks_max) + room<cuda::AttentionTile>(rows) + 2 * lora +
         room<cuda::DeviceLora>(static_cast<int64_t>(module_count(config)) * options.slots_max) +
         options.host_delta_bytes_max;
}

StepTables::StepTables(const ModelConfig& config, const Options& options)
    : config_(&config), options_(options), plan_(plan_limits(options.limits)), head_plan_(plan_limits(options.limits)) {
  runs_.reserve(static_cast<size_t>(options.limits.rows_max));
  tiles_.reserve(static_cast<size_t>(options.limits.rows_max));
  head_segments_.reserve(static_cast<size_t>(options.limits.segments_max));
  ranks_.resize(module_count(config));
  pairs_.reserve(module_count(config));
}

Result<StepTables> StepTables::create(const ModelConfig& config, const Options& options) {
  StepTables tables(config, options);
  TRY_ASSIGN(tables.host_, PinnedBuffer::allocate(bytes(config, options)));
  TRY_ASSIGN(tables.device_, allocate_on_device(bytes(config, options), "A step's tables",
                                                "give the model fewer rows a step or less context."));
  return tables;
}

template <typename T>
Status StepTables::take(size_t count, T** host, const T** device) {
  const int64_t bytes = aligned(static_cast<int64_t>(count * sizeof(T)));
  if (bytes > host_.size_bytes() - used_) {
    return Error{ErrorCode::kOverloaded, "A step's tables need more than the " + format_bytes(host_.size_bytes()) +
                                             " set aside for them: use fewer adapters or sequences at a time."};
  }
  *host = reinterpret_cast<T*>(host_.data() + used_);
  *device = reinterpret_cast<const T*>(device_.data() + used_);
  used_ += bytes;
  return {};
}

template <typename T>
Status StepTables::put(std::span<const T> values, const T** device) {
  T* host = nullptr;
  TRY(take(values.size(), &host, device));
  if (!values.empty()) std::memcpy(host, values.data(), values.size_bytes());
  return {};
}

// Tokens, positions and, for every row, where its block table begins.
Status StepTables::put_rows(const ModelBatch& batch, int32_t blocks, StepView& view) {
  for (const TokenId token : batch.tokens) CHECK(token >= 0 && token < config_->vocab);
  TRY(put(batch.tokens, &view.tokens));
  TRY(put(batch.positions, &view.rows.positions));
  TRY(put(batch.hidden_rows, &view.hidden_from));
  TRY(put(batch.logits_rows, &view.logits_from));
  view.rows.rows = static_cast<int32_t>(batch.tokens.size());

  int32_t* tables = nullptr;
  TRY(take(batch.tokens.size(), &tables, &view.rows.tables));
  int64_t entries = 0;
  const auto blocks_of = [](const RowGroup& group) {
    return (int64_t{group.position} + group.row_count + kKvBlockTokens - 1) / kKvBlockTokens;
  };
  for (const RowGroup& group : batch.groups) entries += blocks_of(group);
  if (entries > options_.table_blocks_max) {
    return Error{ErrorCode::kOverloaded, "The sequences of a step have " + std::to_string(entries) +
                                             " KV blocks together and the model was made for " +
                                             std::to_string(options_.table_blocks_max) +
                                             ": give it a larger max-model-len, or run fewer sequences at a time."};
  }
  int32_t* at = nullptr;
  TRY(take(static_cast<size_t>(entries), &at, &view.rows.blocks));
  int32_t next = 0;
  for (const RowGroup& group : batch.groups) {
    std::fill_n(tables + group.row_begin, group.row_count, next);
    for (int64_t i = 0; i < blocks_of(group); ++i) {
      CHECK(group.blocks[i] >= 0 && group.blocks[i] < blocks);
      at[next++] = group.blocks[i];
    }
  }
  return {};
}

// Long runs of a sequence in tiles; the others, side by side, row by row.
Status StepTables::put_attention(const ModelBatch& batch, StepView& view) {
  runs_.clear();
  tiles_.clear();
  for (const RowGroup& group : batch.groups) {
    if (options_.tiled_attention && group.row_count >= kTiledAttentionRows) {
      for (int32_t row = 0; row < group.row_count; row += cuda::kAttentionTileRows) {
        tiles_.push_back({group.row_begin + row, std::min(cuda::kAttentionTileRows, group.row_count - row)});
      }
      continue;
    }
    const int32_t end = group.position + group.row_count;
    if (!runs_.empty() && runs_.back().row_begin + runs_.back().row_count == group.row_begin) {
      runs_.back().row_count += group.row_count;
      runs_.back().positions_max = std::max(runs_.back().positions_max, end);
    } else {
      runs_.push_back({group.row_begin, group.row_count, end});
    }
  }
  view.runs = runs_;
  view.tile_count = static_cast<int32_t>(tiles_.size());
  return put(std::span<const cuda::AttentionTile>(tiles_), &view.tiles);
}

Status StepTables::put_lora(std::span<const LoraSegment> segments, int32_t rows, cuda::LoraPlan& plan, LoraUse& use) {
  if (segments.empty()) return {};
  if (!plan.fill(segments, rows)) {
    return Error{ErrorCode::kOverloaded,
                 "The rows of a step use more adapters together than the model was made for (" +
                     std::to_string(entries_max(options_.limits)) + " pairs of row and adapter, " +
                     std::to_string(options_.limits.segments_max) + " segments): use fewer adapters at a time."};
  }
  for (const LoraSegment& segment : segments) use.entries += segment.row_count;
  const auto parts = used_part(plan.parts());
  const auto runs = used_part(plan.runs());
  use.step.part_count = static_cast<int32_t>(parts.size());
  use.step.run_count = static_cast<int32_t>(runs.size());
  TRY(put(plan.segments().first(segments.size()), &use.step.segments));
  TRY(put(parts, &use.step.parts));
  TRY(put(runs, &use.step.runs));
  return put(plan.order().first(static_cast<size_t>(use.entries)), &use.step.order);
}

// The segments of the rows that want logits, by their place among them.
void StepTables::gather_segments(const ModelBatch& batch) {
  const std::span<const int32_t> rows = batch.logits_rows;
  head_segments_.clear();
  for (LoraSegment segment : batch.segments) {
    const auto first = std::lower_bound(rows.begin(), rows.end(), segment.row_begin);
    const auto last = std::lower_bound(first, rows.end(), segment.row_begin + segment.row_count);
    segment.row_begin = static_cast<int32_t>(first - rows.begin());
    segment.row_count = static_cast<int32_t>(last - first);
    if (segment.row_count > 0) head_segments_.push_back(segment);
  }
}

Result<cuda::DeviceLora> StepTables::put_delta(const ModelBatch& batch, size_t module, size_t slot,
                                               const float* delta) {
  const Module kind = module_kind(*config_, module);
  const auto out = static_cast<size_t>(module_out(*config_, kind));
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

Status StepTables::check(const LoraPair& pair, size_t module) const {
  if (pair.rank > options_.limits.rank_max) {
    return unsupported("An adapter has rank " + std::to_string(pair.rank) + " and the model was made for ranks up to " +
                       std::to_string(options_.limits.rank_max) + ": start it with a higher largest rank.");
  }
  if (pair.out > module_out(*config_, module_kind(*config_, module))) {
    return unsupported(
        "An adapter has a larger vocabulary than the model, which is not supported on a GPU yet: run it on the CPU.");
  }
  return {};
}

Result<cuda::DeviceLora> StepTables::source(const ModelBatch& batch, size_t module, size_t slot, CudaAdapters& adapters,
                                            CudaStream& stream) {
  const ResolvedLora from = resolve_lora(batch.sources[module * static_cast<size_t>(batch.slots) + slot]);
  if (from.delta != nullptr) {
    ranks_[module] = std::max(ranks_[module], 1);
    return put_delta(batch, module, slot, from.delta);
  }
  if (from.pair == nullptr) return cuda::DeviceLora{};
  const AdapterVersionId version = version_of(batch, slot);
  const CudaAdapters::Entry* entry = adapters.find(*from.pair, version);
  if (entry == nullptr) {  // became resident since its column was looked through
    const LoraPair* const late[] = {from.pair};
    TRY(check(*from.pair, module));
    TRY(adapters.ensure(late, stream, version));
    entry = adapters.find(*from.pair, version);
  }
  ranks_[module] = std::max(ranks_[module], std::max(entry->lora.rank, 1));
  return entry->lora;
}

Status StepTables::put_sources(const ModelBatch& batch, CudaAdapters& adapters, CudaStream& stream, StepView& view) {
  const auto slots = static_cast<size_t>(batch.slots);
  if (batch.slots > options_.slots_max) {
    return Error{ErrorCode::kOverloaded, "A step uses " + std::to_string(batch.slots) +
                                             " adapters and the model was made for " +
                                             std::to_string(options_.slots_max) + ": use fewer at a time."};
  }
  for (size_t slot = 0; slot < slots; ++slot) {
    pairs_.clear();
    for (size_t module = 0; module < module_count(*config_); ++module) {
      const LoraSource& source = batch.sources[module * slots + slot];
      if (source.kind.load(std::memory_order_acquire) != LoraSourceKind::kResident) continue;
      TRY(check(*source.pair, module));
      pairs_.push_back(source.pair);
    }
    TRY(adapters.ensure(pairs_, stream, version_of(batch, slot)));
  }
  cuda::DeviceLora* table = nullptr;
  TRY(take(module_count(*config_) * slots, &table, &view.sources));
  std::fill(ranks_.begin(), ranks_.end(), -1);
  for (size_t module = 0; module < module_count(*config_); ++module) {
    for (size_t slot = 0; slot < slots; ++slot) {
      TRY_ASSIGN(table[module * slots + slot], source(batch, module, slot, adapters, stream));
    }
  }
  view.slots = batch.slots;
  view.ranks = ranks_;
  return {};
}

Result<StepView> StepTables::fill(const ModelBatch& batch, int32_t blocks, CudaAdapters& adapters, CudaStream& stream) {
  used_ = 0;
  adapters.begin_step();
  StepView view;
  TRY(put_rows(batch, blocks, view));
  TRY(put_attention(batch, view));
  if (!batch.segments.empty()) {
    gather_segments(batch);
    TRY(put_lora(batch.segments, view.rows.rows, plan_, view.lora));
    TRY(put_lora(head_segments_, static_cast<int32_t>(batch.logits_rows.size()), head_plan_, view.head_lora));
    TRY(put_sources(batch, adapters, stream, view));
  }
  TRY(copy_to_device(device_.data(), host_.data(), used_, stream));
  return view;
}

}  // namespace loralei

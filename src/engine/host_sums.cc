// SPDX-License-Identifier: Apache-2.0
#include "engine/host_sums.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "model/layer_program.h"

namespace loralei {
namespace {

constexpr int32_t kRowsHere = LayerAssist::kRowsMost;  // at a time

OpLimits limits_of(const ModelConfig& config, int32_t rank_max, int threads) {
  OpLimits limits;
  limits.rows_max = kRowsHere;
  for (int index = 0; index < kLayerModules; ++index)
    limits.in_max = std::max(limits.in_max, module_in(config, 0, static_cast<Module>(index)));
  limits.heads = config.heads;
  limits.kv_heads = config.kv_heads;
  limits.head_dim = config.head_dim;
  limits.rank_max = rank_max;
  limits.segments_max = 1;
  limits.threads = threads;
  return limits;
}

}  // namespace

Result<std::unique_ptr<HostSums>> HostSums::create(LayerAssist& assist, const ModelConfig& config, int32_t rank_max,
                                                   const OpTable& ops, ThreadPool& pool, Ledger& ledger) {
  std::unique_ptr<HostSums> made(new HostSums(assist, ops));
  const int64_t bytes = ops.scratch_bytes(limits_of(config, rank_max, pool.threads()));
  auto grant = ledger.try_grant(MemoryUse::kScratch, bytes);
  if (!grant) {
    return too_large("Low-rank products on the cores, beside helpers, need " + format_bytes(bytes) +
                     " and do not fit the memory budget; use --assist-helpers 0 or raise --memory-budget.");
  }
  made->grant_ = std::move(*grant);
  TRY_ASSIGN(made->scratch_, HostBuffer::allocate(bytes));
  made->context_.pool = &pool;
  made->context_.scratch = {made->scratch_.data(), static_cast<size_t>(bytes)};
  return made;
}

void HostSums::add(std::span<const LayerSumsPart> parts) {
  tickets_.clear();
  for (const LayerSumsPart& part : parts)
    tickets_.push_back(assist_.publish(part.version, part.input, part.input.segments.front()));
  for (size_t i = 0; i < parts.size(); ++i) {
    const LayerSumsPart& part = parts[i];
    const bool helped =
        tickets_[i].ok() && assist_
                                .collect(*tickets_[i], part.version, part.input, part.input.segments.front(),
                                         part.targets, context_, LayerAssist::kLateNs)
                                .ok();
    if (!helped) add_here(part);
  }
  tickets_.clear();
}

void HostSums::add_here(const LayerSumsPart& part) {
  ++parts_here_;
  const Adapter& adapter = *known_.at(part.version);
  const LayerInput& input = part.input;
  sources_.clear();
  for (const Module module : input.modules) sources_.push_back({&adapter.pair(input.layer, module)});
  const int32_t rows = input.segments.front().row_count;
  for (int32_t begin = 0; begin < rows; begin += kRowsHere) {
    const LoraSegment segment{0, std::min(kRowsHere, rows - begin), 0, input.segments.front().scale};
    targets_.clear();
    for (size_t i = 0; i < part.targets.size(); ++i) {
      LoraTarget target = part.targets[i];
      target.y += begin * target.y_stride;
      target.sources = &sources_[i];
      targets_.push_back(target);
    }
    LoraArgs args;
    args.x = input.x + begin * input.x_stride;
    args.x_stride = input.x_stride;
    args.in = input.in;
    args.segments = {&segment, 1};
    args.targets = targets_;
    ops_.lora(context_, args);
  }
}

}  // namespace loralei

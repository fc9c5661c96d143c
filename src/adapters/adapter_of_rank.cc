// SPDX-License-Identifier: Apache-2.0
#include "adapters/adapter_of_rank.h"

#include <string>

#include "ops/lora_factors.h"

namespace loralei {
namespace {

// Where `index` in Adapter::pairs stands; those behind the layers have no part.
Cut cut_of(const Adapter& adapter, size_t index, Module& module) {
  if (index + 2 >= adapter.pairs.size()) return Cut::kNone;
  module = static_cast<Module>(index % kLayerModules);
  return module == Module::kO || module == Module::kDown ? Cut::kCols : Cut::kRows;
}

}  // namespace

Status check_adapter_parts(const Adapter& adapter, const ModelConfig& config, int size) {
  Module module = Module::kQ;
  for (size_t index = 0; index < adapter.pairs.size() && size > 1; ++index) {
    const LoraPair& pair = adapter.pairs[index];
    const Cut cut = cut_of(adapter, index, module);
    if (cut == Cut::kNone || pair.rank == 0 || pair.a_scale == nullptr) continue;
    const int32_t width = (cut == Cut::kRows ? pair.out : pair.in) / size;
    if (width % kLoraQuantGroup == 0) continue;
    return unsupported("With --tensor-parallel " + std::to_string(size) + " a rank would have " +
                       std::to_string(width) + " numbers of " + kLayerMatrices[static_cast<size_t>(module)] +
                       ", and int8 factors are cut in groups of " + std::to_string(kLoraQuantGroup) +
                       "; leave out --adapter-quant int8.");
  }
  return {};
}

LoraPair pair_of_rank(const LoraPair& pair, Module module, const Shard& shard) {
  if (shard.whole() || module == Module::kLmHead || module == Module::kEmbed) return pair;
  if (pair.rank == 0 && pair.bias_delta == nullptr) return pair;
  if (module != Module::kO && module != Module::kDown) {
    const ShardPart part = even_part(shard, pair.out);
    return outputs_of(pair, static_cast<int32_t>(part.begin), static_cast<int32_t>(part.count));
  }
  if (pair.rank > 0) {
    const ShardPart part = even_part(shard, pair.in);
    return inputs_of(pair, static_cast<int32_t>(part.begin), static_cast<int32_t>(part.count));
  }
  LoraPair bias = pair;
  if (shard.rank > 0) bias.bias_delta = nullptr;
  return bias;
}

Adapter adapter_of_rank(const Adapter& adapter, const Shard& shard) {
  Adapter part = adapter;
  for (size_t index = 0; index < part.pairs.size(); ++index) {
    Module module = Module::kEmbed;
    cut_of(adapter, index, module);
    part.pairs[index] = pair_of_rank(adapter.pairs[index], module, shard);
  }
  return part;
}

}  // namespace loralei

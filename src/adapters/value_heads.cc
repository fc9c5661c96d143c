// SPDX-License-Identifier: Apache-2.0
#include "adapters/value_heads.h"

namespace loralei {
namespace {

// `before` numbers that stay, then heads of so many each.
std::vector<int32_t> order_of(const LinearConfig& linear, int before, int width, HeadOrder order) {
  std::vector<int32_t> places;
  if (linear.v_heads == linear.k_heads) return places;
  for (int32_t i = 0; i < before; ++i) places.push_back(i);
  const int each = linear.v_heads / linear.k_heads;
  for (int head = 0; head < linear.v_heads; ++head) {
    const int place = order == HeadOrder::kToTiled ? head % each * linear.k_heads + head / each
                                                   : head % linear.k_heads * each + head / linear.k_heads;
    for (int i = 0; i < width; ++i) places.push_back(before + place * width + i);
  }
  return places;
}

}  // namespace

std::vector<int32_t> value_rows(const ModelConfig& config, int layer, Module module, HeadOrder order) {
  const LinearConfig& linear = config.linear;
  if (layer < 0 || !is_linear(config, layer)) return {};
  switch (module) {
    case Module::kQ:
      return order_of(linear, 2 * linear.key_width(), linear.value_dim, order);
    case Module::kK:
      return order_of(linear, 0, linear.value_dim, order);
    case Module::kV:
    case Module::kDecay:
      return order_of(linear, 0, 1, order);
    default:
      return {};
  }
}

std::vector<int32_t> value_cols(const ModelConfig& config, int layer, Module module, HeadOrder order) {
  if (layer < 0 || !is_linear(config, layer) || module != Module::kO) return {};
  return order_of(config.linear, 0, config.linear.value_dim, order);
}

std::vector<int32_t> rows_of_tiled(const ModelConfig& config, int layer, Module module) {
  return value_rows(config, layer, module, HeadOrder::kFromTiled);
}

std::vector<int32_t> cols_of_tiled(const ModelConfig& config, int layer, Module module) {
  return value_cols(config, layer, module, HeadOrder::kFromTiled);
}

}  // namespace loralei

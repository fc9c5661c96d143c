// SPDX-License-Identifier: Apache-2.0
#include "assist/assist_shape.h"

#include <string>

#include "base/limits.h"

namespace loralei {
namespace {

constexpr int32_t kWidthMax = 1 << 22;

bool is_in(int32_t value, int32_t most) { return value >= 1 && value <= most; }

}  // namespace

Status check_assist_shape(const AssistShape& shape) {
  if (!is_in(shape.layers, kMaxLayers) || !is_in(shape.rank_max, kMaxLoraRank))
    return invalid_argument("helpers are for 1 to " + std::to_string(kMaxLayers) + " layers and ranks up to " +
                            std::to_string(kMaxLoraRank) + ", not for " + std::to_string(shape.layers) +
                            " layers and rank " + std::to_string(shape.rank_max));
  for (size_t module = 0; module < kLayerModules; ++module) {
    if (!is_assist_mask(uint32_t{1} << module)) continue;
    if (!is_in(shape.ins[module], kWidthMax) || !is_in(shape.outs[module], kWidthMax))
      return invalid_argument("a module of " + std::to_string(shape.ins[module]) + " inputs and " +
                              std::to_string(shape.outs[module]) + " outputs is none that helpers can compute");
    for (size_t other = 0; other < module; ++other) {
      const uint32_t both = uint32_t{1} << module | uint32_t{1} << other;
      if (is_assist_mask(both) && shape.ins[module] != shape.ins[other])
        return invalid_argument("modules that read one layer input have " + std::to_string(shape.ins[module]) +
                                " and " + std::to_string(shape.ins[other]) + " inputs");
    }
  }
  return {};
}

}  // namespace loralei

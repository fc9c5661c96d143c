// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_windows.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "formats/family.h"

namespace loralei {

Status read_gguf_windows(const GgufFile& file, const GgufWindows& otherwise, ModelConfig& config) {
  const std::string window_key = gguf_key(config, "attention.sliding_window");
  const std::string pattern_key = gguf_key(config, "attention.sliding_window_pattern");
  const auto layers = static_cast<size_t>(config.layers);
  TRY_ASSIGN(const auto stated, file.integer(window_key, 0, kMaxPosition));
  const auto window = static_cast<int32_t>(stated.value_or(otherwise.window));
  config.sliding.assign(layers, 0);
  if (window == 0) return {};
  const GgufValue* const pattern = file.find(pattern_key);
  if (pattern != nullptr && (pattern->type == GgufType::kBoolArray || pattern->type == GgufType::kIntArray)) {
    if (pattern->numbers.size() != layers) {
      return corrupt(file.path + ": " + pattern_key + " must have one entry for each of the " +
                     std::to_string(config.layers) + " layers");
    }
    for (size_t layer = 0; layer < layers; ++layer) config.sliding[layer] = pattern->numbers[layer] != 0 ? window : 0;
    return {};
  }
  TRY_ASSIGN(const auto period, file.integer(pattern_key, 1, kMaxLayers));
  const int64_t every = period.value_or(otherwise.period);
  for (size_t layer = 0; layer < layers; ++layer)
    config.sliding[layer] = (static_cast<int64_t>(layer) + 1) % every != 0 ? window : 0;
  return {};
}

Status use_sliding_rope(ModelConfig& config, LayerRope rope, const std::string& path) {
  if (!(rope.theta > 0)) return corrupt(path + ": the base of the rope of layers with a window must be above 0");
  const bool any = std::any_of(config.sliding.begin(), config.sliding.end(), [](int32_t window) { return window > 0; });
  if (any && !(rope == LayerRope{config.rope_theta, config.rope_scaling})) config.sliding_rope = std::move(rope);
  return {};
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "formats/model_config.h"

#include <cmath>

#include <algorithm>

#include "base/limits.h"

namespace loralei {

int64_t positions_reached(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  switch (scaling.kind) {
    case RopeScalingKind::kNone:
    case RopeScalingKind::kLlama3:  // max_position counts its factor already
      return config.max_position;
    case RopeScalingKind::kDynamic:
      return std::max(config.max_position, kMaxModelLen);
    case RopeScalingKind::kLinear:
    case RopeScalingKind::kYarn: {
      const int64_t trained = scaling.original_max_position > 0 ? scaling.original_max_position : config.max_position;
      const double stretched = static_cast<double>(trained) * scaling.factor;
      return std::max(config.max_position, static_cast<int64_t>(std::min(stretched, double{kMaxModelLen})));
    }
  }
  return config.max_position;
}

double attention_scale_of(const ModelConfig& config) {
  return config.attention_scale > 0 ? config.attention_scale : 1.0 / std::sqrt(static_cast<double>(config.head_dim));
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// What a sequence keeps of layers of gated linear attention: one state of f32 numbers,
// whose size does not grow with the text.
//
//   for each linear layer, in order:
//     [kernel - 1, channels]          the last rows before the convolution, oldest first
//     [v_heads, key_dim, value_dim]   of the delta rule
//
// each at a multiple of 16 floats. A sequence begins with all zeros.
//
// Pure functions, any thread; no failure.
#pragma once

#include <cstdint>

#include "formats/model_config.h"

namespace loralei {

// Floats that a sequence's state takes; 0: the model keeps none.
int64_t state_floats(const ModelConfig& config);

// Where a linear layer's parts begin.
struct LinearStateAt {
  int64_t conv = 0, delta = 0;
};
LinearStateAt linear_state_at(const ModelConfig& config, int layer);

}  // namespace loralei

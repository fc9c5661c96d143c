// SPDX-License-Identifier: Apache-2.0
// What a sequence keeps of layers of gated linear attention: one state of f32 numbers,
// whose size does not grow with the text. A sequence begins with all zeros.
//
// Pure functions, any thread; no failure.
#pragma once

#include <cstdint>

#include "formats/model_config.h"

namespace loralei {

// Floats that a sequence's state takes; 0: the model keeps none.
int64_t state_floats(const ModelConfig& config);

}  // namespace loralei

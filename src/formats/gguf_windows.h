// SPDX-License-Identifier: Apache-2.0
// Layers with windows in GGUF files: "attention.sliding_window" and, for which layers,
// "attention.sliding_window_pattern" (a period or a list).
//
// Pure functions, any thread. Failure: corrupt, with the key.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "formats/gguf.h"
#include "formats/model_config.h"

namespace loralei {

// What holds where the file says nothing; a window of 0 is none.
struct GgufWindows {
  int64_t window = 0;
  int64_t period = 1;  // of so many layers the last has no window
};
// Fills config.sliding.
Status read_gguf_windows(const GgufFile& file, const GgufWindows& otherwise, ModelConfig& config);

// Of layers with a window, unless they are turned like the others or there are none.
Status use_sliding_rope(ModelConfig& config, LayerRope rope, const std::string& path);

}  // namespace loralei

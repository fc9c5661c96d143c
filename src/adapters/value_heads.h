// SPDX-License-Identifier: Apache-2.0
// The two orders in which files have the value heads of gated linear attention: those of
// a key head one behind the other, as Hugging Face has them, or the first of every key
// head, then the second (tiled, as llama.cpp's converter writes them).
//
// Pure functions, any thread. What they answer says where each row, or column, goes; it
// is empty where all stay.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/model_config.h"
#include "ops/args.h"

namespace loralei {

enum class HeadOrder : uint8_t { kToTiled, kFromTiled };

// Of the outputs of a layer's module.
std::vector<int32_t> value_rows(const ModelConfig& config, int layer, Module module, HeadOrder order);
// Of its inputs.
std::vector<int32_t> value_cols(const ModelConfig& config, int layer, Module module, HeadOrder order);

// For files with tiled heads, on a base that has them otherwise.
std::vector<int32_t> rows_of_tiled(const ModelConfig& config, int layer, Module module);
std::vector<int32_t> cols_of_tiled(const ModelConfig& config, int layer, Module module);

}  // namespace loralei

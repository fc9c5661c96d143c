// SPDX-License-Identifier: Apache-2.0
// QuantConfig: what the "quantization_config" of a config.json says of how matrices are
// stored (GPTQ, AWQ, FP8, compressed-tensors, MXFP4).
//
// Pure functions, any thread.
// Only weights matter here: what a config says about rounding inputs, outputs or the KV
// cache is not done, which becomes a note. Which matrices are quantised the files
// themselves say, so lists of exceptions are not read.
// Failure: corrupt (wrong type or range), unsupported (what the stored numbers mean is
// not known, or they could not be held as they are).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/json_util.h"

namespace loralei {

enum class QuantMethod : uint8_t { kNone, kGptq, kAwq, kFp8, kCompressed, kMxfp4 };

struct QuantConfig {
  QuantMethod method = QuantMethod::kNone;
  std::string name;                        // as the config has it, "gptq"
  int bits = 0;                            // GPTQ: 4 or 8; AWQ: 4
  int64_t group = 0;                       // GPTQ, AWQ: inputs that share a scale; 0: all
  bool symmetric = false;                  // GPTQ: zero points are the middle
  bool own_order = false;                  // GPTQ: groups may lie in an order of their own (act-order)
  int zero_offset = 0;                     // GPTQ: 1 where zero points are stored less one
  int64_t block_rows = 0, block_cols = 0;  // FP8: share a scale; 0: all, or those of a row
};

// Of the root of a config.json; `path` is for messages.
Result<QuantConfig> parse_quant_config(const Json& root, const std::string& path, std::vector<std::string>& notes);

// "gptq, 4 bits in groups of 128", for people.
std::string quant_text(const QuantConfig& quant);

// 0, or a multiple of 32 above it; whether groups of so many inputs can be held.
bool group_fits(int64_t group);

}  // namespace loralei

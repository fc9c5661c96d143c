// SPDX-License-Identifier: Apache-2.0
// What families with gated linear attention say of it, in config.json and in GGUF files
// (functions for the entries of families.cc), and what of their files is not computed.
//
// Pure functions, any thread. Failure: numbers that cannot be, and what is not computed
// here, are refused with a sentence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/gguf.h"
#include "formats/json_util.h"
#include "formats/model_config.h"
#include "formats/safetensors.h"
#include "formats/tensor_index.h"

namespace loralei {

Status qwen3_5_config(const Json& root, ModelConfig& config, const std::string& path);

// Files of llama.cpp have value heads in another order (LinearConfig::tiled), and count
// layers that guess tokens ahead among the others.
Status qwen3_5_gguf(const GgufFile& file, ModelConfig& config);
// A tensor of such a layer; of files without them none is.
bool is_gguf_draft(const GgufFile& file, const ModelConfig& config, std::string_view name);
// What a tensor of a layer of linear attention is called below formats/; empty: it is
// none. "blk.3.ssm_out.weight" -> "model.layers.3.linear_attn.out_proj.weight"
std::string linear_name(std::string_view gguf_name, const ModelConfig& config);

// The invariants of LinearConfig; nothing where the model has no such layers.
Status check_linear(const ModelConfig& config, const std::string& path);

// Layers that guess tokens ahead ("mtp.") stand beside the model and are not computed:
// drops their tensors, with a note.
void drop_draft_tensors(TensorIndex& index, std::vector<ForeignTensor>& foreign, std::vector<std::string>& notes);

}  // namespace loralei

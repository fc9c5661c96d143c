// SPDX-License-Identifier: Apache-2.0
// Tensors of experts: files keep them one by one or all of a layer in one, and under
// several names; below formats/ every expert has matrices of its own.
//
//   model.layers.3.mlp.gate.weight                   router [experts, hidden]
//   model.layers.3.mlp.experts.7.gate_proj.weight    [width, hidden], up_proj alike
//   model.layers.3.mlp.experts.7.down_proj.weight    [hidden, width]
//   model.layers.3.mlp.shared_expert.gate_proj.weight, and so on
//   model.layers.3.mlp.shared_expert_gate.weight     [1, hidden]
//
// and, where they have biases (ExpertConfig::biased), vectors of all experts of a layer
//
//   model.layers.3.mlp.gate.bias                     [experts]
//   model.layers.3.mlp.experts.gate_proj.bias        [experts * width], up_proj alike
//   model.layers.3.mlp.experts.down_proj.bias        [experts * hidden]
//
// Pure functions, any thread. Failure: a sentence with the tensor's name.
#pragma once

#include <string>

#include "base/result.h"
#include "formats/model_config.h"
#include "formats/tensor_index.h"

namespace loralei {

// Puts Mixtral's names into the form above, and tensors of all experts of a layer
// ("mlp.experts.gate_proj.weight" [experts, width, hidden], "mlp.experts.gate_up_proj"
// [experts, 2 width, hidden], ...) into one tensor for each of them: other offsets of the
// same bytes. A vector "mlp.shared_expert_gate.weight" becomes a matrix of one row.
//
// With ExpertConfig::in_turn, "mlp.router" is "mlp.gate" and "self_attn.sinks" has
// ".weight" behind it; "mlp.experts.gate_up_proj" is [experts, hidden, 2 width], of which
// column 2 i is of gate and 2 i + 1 of up, "mlp.experts.down_proj" [experts, width,
// hidden] (StoredKind::kCrossed); "gate_up_proj_bias" and "down_proj_bias" likewise.
Status split_experts(const ModelConfig& config, TensorIndex& index, const std::string& place);

}  // namespace loralei

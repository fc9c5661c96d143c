// SPDX-License-Identifier: Apache-2.0
// From the tensors of a file to canonical ones: other names of a layer's matrices, and
// matrices that lie behind one another in one tensor, queries, keys and values
// ("self_attn.qkv_proj"), gate and up ("mlp.gate_up_proj").
//
// Pure functions, any thread.
// Invariants: each part is a tensor of its own under its canonical name, at another
// offset of the same bytes, or other rows of the same stored form; nobody below knows
// that they were one. Biases are cut likewise.
// Failure: corrupt, where a name would be there twice, or a fused tensor has not as many
// rows as its parts.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "formats/model_config.h"
#include "formats/model_tensors.h"
#include "formats/tensor_index.h"

namespace loralei {

// `place` is for messages, of both. "mlp.c_fc" is "mlp.up_proj" and "mlp.c_proj" is
// "mlp.down_proj" (StarCoder2).
Status take_canonical_names(TensorIndex& index, const std::string& place);
// Those that hold several, as ExpectedTensor has others.
std::vector<ExpectedTensor> fused_matrices(const ModelConfig& config);
Status split_fused_tensors(const ModelConfig& config, TensorIndex& index, const std::string& place);

}  // namespace loralei

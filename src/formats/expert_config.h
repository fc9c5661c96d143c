// SPDX-License-Identifier: Apache-2.0
// ExpertConfig: what is said of a mixture of experts, a part of ModelConfig.
//
// In a layer with experts a router scores all of them for every row; the row goes through
// those with the highest scores, and through a shared one where there is one. All other
// layers have one MLP (`ffn` of ModelConfig wide), as models without experts have.
//
// A plain value. Invariants after a successful read: 0 < used <= count <= kMaxExperts, or
// count is 0 and nothing else counts; `dense` is empty or has one entry a layer.
#pragma once

#include <cstdint>
#include <vector>

namespace loralei {

inline constexpr int kMaxExperts = 1024;
// Of all layers together: bounds the list of a model's tensors before any is looked at.
inline constexpr int64_t kMaxExpertsOfModel = 1 << 16;

struct ExpertConfig {
  int count = 0;  // of a layer
  int used = 0;   // by a row
  int width = 0;  // inner, of one
  // Weights of the experts that a row uses are divided by their sum: then they are the
  // softmax of the scores of these alone.
  bool normed = false;
  int shared_width = 0;  // inner, of the one that all rows use; 0: there is none
  // [layers] 1: this layer has no experts; empty: all have.
  std::vector<uint8_t> dense;
  bool mixtral_names = false;  // files say block_sparse_moe, w1, w3 and w2
  bool biased = false;         // the router and the matrices of all experts have biases
  // Files of Hugging Face say mlp.router, and hold matrices of all experts with inputs
  // before outputs, those of gate and up in turn (expert_tensors.h).
  bool in_turn = false;
};

}  // namespace loralei

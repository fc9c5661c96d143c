// SPDX-License-Identifier: Apache-2.0
// The tensors a model of a given config must hold: canonical names and shapes, and the
// check of an index against them.
//
// Pure functions, any thread. Names are those of Hugging Face Llama; the same list serves
// safetensors and GGUF files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/model_config.h"
#include "formats/safetensors.h"
#include "formats/tensor_index.h"

namespace loralei {

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// Every tensor of a model with this config; "lm_head.weight" only when the
// head is not tied.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// Checks that the index holds exactly the expected tensors in the expected shapes. Known
// harmless leftovers (rotary_emb.inv_freq; the head of a tied model) are removed from the
// index and become notes. `place` is for messages.
Status check_tensors(const ModelConfig& config, const std::vector<ForeignTensor>& foreign, TensorIndex& index,
                     std::vector<std::string>& notes, const std::string& place);

// A small matrix of which every bit counts: what scores experts, and what says how much a
// state keeps and takes up. It is held as f32, as vectors are.
bool is_held_as_f32(std::string_view name);

// "[2, 3]" for messages.
std::string shape_text(const std::vector<int64_t>& shape);

// Row of a q or k projection in interleaved order that holds row `row` of half split
// order. In each head such files store the pairs that rotate together next to each other:
// file row 2i + j is half split row j * rotary_dim/2 + i (llama.cpp,
// convert_hf_to_gguf.py, LlamaModel.permute; GLM's own files). Rows of a head behind
// rotary_dim are not turned and stay.
constexpr int64_t qk_row(int64_t row, int64_t head_dim, int64_t rotary_dim) {
  const int64_t head = row / head_dim, inside = row % head_dim, half = rotary_dim / 2;
  if (inside >= rotary_dim) return row;
  return head * head_dim + 2 * (inside % half) + inside / half;
}

}  // namespace loralei

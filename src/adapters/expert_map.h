// SPDX-License-Identifier: Apache-2.0
// Modules of a mixture of experts in adapter files, and what is planned of those that
// hold all experts of a layer.
//
// Pure functions, any thread.
//
//   mlp.gate, mlp.shared_expert_gate      a router, a gate: as linear modules; the router
//                                         of gpt-oss is mlp.router
//   mlp.experts.7.up_proj                 one expert's matrix; Mixtral's modules are
//                                         block_sparse_moe.experts.7.w3
//   mlp.experts, mlp.experts.base_layer   PEFT's target_parameters: gate_up_proj and
//                                         down_proj, the former inside where both are
//                                         targeted
//
// Of the last lora_A is [experts * rank, in] and lora_B [out, rank * experts], of which
// expert e has the columns e, e + experts, ... Rows of gate come before those of up, or
// both in turn (ExpertConfig::in_turn).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "adapters/load_plan.h"
#include "adapters/peft_map.h"

namespace loralei {

// `path` inside of a layer that has experts. kUnknown: it is none of these modules.
ModuleRef parse_expert_module(std::string_view path, const ModelConfig& config, int layer);

// All of a model that LoRA can be put on, but for parameters of all experts.
std::vector<ModuleRef> expert_modules(const ModelConfig& config);

// "up_proj", or as modules of Mixtral are called "w3".
const char* expert_matrix_name(const ModelConfig& config, int part);

bool is_of_experts(Site site);
// Of a router, a gate or an expert's matrix.
ModuleShape expert_shape(const ModelConfig& config, const ModuleRef& module);

// A parameter of all experts of a layer as target_parameters names it:
// "model.layers.3.mlp.experts.down_proj"; the router: "model.layers.3.mlp.gate.weight".
std::string expert_parameter(int layer, bool down);
std::string router_parameter(const ModelConfig& config, int layer);

// A pair for gate and up, or down, of all experts of a layer.
struct ExpertStack {
  int layer = 0;
  bool down = false;
  std::string key;  // for messages
};
Status plan_expert_stack(const ModelConfig& config, const ExpertStack& stack, const PairTensors& tensors, int rank,
                         double scaling, const std::string& path, LoadPlan& plan);

// Matrices of all experts of a layer as files of mlx-lm and llama.cpp have them: `count`
// of kExpertMatrices from `first` on, one behind the other in b. A is [experts, rank,
// in], or [experts * rank, in] (older mlx-lm), B [experts, count * out, rank].
struct ExpertMatrices {
  int layer = 0, first = 0, count = 1;
  std::string key;  // for messages
};
// rank_wanted: -1: whatever B says.
Status plan_expert_matrices(const ModelConfig& config, const ExpertMatrices& matrices, const PairTensors& tensors,
                            int rank_wanted, double scaling, const std::string& path, LoadPlan& plan);

}  // namespace loralei

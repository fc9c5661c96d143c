// SPDX-License-Identifier: Apache-2.0
#include "adapters/expert_map.h"

#include <cmath>

#include <charconv>
#include <utility>

#include "base/limits.h"
#include "formats/model_tensors.h"

namespace loralei {
namespace {

constexpr std::string_view kBlock = "mlp.", kMixtralBlock = "block_sparse_moe.";
constexpr const char* kMixtralMatrices[] = {"w1", "w3", "w2"};  // gate, up, down

std::string layer_path(int layer) { return "model.layers." + std::to_string(layer) + "."; }

const char* router_name(const ModelConfig& config) { return config.experts.in_turn ? "router" : "gate"; }

// "7.up_proj"
ModuleRef parse_matrix(std::string_view path, const ModelConfig& config, ModuleRef module) {
  int expert = -1;
  const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), expert);
  const bool padded = path.size() > 1 && path[0] == '0' && path[1] != '.';
  if (error != std::errc() || padded || expert < 0 || expert >= config.experts.count) return {};
  path.remove_prefix(static_cast<size_t>(end - path.data()));
  for (int part = 0; part < kExpertMatrixCount; ++part) {
    if (path != "." + std::string(expert_matrix_name(config, part))) continue;
    module.site = Site::kExpertMatrix;
    module.expert = expert;
    module.expert_part = part;
    module.key += "experts." + std::to_string(expert) + std::string(path);
    return module;
  }
  return {};
}

}  // namespace

const char* expert_matrix_name(const ModelConfig& config, int part) {
  return config.experts.mixtral_names ? kMixtralMatrices[part] : kExpertMatrices[part];
}

bool is_of_experts(Site site) {
  return site == Site::kRouter || site == Site::kSharedGate || site == Site::kExpertMatrix ||
         site == Site::kExpertStack;
}

// Mixtral's block has had two names, of which the older one is that of modules.
ModuleRef parse_expert_module(std::string_view path, const ModelConfig& config, int layer) {
  const bool mixtral = config.experts.mixtral_names;
  bool newer = true;
  if (mixtral && path.starts_with(kMixtralBlock)) {
    path.remove_prefix(kMixtralBlock.size());
    newer = false;
  } else if (path.starts_with(kBlock)) {
    path.remove_prefix(kBlock.size());
  } else {
    return {};
  }
  ModuleRef module{.layer = layer, .key = layer_path(layer) + std::string(mixtral ? kMixtralBlock : kBlock)};
  if (path == router_name(config) || path == "gate") {  // GGUF files have one name
    module.site = Site::kRouter;
    module.key += router_name(config);
    return module;
  }
  if (path == "shared_expert_gate" && config.experts.shared_width > 0) {
    module.site = Site::kSharedGate;
    module.key += path;
    return module;
  }
  constexpr std::string_view kExperts = "experts";
  if (!path.starts_with(kExperts)) return {};
  path.remove_prefix(kExperts.size());
  if (newer && (path.empty() || path == ".base_layer")) {
    module.site = Site::kExpertStack;
    module.key = layer_path(layer) + "mlp.experts" + std::string(path);
    return module;
  }
  if (!path.starts_with('.')) return {};
  path.remove_prefix(1);
  return parse_matrix(path, config, std::move(module));
}

std::vector<ModuleRef> expert_modules(const ModelConfig& config) {
  std::vector<ModuleRef> modules;
  const std::string block(config.experts.mixtral_names ? kMixtralBlock : kBlock);
  for (int layer = 0; layer < config.layers; ++layer) {
    if (!has_experts(config, layer)) continue;
    const auto add = [&](const std::string& path) {
      modules.push_back(parse_expert_module(block + path, config, layer));
    };
    add(router_name(config));
    if (config.experts.shared_width > 0) add("shared_expert_gate");
    for (int expert = 0; expert < config.experts.count; ++expert) {
      for (int part = 0; part < kExpertMatrixCount; ++part)
        add("experts." + std::to_string(expert) + "." + expert_matrix_name(config, part));
    }
  }
  return modules;
}

ModuleShape expert_shape(const ModelConfig& config, const ModuleRef& module) {
  if (module.site == Site::kRouter) return {config.experts.count, config.hidden};
  if (module.site == Site::kSharedGate) return {1, config.hidden};
  const bool down = module.expert_part + 1 == kExpertMatrixCount;
  return down ? ModuleShape{config.hidden, config.experts.width} : ModuleShape{config.experts.width, config.hidden};
}

std::string expert_parameter(int layer, bool down) {
  return layer_path(layer) + "mlp.experts." + (down ? "down_proj" : "gate_up_proj");
}
std::string router_parameter(const ModelConfig& config, int layer) {
  return layer_path(layer) + "mlp." + router_name(config) + ".weight";
}

namespace {

// Whole factors in the places of all experts' pairs; B's columns are picked apart.
Status place_stack(const ModelConfig& config, const ExpertStack& stack, const PairTensors& tensors, PairPlan made,
                   const std::string& path, LoadPlan& plan) {
  const int experts = config.experts.count, halves = stack.down ? 1 : 2;
  const bool in_turn = config.experts.in_turn && !stack.down;
  for (int expert = 0; expert < experts; ++expert) {
    const int64_t a = plan.reserve(made.rank * row_bytes(made.dtype, made.in));
    plan.placements.push_back({.tensor = tensors.a,
                               .row_begin = int64_t{expert} * made.rank,
                               .row_count = made.rank,
                               .cols = made.in,
                               .to = made.dtype,
                               .layer = stack.layer,
                               .offset = a});
    for (int half = 0; half < halves; ++half) {
      ModuleRef matrix{.site = Site::kExpertMatrix, .layer = stack.layer, .key = stack.key};
      matrix.expert = expert;
      matrix.expert_part = stack.down ? 2 : half;
      PairPlan& pair = plan.pair_of(config, matrix);
      if (pair.rank > 0) return corrupt(path + ": holds " + stack.key + " twice, once for single experts");
      pair = made;
      pair.a = a;
      pair.b_t = plan.reserve(made.rank * row_bytes(made.dtype, made.out));
      plan.placements.push_back({.tensor = tensors.b,
                                 .row_begin = in_turn ? half : int64_t{half} * made.out,
                                 .row_count = made.out,
                                 .cols = int64_t{made.rank} * experts,
                                 .transpose = true,
                                 .to = made.dtype,
                                 .layer = stack.layer,
                                 .offset = pair.b_t,
                                 .col_begin = expert,
                                 .col_step = experts,
                                 .row_step = in_turn ? halves : 1});
    }
  }
  return {};
}

}  // namespace

Status plan_expert_stack(const ModelConfig& config, const ExpertStack& stack, const PairTensors& tensors, int rank,
                         double scaling, const std::string& path, LoadPlan& plan) {
  if (tensors.a == nullptr || tensors.b == nullptr)
    return corrupt(path + ": of " + stack.key + " the tensor lora_" + (tensors.a == nullptr ? "A" : "B") +
                   " is missing");
  if (tensors.b_bias != nullptr)
    return unsupported(path + ": " + stack.key + " has a bias of its own, which PEFT does not have for parameters");
  if (!std::isfinite(static_cast<float>(scaling)))
    return invalid_argument(path + ": the scaling of " + stack.key + " is not a finite number");
  const int64_t experts = config.experts.count;
  PairPlan made{.rank = rank, .scaling = static_cast<float>(scaling)};
  made.in = stack.down ? config.experts.width : config.hidden;
  made.out = stack.down ? config.hidden : config.experts.width;
  TRY(check_shape(*tensors.a, {experts * rank, made.in}, path));
  TRY(check_shape(*tensors.b, {made.out * (stack.down ? 1 : 2), experts * rank}, path));
  made.dtype = tensors.a->dtype == tensors.b->dtype && !is_quantised(tensors.a->dtype) ? tensors.a->dtype : DType::kF32;
  TRY(place_stack(config, stack, tensors, made, path, plan));
  ++plan.modules[stack.down ? "experts.down_proj" : "experts.gate_up_proj"];
  return {};
}

namespace {

// B as [experts, count * out, rank]: the rank it has.
Result<int> matrices_rank(const ExpertMatrices& matrices, const PairTensors& tensors, int rank_wanted,
                          const std::string& path) {
  if (tensors.a == nullptr || tensors.b == nullptr)
    return corrupt(path + ": of " + matrices.key + " the tensor lora_" + (tensors.a == nullptr ? "a" : "b") +
                   " is missing");
  const int64_t rank = tensors.b->shape.size() == 3 ? tensors.b->shape.back() : 0;
  if (rank < 1 || rank > kMaxLoraRank) {
    return corrupt(path + ": tensor \"" + tensors.b->name + "\" has shape " + shape_text(tensors.b->shape) +
                   ", but a factor of all experts is [experts, out, rank], with a rank of at most " +
                   std::to_string(kMaxLoraRank));
  }
  if (rank_wanted >= 0 && rank != rank_wanted) {
    return corrupt(path + ": " + matrices.key + " has rank " + std::to_string(rank) + ", but the config says rank " +
                   std::to_string(rank_wanted));
  }
  return static_cast<int>(rank);
}

}  // namespace

Status plan_expert_matrices(const ModelConfig& config, const ExpertMatrices& matrices, const PairTensors& tensors,
                            int rank_wanted, double scaling, const std::string& path, LoadPlan& plan) {
  TRY_ASSIGN(const int rank, matrices_rank(matrices, tensors, rank_wanted, path));
  if (!std::isfinite(static_cast<float>(scaling)))
    return invalid_argument(path + ": the scaling of " + matrices.key + " is not a finite number");
  const int64_t experts = config.experts.count;
  const ModuleShape shape = expert_shape(
      config, {.site = Site::kExpertMatrix, .layer = matrices.layer, .expert = 0, .expert_part = matrices.first});
  PairPlan made{.rank = rank, .in = shape.in, .out = shape.out, .scaling = static_cast<float>(scaling)};
  if (tensors.a->shape.size() == 2) {
    TRY(check_shape(*tensors.a, {experts * rank, shape.in}, path));
  } else {
    TRY(check_shape(*tensors.a, {experts, rank, shape.in}, path));
  }
  TRY(check_shape(*tensors.b, {experts, int64_t{shape.out} * matrices.count, rank}, path));
  made.dtype = tensors.a->dtype == tensors.b->dtype && !is_quantised(tensors.a->dtype) ? tensors.a->dtype : DType::kF32;
  for (int expert = 0; expert < config.experts.count; ++expert) {
    const int64_t a = plan.reserve(rank * row_bytes(made.dtype, made.in));
    plan.placements.push_back({.tensor = tensors.a,
                               .row_begin = int64_t{expert} * rank,
                               .row_count = rank,
                               .cols = made.in,
                               .to = made.dtype,
                               .layer = matrices.layer,
                               .offset = a});
    for (int part = 0; part < matrices.count; ++part) {
      ModuleRef matrix{.site = Site::kExpertMatrix, .layer = matrices.layer, .key = matrices.key};
      matrix.expert = expert;
      matrix.expert_part = matrices.first + part;
      PairPlan& pair = plan.pair_of(config, matrix);
      if (pair.rank > 0) return corrupt(path + ": holds " + matrices.key + " twice, once under another name");
      pair = made;
      pair.a = a;
      pair.b_t = plan.reserve(rank * row_bytes(made.dtype, made.out));
      plan.placements.push_back({.tensor = tensors.b,
                                 .row_begin = (int64_t{expert} * matrices.count + part) * made.out,
                                 .row_count = made.out,
                                 .cols = rank,
                                 .transpose = true,
                                 .to = made.dtype,
                                 .layer = matrices.layer,
                                 .offset = pair.b_t});
    }
  }
  ++plan.modules["experts." + (matrices.count > 1 ? std::string("gate_up_proj") : kExpertMatrices[matrices.first])];
  return {};
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "adapters/load_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "adapters/expert_map.h"
#include "adapters/made_for.h"
#include "adapters/value_heads.h"
#include "base/limits.h"
#include "formats/family.h"
#include "formats/model_tensors.h"
#include "ops/lora_factors.h"

namespace loralei {

namespace {

constexpr int64_t kAlign = 64;

std::string tensor_text(const TensorInfo& tensor) { return "tensor \"" + tensor.name + "\""; }

// The format a pair is kept in: the file's where both factors share a plain
// one, else f32.
DType pair_dtype(const PairTensors& tensors) {
  const bool same = tensors.a->dtype == tensors.b->dtype && !is_quantised(tensors.a->dtype);
  return same ? tensors.a->dtype : DType::kF32;
}

}  // namespace

LoadPlan::LoadPlan(const ModelConfig& config, const AdapterLoadOptions& options)
    : pairs(static_cast<size_t>(config.layers) * kLayerModules + 2),
      vocab(config.vocab),
      layers(config.layers),
      int8(options.int8) {}

int64_t LoadPlan::reserve(int64_t count) {
  const int64_t offset = bytes;
  bytes += (count + kAlign - 1) / kAlign * kAlign;
  return offset;
}

PairPlan& LoadPlan::pair(int layer, Module module) {
  if (module == Module::kLmHead) return pairs[pairs.size() - 2];
  if (module == Module::kEmbed) return pairs[pairs.size() - 1];
  return pairs[static_cast<size_t>(layer) * kLayerModules + static_cast<size_t>(module)];
}

PairPlan& LoadPlan::pair_of(const ModelConfig& config, const ModuleRef& module) {
  const auto layer = static_cast<size_t>(module.layer), all = static_cast<size_t>(config.layers);
  if (module.site != Site::kExpertMatrix) {
    std::vector<PairPlan>& list = module.site == Site::kRouter ? routers : shared_gates;
    list.resize(all);
    return list[layer];
  }
  const auto experts = static_cast<size_t>(config.experts.count), parts = static_cast<size_t>(kExpertMatrixCount);
  expert_matrices.resize(all * experts * parts);
  return expert_matrices[(layer * experts + static_cast<size_t>(module.expert)) * parts +
                         static_cast<size_t>(module.expert_part)];
}

int LoadPlan::rank_max() const {
  int most = 0;
  for (const auto* list : {&pairs, &routers, &shared_gates, &expert_matrices}) {
    for (const PairPlan& pair : *list) most = std::max(most, pair.rank);
  }
  return most;
}

int32_t LoadPlan::layer_of(const ModuleRef& module) const {
  if (module.layer >= 0) return module.layer;
  return module.site == Site::kEmbed ? 0 : layers;
}

void note_made_for(const std::string& base_model, const AdapterBase& base, LoadPlan& plan) {
  if (base_model.empty()) return;
  const std::string made_for = "Made for the base model \"" + base_model + "\"";
  const bool same = std::any_of(base.names.begin(), base.names.end(),
                                [&](const std::string& name) { return same_base(base_model, name); });
  if (!same && !base.names.empty())
    plan.doubts.push_back(made_for + ", by its name another than this one, \"" + base.names.front().substr(0, 300) +
                          "\"; its shapes fit.");
  plan.report.push_back(same || base.names.empty() ? made_for + "." : plan.doubts.back());
}

Status check_shape(const TensorInfo& tensor, const std::vector<int64_t>& shape, const std::string& path) {
  if (tensor.shape == shape) return {};
  return invalid_argument(path + ": " + tensor_text(tensor) + " has shape " + shape_text(tensor.shape) +
                          ", but the base model needs " + shape_text(shape) + " (is this adapter for another base?)");
}

Result<int64_t> plan_whole(const TensorInfo& tensor, const std::vector<int64_t>& shape, DType to, int32_t layer,
                           const std::string& path, LoadPlan& plan) {
  TRY(check_shape(tensor, shape, path));
  const int64_t rows = shape[0], cols = shape.size() > 1 ? shape[1] : 1;
  const int64_t offset = plan.reserve(rows * row_bytes(to, cols));
  plan.placements.push_back(
      {.tensor = &tensor, .row_count = rows, .cols = cols, .to = to, .layer = layer, .offset = offset});
  return offset;
}

Result<bool> plan_norm(const ModelConfig& config, const ModuleRef& module, const TensorInfo& tensor, float plus,
                       const std::string& path, LoadPlan& plan) {
  const bool of_layer = module.site == Site::kLayerNorm;
  if (!of_layer && module.site != Site::kFinalNorm) return false;
  std::vector<int64_t>* const list = of_layer ? &plan.norms[static_cast<size_t>(module.norm)] : nullptr;
  const int64_t size = of_layer ? norm_width(config, module.norm) : config.hidden;
  if (is_quantised(tensor.dtype)) return corrupt(path + ": " + tensor_text(tensor) + " is a norm, and quantised");
  TRY_ASSIGN(const int64_t offset, plan_whole(tensor, {size}, DType::kF32, plan.layer_of(module), path, plan));
  plan.placements.back().plus = plus;
  if (list == nullptr) {
    plan.final_norm = offset;
  } else {
    list->resize(static_cast<size_t>(config.layers), -1);
    (*list)[static_cast<size_t>(module.layer)] = offset;
  }
  ++plan.modules[module_name(module)];
  return true;
}

namespace {

// Both factors present, two-dimensional, of one rank that the config agrees with.
Result<int> check_rank(const ModuleRef& module, const PairTensors& tensors, const PairOptions& options, bool embed,
                       const std::string& path) {
  if (!tensors.a || !tensors.b) {
    const TensorInfo* there = tensors.a ? tensors.a : tensors.b ? tensors.b : tensors.b_bias;
    const std::string missing = std::string(embed ? "lora_embedding_" : "lora_") + (tensors.a ? "B" : "A");
    return corrupt(path + ": " + module.key + " has " + tensor_text(*there) + ", but its " + missing + " is missing");
  }
  for (const TensorInfo* tensor : {tensors.a, tensors.b}) {
    if (tensor->shape.size() != 2)
      return corrupt(path + ": " + tensor_text(*tensor) + " must have two dimensions, not " +
                     shape_text(tensor->shape));
  }
  const int64_t rank = tensors.b->shape[1];
  const int64_t rank_a = tensors.a->shape[options.embed_a_by_token ? 1 : 0];
  if (rank != rank_a) {
    return corrupt(path + ": the factors of " + module.key + " do not fit together: " + tensor_text(*tensors.a) +
                   " is " + shape_text(tensors.a->shape) + " and " + tensor_text(*tensors.b) + " is " +
                   shape_text(tensors.b->shape));
  }
  if (rank < 1 || rank > kMaxLoraRank) {
    return invalid_argument(path + ": " + module.key + " has rank " + std::to_string(rank) + "; ranks from 1 to " +
                            std::to_string(kMaxLoraRank) + " are possible");
  }
  if (options.rank_wanted >= 0 && rank != options.rank_wanted) {
    return invalid_argument(path + ": " + module.key + " has rank " + std::to_string(rank) +
                            " in the file, but the config says rank " + std::to_string(options.rank_wanted) +
                            " (r, rank_pattern)");
  }
  return static_cast<int>(rank);
}

Status plan_embed(const ModelConfig& config, const PairTensors& tensors, const PairOptions& options, int rank,
                  const std::string& path, LoadPlan& plan) {
  const int64_t vocab = options.vocab;
  PairPlan& pair = plan.pair(-1, Module::kEmbed);
  pair.dtype = pair_dtype(tensors);
  const bool by_token = options.embed_a_by_token;
  TRY(check_shape(*tensors.a, by_token ? std::vector<int64_t>{vocab, rank} : std::vector<int64_t>{rank, vocab}, path));
  TRY(check_shape(*tensors.b, {config.hidden, rank}, path));
  pair.a = plan.reserve(vocab * row_bytes(pair.dtype, rank));
  plan.placements.push_back({.tensor = tensors.a,
                             .row_count = by_token ? vocab : rank,
                             .cols = by_token ? rank : vocab,
                             .transpose = !by_token,
                             .to = pair.dtype,
                             .offset = pair.a});
  pair.b_t = plan.reserve(rank * row_bytes(pair.dtype, config.hidden));
  plan.placements.push_back({.tensor = tensors.b,
                             .row_count = config.hidden,
                             .cols = rank,
                             .transpose = true,
                             .to = pair.dtype,
                             .offset = pair.b_t});
  pair.rank = rank;
  pair.in = static_cast<int>(vocab);
  pair.out = config.hidden;
  pair.scaling = static_cast<float>(options.scaling);
  ++plan.modules["embed_tokens"];
  return {};
}

// `outs`: of the modules that a fused one stands for.
Status check_linear_shapes(const PairTensors& tensors, int in, const std::vector<int>& outs, int rank,
                           const std::string& path) {
  const int64_t out_all = std::accumulate(outs.begin(), outs.end(), int64_t{0});
  TRY(check_shape(*tensors.a, {rank, in}, path));
  TRY(check_shape(*tensors.b, {out_all, rank}, path));
  return tensors.b_bias ? check_shape(*tensors.b_bias, {out_all}, path) : Status();
}

Status check_module(const ModuleRef& module, const PairOptions& options, const std::string& path) {
  if (!std::isfinite(static_cast<float>(options.scaling)))
    return invalid_argument(path + ": the scaling of " + module.key + " is not a finite number");
  if (module.site != Site::kExpertStack) return {};  // of PEFT's folders alone, and not planned here
  return unsupported(path + ": LoRA on all experts of a layer at once (" + module.key +
                     ") is not known in this format");
}

// Of a linear module of a layer; all stays as it is in others.
std::vector<int32_t> order_of(std::vector<int32_t> (*order)(const ModelConfig&, int, Module), const ModelConfig& config,
                              const ModuleRef& module, Module part) {
  return order == nullptr || is_of_experts(module.site) ? std::vector<int32_t>() : order(config, module.layer, part);
}

struct PartShapes {
  int in = 0;
  std::vector<int> outs;
};
PartShapes part_shapes(const ModelConfig& config, const ModuleRef& module, std::span<const Module> parts, int vocab) {
  if (is_of_experts(module.site)) return {expert_shape(config, module).in, {expert_shape(config, module).out}};
  PartShapes shapes{linear_shape(config, module.layer, parts[0]).in, {}};
  for (const Module part : parts)
    shapes.outs.push_back(part == Module::kLmHead ? vocab : linear_shape(config, module.layer, part).out);
  return shapes;
}

}  // namespace

std::vector<int32_t> unpermuted_rows(const ModelConfig& config, int layer, Module module) {
  if (module != Module::kQ && module != Module::kK) return {};
  const int rows = linear_shape(config, layer, module).out;
  std::vector<int32_t> order(static_cast<size_t>(rows));
  for (int row = 0; row < rows; ++row)
    order[static_cast<size_t>(qk_row(row, config.head_dim, rotary_dim_of(config)))] = row;
  return order;
}

std::vector<int32_t> rows_as_in_base(const ModelConfig& config, int layer, Module module) {
  const Family* const family = family_of_type(config.architecture);
  const bool interleaved = family != nullptr && family->interleaved_qk;
  if (config.linear.tiled) return value_rows(config, layer, module, HeadOrder::kToTiled);
  return interleaved ? unpermuted_rows(config, layer, module) : std::vector<int32_t>();
}

std::vector<int32_t> cols_as_in_base(const ModelConfig& config, int layer, Module module) {
  if (!config.linear.tiled) return {};
  return value_cols(config, layer, module, HeadOrder::kToTiled);
}

Status plan_pair(const ModelConfig& config, const ModuleRef& module, const PairTensors& tensors,
                 const PairOptions& options, const std::string& path, LoadPlan& plan) {
  const bool embed = module.site == Site::kEmbed;
  TRY(check_module(module, options, path));
  TRY_ASSIGN(const int rank, check_rank(module, tensors, options, embed, path));
  if (embed) return plan_embed(config, tensors, options, rank, path, plan);

  const bool of_experts = is_of_experts(module.site);
  const std::vector<Module> parts = parts_of(module);
  const auto [in, outs] = part_shapes(config, module, parts, options.vocab);
  TRY(check_linear_shapes(tensors, in, outs, rank, path));
  const DType dtype = plan.int8 ? DType::kF32 : pair_dtype(tensors);
  const auto reserve_factor = [&](int64_t count) {
    return plan.reserve(rank * (plan.int8 ? lora_quant_row_bytes(count) : row_bytes(dtype, count)));
  };
  const auto reserve_scale = [&](int64_t count) {
    return plan.int8 ? plan.reserve(rank * lora_quant_groups(count) * int64_t{4}) : -1;
  };
  const int32_t layer = plan.layer_of(module);
  const int64_t a = reserve_factor(in), a_scale = reserve_scale(in);
  plan.placements.push_back({.tensor = tensors.a,
                             .row_count = rank,
                             .cols = in,
                             .to = dtype,
                             .layer = layer,
                             .offset = a,
                             .scale_offset = a_scale,
                             .col_order = order_of(options.col_order_of, config, module, parts[0])});
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    PairPlan& pair = of_experts ? plan.pair_of(config, module) : plan.pair(module.layer, parts[i]);
    if (pair.rank > 0) return corrupt(path + ": holds " + module.key + " twice, once inside a fused projection");
    pair.a = a;  // fused projections share A
    pair.a_scale = a_scale;
    pair.dtype = dtype;
    pair.rank = rank;
    pair.in = in;
    pair.out = outs[i];
    pair.scaling = static_cast<float>(options.scaling);
    std::vector<int32_t> order = order_of(options.row_order_of, config, module, parts[i]);
    pair.b_t = reserve_factor(outs[i]);
    pair.b_scale = reserve_scale(outs[i]);
    plan.placements.push_back({.tensor = tensors.b,
                               .row_begin = row,
                               .row_count = outs[i],
                               .cols = rank,
                               .transpose = true,
                               .to = dtype,
                               .layer = layer,
                               .offset = pair.b_t,
                               .scale_offset = pair.b_scale,
                               .row_order = order});
    if (tensors.b_bias) {
      pair.b_bias = plan.reserve(outs[i] * int64_t{4});
      plan.placements.push_back({.tensor = tensors.b_bias,
                                 .row_begin = row,
                                 .row_count = outs[i],
                                 .cols = 1,
                                 .to = DType::kF32,
                                 .layer = layer,
                                 .offset = pair.b_bias,
                                 .row_order = std::move(order)});
    }
    row += outs[i];
  }
  ++plan.modules[module_name(module)];
  return {};
}

}  // namespace loralei

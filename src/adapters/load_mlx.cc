// SPDX-License-Identifier: Apache-2.0
// Plans the load of an adapter of mlx-lm: adapters.safetensors beside an
// adapter_config.json that holds the options of a training run. Factors are named
// "model.layers.3.self_attn.q_proj.lora_a" [in, rank] and ".lora_b" [rank, out], and of
// the embedding [vocab, rank] and [rank, hidden]: what PEFT has as rows is columns here.
// A layer adds scale * (x a) b. An embedding that is the head too counts as both.
// Matrices of all experts of a layer are "mlp.switch_mlp.up_proj" (expert_map.h).
#include <map>

#include "adapters/expert_map.h"
#include "adapters/load_plan.h"
#include "adapters/peft_map.h"
#include "base/limits.h"
#include "formats/json_util.h"

namespace loralei {
namespace {

struct MlxConfig {
  int rank = 0;
  double scale = 0;
  std::string model;
};

// Of lora_parameters those matter; what else stands in the file is how it was trained.
Result<MlxConfig> parse_mlx_config(const std::string& text, const std::string& path) {
  TRY_ASSIGN(const Json root, parse_json_object(text, path, kMaxAdapterConfigBytes));
  TRY_ASSIGN(const auto kind, json_string(root, "fine_tune_type", path));
  if (kind.value_or("lora") != "lora") {
    return unsupported(
        path + ": \"fine_tune_type\": \"" + kind->substr(0, 60) +
        "\" is not supported, only lora is; fuse it into the model with mlx_lm.fuse, or train it as lora");
  }
  const Json* const lora = json_find(root, "lora_parameters");
  if (lora == nullptr || !lora->is_object()) {
    return corrupt(path + ": has neither \"peft_type\" (PEFT) nor \"lora_parameters\" (mlx-lm), so nobody knows the " +
                   "scale of its factors");
  }
  MlxConfig config;
  TRY_ASSIGN(const auto rank, json_int(*lora, "rank", 1, kMaxLoraRank, path));
  TRY_ASSIGN(const auto scale, json_number(*lora, "scale", path));
  if (!rank || !scale) return corrupt(path + ": \"lora_parameters\" lacks \"" + (rank ? "scale" : "rank") + "\"");
  for (const auto& [key, value] : lora->items()) {
    const bool known = key == "rank" || key == "scale" || key == "dropout" || key == "keys" || key == "alpha";
    if (known || value.is_null()) continue;  // alpha: old versions wrote it and used scale
    return unsupported(path + ": \"lora_parameters\": \"" + key.substr(0, 60) + "\" is not known here");
  }
  config.rank = static_cast<int>(*rank);
  config.scale = *scale;
  TRY_ASSIGN(const auto model, json_string(root, "model", path));
  config.model = model.value_or("");
  return config;
}

constexpr std::string_view kAllExperts = ".switch_mlp.";

struct Pair {
  ModuleRef module;
  PairTensors tensors;
};

bool eat_end(std::string_view& text, std::string_view ending) {
  if (!text.ends_with(ending)) return false;
  text.remove_suffix(ending.size());
  return true;
}

// The matrix behind kAllExperts, as the base's own files call it.
std::string mlx_expert_name(std::string_view name, size_t at, const ModelConfig& config) {
  const std::string_view matrix = name.substr(at + kAllExperts.size());
  for (int part = 0; part < kExpertMatrixCount; ++part) {
    if (matrix == kExpertMatrices[part]) return expert_matrix_name(config, part);
  }
  return "";
}

// The module that a factor is of, kExpertStack of all experts; Site::kUnknown: it is none
// of this base's.
ModuleRef module_of(std::string_view name, const ModelConfig& config, bool& is_a) {
  is_a = eat_end(name, ".lora_a");
  if (!is_a && !eat_end(name, ".lora_b")) return {};
  if (const size_t at = name.find(kAllExperts); at != std::string_view::npos) {
    ModuleRef module =
        parse_module(std::string(name.substr(0, at)) + ".experts.0." + mlx_expert_name(name, at, config), config);
    if (module.site != Site::kExpertMatrix) return {};
    module.site = Site::kExpertStack;
    module.key = name;
    return module;
  }
  const ModuleRef module = parse_module(name, config);
  switch (module.site) {
    case Site::kRouter:
    case Site::kSharedGate:
    case Site::kLinear:
    case Site::kQkv:
    case Site::kGateUp:
    case Site::kHead:
    case Site::kEmbed:
      return module;
    default:
      return {};
  }
}

Status collect(const AdapterFile& file, const ModelConfig& config, bool strict, LoadPlan& plan,
               std::map<std::string, Pair>& pairs) {
  for (const TensorInfo& tensor : file.tensors) {
    bool is_a = false;
    const ModuleRef module = module_of(tensor.name, config, is_a);
    if (module.site == Site::kUnknown) {
      const std::string sentence = "tensor \"" + tensor.name.substr(0, 200) +
                                   "\" is not one that an adapter of mlx-lm for this base model can have";
      if (strict) return unsupported(file.weights_path + ": " + sentence);
      if (plan.report.size() < 1000) plan.report.push_back("Not applied: " + sentence + ".");
      continue;
    }
    Pair& pair = pairs[module.key];
    pair.module = module;
    const TensorInfo*& slot = is_a ? pair.tensors.a : pair.tensors.b;
    if (slot != nullptr) {
      return corrupt(file.weights_path + ": tensors \"" + slot->name + "\" and \"" + tensor.name + "\" mean the same");
    }
    slot = &tensor;
  }
  return {};
}

// As the layer that looks tokens up is asked for logits, too.
void plan_tied_head(LoadPlan& plan) {
  const PairPlan& embed = plan.pair(-1, Module::kEmbed);
  if (embed.rank == 0) return;
  PairPlan& head = plan.pair(-1, Module::kLmHead);
  head = embed;
  head.a = embed.b_t;
  head.b_t = plan.reserve(embed.rank * row_bytes(embed.dtype, embed.in));
  std::swap(head.in, head.out);
  plan.head_pair_from_embed = true;
  plan.report.push_back("The head shares the embedding's pair (the embedding is the head, too).");
}

}  // namespace

void see_mlx_factors_as_rows(std::vector<TensorInfo>& tensors) {
  for (TensorInfo& tensor : tensors) {
    const bool factor = tensor.name.ends_with(".lora_a") || tensor.name.ends_with(".lora_b");
    if (!factor || tensor.shape.size() != 2 || tensor.name.ends_with("embed_tokens.lora_a")) continue;
    if (tensor.name.find(kAllExperts) != std::string::npos) continue;
    std::swap(tensor.shape[0], tensor.shape[1]);
    tensor.crossed = true;
  }
}

Result<LoadPlan> plan_mlx(const std::string& config_path, const AdapterFile& file,
                          const std::vector<std::string>& foreign, const AdapterBase& base,
                          const AdapterLoadOptions& options) {
  TRY_ASSIGN(const MlxConfig mlx, parse_mlx_config(file.config_text, config_path));
  LoadPlan plan(base.config, options);
  note_made_for(mlx.model, base, plan);
  for (const std::string& name : foreign) {
    return unsupported(file.weights_path + ": tensor \"" + name +
                       "\" is in a number format that cannot be computed with (F64, F32, F16 and BF16 can)");
  }
  std::map<std::string, Pair> pairs;
  TRY(collect(file, base.config, options.strict, plan, pairs));
  if (pairs.empty()) return corrupt(file.weights_path + ": holds no LoRA tensors");
  for (const auto& [key, pair] : pairs) {
    if (pair.module.site == Site::kExpertStack) {
      const ExpertMatrices all{.layer = pair.module.layer, .first = pair.module.expert_part, .key = key};
      TRY(plan_expert_matrices(base.config, all, pair.tensors, mlx.rank, mlx.scale, file.weights_path, plan));
      continue;
    }
    const PairOptions pair_options{.rank_wanted = mlx.rank,
                                   .scaling = mlx.scale,
                                   .vocab = base.config.vocab,
                                   .embed_a_by_token = pair.module.site == Site::kEmbed,
                                   .row_order_of = &rows_as_in_base,
                                   .col_order_of = &cols_as_in_base};
    TRY(plan_pair(base.config, pair.module, pair.tensors, pair_options, file.weights_path, plan));
  }
  if (base.config.tied_head) plan_tied_head(plan);
  return plan;
}

}  // namespace loralei

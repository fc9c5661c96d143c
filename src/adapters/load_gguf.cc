// SPDX-License-Identifier: Apache-2.0
// Plans the load of a GGUF LoRA file, as llama.cpp's convert_lora_to_gguf.py writes it:
// "blk.0.attn_q.weight.lora_a" [rank, in] and ".lora_b" [out, rank]; for token_embd
// lora_a is [vocab, rank]; "blk.0.attn_norm.weight" and other norms, which take the place
// of the base's; "blk.0.ffn_up_exps.weight" is of all experts (expert_map.h). Every
// tensor of the file applies; scaling is alpha / rank.
#include <map>

#include "adapters/expert_map.h"
#include "adapters/load_plan.h"
#include "adapters/peft_map.h"
#include "adapters/value_heads.h"
#include "base/limits.h"
#include "formats/family.h"
#include "formats/gguf_model.h"
#include "formats/model_tensors.h"

namespace loralei {

namespace {

bool eat_suffix(std::string_view& text, std::string_view suffix) {
  if (text.size() <= suffix.size() || text.substr(text.size() - suffix.size()) != suffix) return false;
  text.remove_suffix(suffix.size());
  return true;
}

Status check_kind(const GgufFile& gguf, const ModelConfig& config) {
  TRY_ASSIGN(const auto type, gguf.text("general.type"));
  if (type.value_or("model") != "adapter") {
    return invalid_argument(gguf.path + ": is not an adapter (general.type is \"" +
                            type.value_or("model").substr(0, 40) + "\")");
  }
  TRY_ASSIGN(const auto kind, gguf.text("adapter.type"));
  if (kind.value_or("lora") != "lora") {
    return unsupported(gguf.path + ": adapter.type \"" + kind->substr(0, 40) + "\" is not supported; only lora is");
  }
  TRY_ASSIGN(const auto architecture, gguf.text("general.architecture"));
  const Family* const family = family_of_type(config.architecture);
  const std::string of_base = family == nullptr ? config.architecture : std::string(family->gguf_name);
  if (architecture.value_or("") != of_base) {
    return invalid_argument(gguf.path + ": is for the architecture \"" + architecture.value_or("").substr(0, 60) +
                            "\", but the base model is " + of_base);
  }
  return {};
}

struct Pair {
  ModuleRef module;
  PairTensors tensors;
  ExpertMatrices experts;  // of module.site kExpertStack
};

// "model.layers.3.mlp.experts.up_proj"; kUnknown: it is none of all experts.
ModuleRef all_experts(std::string_view module, const ModelConfig& config, ExpertMatrices& matrices) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  const size_t at = module.find(kExperts);
  if (at == std::string_view::npos) return {};
  const std::string_view name = module.substr(at + kExperts.size());
  matrices = {.count = 0, .key = std::string(module)};
  if (name == "gate_up_proj") matrices.count = 2;
  for (int part = 0; part < kExpertMatrixCount && matrices.count == 0; ++part) {
    if (name == kExpertMatrices[part]) matrices.first = part, matrices.count = 1;
  }
  if (matrices.count == 0) return {};
  ModuleRef one = parse_module(
      std::string(module.substr(0, at + kExperts.size())) + "0." + expert_matrix_name(config, matrices.first), config);
  if (one.site != Site::kExpertMatrix) return {};
  matrices.layer = one.layer;
  one.site = Site::kExpertStack;
  one.key = module;
  return one;
}

// What a tensor is for, and which of a pair; `part` 0: neither.
ModuleRef module_of(const TensorInfo& tensor, const ModelConfig& config, char& part, ExpertMatrices& experts) {
  std::string_view name = tensor.name;
  part = eat_suffix(name, ".lora_a") ? 'a' : eat_suffix(name, ".lora_b") ? 'b' : '\0';
  const std::string canonical = canonical_name(name, config);
  std::string_view module = canonical;
  if (!eat_suffix(module, ".weight")) return {};
  ModuleRef all = all_experts(module, config, experts);
  return all.site == Site::kExpertStack ? all : parse_module(module, config);
}

Status collect(const GgufFile& gguf, const ModelConfig& config, bool strict, LoadPlan& plan,
               std::map<std::string, Pair>& pairs) {
  for (const TensorInfo& tensor : gguf.index.tensors) {
    char part = '\0';
    ExpertMatrices experts;
    const ModuleRef module = module_of(tensor, config, part, experts);
    if (part == '\0') {
      TRY_ASSIGN(const bool norm, plan_norm(config, module, tensor, 0, gguf.path, plan));
      if (norm) continue;
    } else if (module.site == Site::kLinear || module.site == Site::kQkv || module.site == Site::kGateUp ||
               module.site == Site::kHead || module.site == Site::kEmbed || module.site == Site::kRouter ||
               module.site == Site::kSharedGate || module.site == Site::kExpertStack) {
      Pair& pair = pairs[module.key];
      pair.module = module;
      pair.experts = std::move(experts);
      (part == 'a' ? pair.tensors.a : pair.tensors.b) = &tensor;
      continue;
    }
    const std::string sentence =
        "tensor \"" + tensor.name.substr(0, 200) + "\" is not one that a LoRA adapter of this base model can have";
    if (strict) return unsupported(gguf.path + ": " + sentence);
    if (plan.report.size() < 1000) plan.report.push_back("Not applied: " + sentence + ".");
  }
  return {};
}

Status read_invocation(const GgufFile& gguf, LoadPlan& plan) {
  const GgufValue* tokens = gguf.find("adapter.alora.invocation_tokens");
  if (!tokens) return {};
  if (tokens->type != GgufType::kIntArray || tokens->numbers.size() > 4096) {
    return corrupt(gguf.path + ": adapter.alora.invocation_tokens must be a list of at most 4096 token ids");
  }
  for (const int64_t id : tokens->numbers) {
    if (id < 0 || id >= kMaxVocab)
      return corrupt(gguf.path + ": adapter.alora.invocation_tokens holds an impossible id");
    plan.alora_invocation.push_back(static_cast<TokenId>(id));
  }
  return {};
}

}  // namespace

Result<LoadPlan> plan_gguf(const GgufFile& gguf, const AdapterBase& base, const AdapterLoadOptions& options) {
  TRY(check_kind(gguf, base.config));
  TRY_ASSIGN(const auto alpha, gguf.real("adapter.lora.alpha"));
  LoadPlan plan(base.config, options);
  std::map<std::string, Pair> pairs;
  TRY(collect(gguf, base.config, options.strict, plan, pairs));
  if (pairs.empty() && plan.modules.empty()) return corrupt(gguf.path + ": holds no LoRA tensors");
  TRY_ASSIGN(const auto architecture, gguf.text("general.architecture"));
  const Family* const family = family_of_gguf(*architecture);
  const bool interleaved = family->gguf_permutes_qk || family->interleaved_qk;
  // Value heads of linear attention stand as in files of llama.cpp.
  const bool tiled = has_linear(base.config) && !base.config.linear.tiled;
  for (const auto& [key, pair] : pairs) {
    const TensorInfo* b = pair.tensors.b;
    const double rank = b && b->shape.size() >= 2 ? static_cast<double>(b->shape.back()) : 1.0;
    // As llama.cpp: alpha 0 or absent means a scaling of 1.
    const double scaling = alpha.value_or(0) == 0 ? 1.0 : *alpha / rank;
    if (pair.module.site == Site::kExpertStack) {
      TRY(plan_expert_matrices(base.config, pair.experts, pair.tensors, -1, scaling, gguf.path, plan));
      continue;
    }
    const PairOptions pair_options{.scaling = scaling,
                                   .vocab = base.config.vocab,
                                   .embed_a_by_token = pair.module.site == Site::kEmbed,
                                   .row_order_of = interleaved ? &unpermuted_rows
                                                   : tiled     ? &rows_of_tiled
                                                               : nullptr,
                                   .col_order_of = tiled ? &cols_of_tiled : nullptr};
    TRY(plan_pair(base.config, pair.module, pair.tensors, pair_options, gguf.path, plan));
  }
  TRY(read_invocation(gguf, plan));
  return plan;
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_rope.h"

#include <utility>

#include "base/limits.h"
#include "formats/hf_keys.h"

namespace loralei {
namespace {

Result<double> need_factor(const Json& rope, const std::string& path) {
  if (!json_find(rope, "factor")) return corrupt(path + ": its rope scaling lacks \"factor\"");
  return json_positive(rope, "factor", 1, path);
}

// Keys of the rope object that the given kind knows; any other one with a
// value is refused.
Status check_rope_keys(const Json& rope, RopeScalingKind kind, const Family& family, const std::string& path) {
  const auto knows = [&](const std::string& key) {
    // Which pairs follow the rows and columns of an image: in text all are the same.
    if ((is_wrapper(family) || family.linear) && key.starts_with("mrope_")) return true;
    if (key == "type" || key == "rope_type" || key == "rope_theta") return true;
    if (key == "original_max_position_embeddings") return true;
    if (key == "partial_rotary_factor") return true;  // checked by the caller
    if (key == "factor") return kind != RopeScalingKind::kNone;
    if (kind == RopeScalingKind::kLongRope)
      return key == "short_factor" || key == "long_factor" || key == "attention_factor";
    if (kind == RopeScalingKind::kLlama3) return key == "low_freq_factor" || key == "high_freq_factor";
    if (kind != RopeScalingKind::kYarn) return false;
    for (const char* name :
         {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate", "finetuned"}) {
      if (key == name) return true;
    }
    return false;
  };
  for (const auto& [key, value] : rope.items()) {
    if (value.is_null() || knows(key)) continue;
    return refused_value(
        path, key, value,
        kind == RopeScalingKind::kNone
            ? "in rope settings without a scaling; name one by \"rope_type\" (linear, llama3, yarn, dynamic, longrope)"
            : "in the rope settings");
  }
  return {};
}

Status read_yarn(const Json& rope, RopeScaling& scaling, const std::string& path) {
  TRY_ASSIGN(scaling.beta_fast, json_positive(rope, "beta_fast", 32.0, path));
  TRY_ASSIGN(scaling.beta_slow, json_positive(rope, "beta_slow", 1.0, path));
  TRY_ASSIGN(scaling.attention_factor, json_number(rope, "attention_factor", path));
  TRY_ASSIGN(scaling.mscale, json_number(rope, "mscale", path));
  TRY_ASSIGN(scaling.mscale_all_dim, json_number(rope, "mscale_all_dim", path));
  TRY_ASSIGN(const auto truncate, json_bool(rope, "truncate", path));
  scaling.truncate = truncate.value_or(true);
  return {};
}

Result<std::vector<float>> read_factors(const Json& rope, const char* key, const std::string& path) {
  const Json* const list = json_find(rope, key);
  if (list == nullptr) return corrupt(path + ": its rope scaling, longrope, lacks \"" + key + "\"");
  std::vector<float> factors;
  for (const Json& value : *list) {
    const double factor = list->is_array() && value.is_number() ? value.get<double>() : 0;
    if (!(factor >= 1e-6 && factor <= 1e6))
      return corrupt(path + ": \"" + key + "\" must be a list of numbers between 1e-6 and 1e6, but it holds " +
                     json_brief(value));
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

Status read_longrope(const Json& rope, RopeScaling& scaling, const std::string& path) {
  TRY_ASSIGN(scaling.short_factors, read_factors(rope, "short_factor", path));
  TRY_ASSIGN(scaling.long_factors, read_factors(rope, "long_factor", path));
  TRY_ASSIGN(const auto attention, json_number(rope, "attention_factor", path));
  if (attention && !(*attention > 0 && *attention <= 1e6))
    return corrupt(path + ": \"attention_factor\" must lie above 0 and at most at 1e6");
  scaling.attention_factor = attention;
  const double stated = json_find(rope, "factor") != nullptr ? 1 : 0;
  TRY_ASSIGN(scaling.factor, json_positive(rope, "factor", stated, path));
  return {};
}

// Which part of each head is turned; `rope` may be null.
Status read_rotary(const Json& root, const Json* rope, const Family& family, ModelConfig& config,
                   const std::string& path) {
  constexpr const char* kKey = "partial_rotary_factor";
  TRY_ASSIGN(auto factor, json_number(root, kKey, path));
  if (rope != nullptr && json_find(*rope, kKey) != nullptr) {
    TRY_ASSIGN(factor, json_number(*rope, kKey, path));
  }
  if (family.rotary_factor == 0) {
    if (!factor || *factor == 1.0) return {};
    return refused_value(path, kKey, Json(*factor), "it changes what the model computes");
  }
  const double part = factor.value_or(family.rotary_factor);
  if (!(part > 0 && part <= 1)) return corrupt(path + ": \"" + kKey + "\" must lie above 0 and at most at 1");
  const int turned = static_cast<int>(config.head_dim * part);
  config.rotary_dim = turned == config.head_dim ? 0 : turned;
  if (turned > 0) return {};
  return corrupt(path + ": \"" + kKey + "\" " + json_brief(part) + " turns none of a head's " +
                 std::to_string(config.head_dim) + " numbers");
}

Result<RopeScalingKind> kind_of(const std::string& name, const Family& family, const std::string& path) {
  // Phi-3's first files say these of what is now longrope.
  const bool phi3 = std::string_view(family.name) == "phi3";
  if (name == "default" || (is_wrapper(family) && name == "mrope")) return RopeScalingKind::kNone;
  if (name == "linear") return RopeScalingKind::kLinear;
  if (name == "llama3") return RopeScalingKind::kLlama3;
  if (name == "longrope" || (phi3 && (name == "su" || name == "yarn"))) return RopeScalingKind::kLongRope;
  if (name == "yarn") return RopeScalingKind::kYarn;
  if (name == "dynamic") return RopeScalingKind::kDynamic;
  return unsupported(path + ": the rope type \"" + name.substr(0, 60) +
                     "\" is not supported; supported are default, linear, llama3, yarn, dynamic, longrope");
}

// `rope` is the object of "rope_scaling" (old form) or "rope_parameters" (new form,
// rope_theta inside).
Status read_rope_object(const Json& rope, const Family& family, ModelConfig& config, const std::string& path) {
  for (const char* nested : {"full_attention", "sliding_attention"}) {
    if (rope.contains(nested))
      return unsupported(path + ": rope settings that differ by layer type (\"" + nested +
                         "\") are not supported in this architecture");
  }
  TRY_ASSIGN(auto type, json_string(rope, "rope_type", path));
  if (!type) {
    TRY_ASSIGN(type, json_string(rope, "type", path));
  }
  TRY_ASSIGN(config.rope_theta, json_positive(rope, "rope_theta", config.rope_theta, path));
  RopeScaling& scaling = config.rope_scaling;
  TRY_ASSIGN(scaling.kind, kind_of(type.value_or("default"), family, path));
  TRY(check_rope_keys(rope, scaling.kind, family, path));
  if (scaling.kind == RopeScalingKind::kNone) return {};
  if (scaling.kind == RopeScalingKind::kLongRope) {
    TRY(read_longrope(rope, scaling, path));
  } else {
    TRY_ASSIGN(scaling.factor, need_factor(rope, path));
  }
  TRY_ASSIGN(const auto original, json_int(rope, "original_max_position_embeddings", 1, kMaxPosition, path));
  scaling.original_max_position = original.value_or(0);
  if (scaling.kind == RopeScalingKind::kLlama3) {
    TRY_ASSIGN(scaling.low_freq_factor, json_positive(rope, "low_freq_factor", 1.0, path));
    TRY_ASSIGN(scaling.high_freq_factor, json_positive(rope, "high_freq_factor", 4.0, path));
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      return corrupt(path + ": \"high_freq_factor\" must be above \"low_freq_factor\"");
    }
  }
  if (scaling.kind == RopeScalingKind::kYarn) TRY(read_yarn(rope, scaling, path));
  return {};
}

// Layers with a window by themselves: "rope_parameters" has an object for each kind, and
// "rope_scaling" is that of the layers without.
Status read_two_ropes(const Json& root, const Family& family, ModelConfig& config, const std::string& path) {
  ModelConfig sliding;  // whose rope is read alone
  const std::string key(family.sliding_theta_key);
  TRY_ASSIGN(sliding.rope_theta, json_positive(root, key.c_str(), family.sliding_theta, path));
  if (const Json* const both = json_find(root, "rope_parameters")) {
    if (!both->is_object())
      return corrupt(path + ": \"rope_parameters\" must be an object, but it is " + json_brief(*both));
    for (const auto& [name, rope] : both->items()) {
      const bool full = name == "full_attention";
      if (!full && name != "sliding_attention")
        return refused_value(path, "rope_parameters", Json(name), "known are full_attention and sliding_attention");
      if (rope.is_null()) continue;
      if (!rope.is_object())
        return corrupt(path + ": \"" + name + "\" must be an object, but it is " + json_brief(rope));
      TRY(read_rope_object(rope, family, full ? config : sliding, path));
      TRY(read_rotary(root, &rope, family, full ? config : sliding, path));
    }
  }
  if (const Json* const rope = json_find(root, "rope_scaling")) {
    if (!rope->is_object())
      return corrupt(path + ": \"rope_scaling\" must be an object, but it is " + json_brief(*rope));
    TRY(read_rope_object(*rope, family, config, path));
    TRY(read_rotary(root, rope, family, config, path));
  }
  LayerRope of_sliding{sliding.rope_theta, std::move(sliding.rope_scaling)};
  if (!(of_sliding == LayerRope{config.rope_theta, config.rope_scaling})) config.sliding_rope = std::move(of_sliding);
  return {};
}

}  // namespace

Status read_rope(const Json& root, const Family& family, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(config.rope_theta, json_positive(root, "rope_theta", family.rope_theta, path));
  if (family.sliding_theta > 0) return read_two_ropes(root, family, config, path);
  // As in transformers: a non-empty rope_scaling wins over rope_parameters.
  const Json* used = nullptr;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = json_find(root, key);
    if (!rope) continue;
    if (!rope->is_object())
      return corrupt(path + ": \"" + key + "\" must be an object, but it is " + json_brief(*rope));
    if (rope->empty()) continue;
    used = rope;
    break;
  }
  if (used != nullptr) TRY(read_rope_object(*used, family, config, path));
  TRY(read_rotary(root, used, family, config, path));
  // A top-level value replaces that of these (transformers:
  // standardize_rope_params).
  const RopeScalingKind kind = config.rope_scaling.kind;
  TRY_ASSIGN(const auto original, json_int(root, "original_max_position_embeddings", 1, kMaxPosition, path));
  if (original &&
      (kind == RopeScalingKind::kLlama3 || kind == RopeScalingKind::kYarn || kind == RopeScalingKind::kLongRope)) {
    config.rope_scaling.original_max_position = *original;
  }
  return {};
}

}  // namespace loralei

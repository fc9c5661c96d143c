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
Status check_rope_keys(const Json& rope, RopeScalingKind kind, const std::string& path) {
  const auto knows = [&](const std::string& key) {
    if (key == "type" || key == "rope_type" || key == "rope_theta") return true;
    if (key == "original_max_position_embeddings") return true;
    if (key == "partial_rotary_factor") return true;  // checked by the caller
    if (key == "factor") return kind != RopeScalingKind::kNone;
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
            ? "in rope settings without a scaling; name one by \"rope_type\" (linear, llama3, yarn, dynamic)"
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

// `rope` is the object of "rope_scaling" (old form) or "rope_parameters" (new form,
// rope_theta inside).
Status read_rope_object(const Json& rope, ModelConfig& config, const std::string& path) {
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
  TRY_ASSIGN(const auto partial, json_number(rope, "partial_rotary_factor", path));
  if (partial && *partial != 1.0)
    return refused_value(path, "partial_rotary_factor", Json(*partial), "it changes what the model computes");
  RopeScaling& scaling = config.rope_scaling;
  const std::string kind = type.value_or("default");
  if (kind == "default") {
    scaling.kind = RopeScalingKind::kNone;
    return check_rope_keys(rope, scaling.kind, path);
  }
  if (kind == "linear")
    scaling.kind = RopeScalingKind::kLinear;
  else if (kind == "llama3")
    scaling.kind = RopeScalingKind::kLlama3;
  else if (kind == "yarn")
    scaling.kind = RopeScalingKind::kYarn;
  else if (kind == "dynamic")
    scaling.kind = RopeScalingKind::kDynamic;
  else
    return unsupported(path + ": the rope type \"" + kind.substr(0, 60) +
                       "\" is not supported; supported are default, linear, llama3, yarn, dynamic");
  TRY(check_rope_keys(rope, scaling.kind, path));
  TRY_ASSIGN(scaling.factor, need_factor(rope, path));
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
      TRY(read_rope_object(rope, full ? config : sliding, path));
    }
  }
  if (const Json* const rope = json_find(root, "rope_scaling")) {
    if (!rope->is_object())
      return corrupt(path + ": \"rope_scaling\" must be an object, but it is " + json_brief(*rope));
    TRY(read_rope_object(*rope, config, path));
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
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = json_find(root, key);
    if (!rope) continue;
    if (!rope->is_object())
      return corrupt(path + ": \"" + key + "\" must be an object, but it is " + json_brief(*rope));
    if (rope->empty()) continue;
    TRY(read_rope_object(*rope, config, path));
    break;
  }
  // A top-level value replaces that of llama3 and yarn (transformers:
  // standardize_rope_params).
  const RopeScalingKind kind = config.rope_scaling.kind;
  TRY_ASSIGN(const auto original, json_int(root, "original_max_position_embeddings", 1, kMaxPosition, path));
  if (original && (kind == RopeScalingKind::kLlama3 || kind == RopeScalingKind::kYarn)) {
    config.rope_scaling.original_max_position = *original;
  }
  return {};
}

}  // namespace loralei

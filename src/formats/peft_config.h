// SPDX-License-Identifier: Apache-2.0
// PeftConfig: what an adapter_config.json of PEFT (peft_type LORA) asks for, and which
// modules of a base model it means.
//
// A plain value; PeftMatcher answers per module and keeps the compiled patterns.
// Thread: one at a time. Every key that PEFT's LoraConfig knows is in one table
// (peft_config.cc, explained in docs/peft-keys.md): applied, harmless, or refused by
// name unless neutral; a key that nobody knows is refused unless its value is null, false
// or empty. Semantics are those of PEFT 0.21 (tuners_utils.check_target_module_exists,
// utils.other.get_pattern_key, lora.layer.update_layer). Untrusted input: lists are
// bounded, and patterns in number and length before any is compiled.
// Failure: corrupt (not JSON, wrong type), unsupported (key and value named),
// invalid_argument (impossible values, broken patterns), too_large (beyond a bound).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "formats/py_regex.h"

namespace loralei {

enum class PeftBias : unsigned char { kNone, kAll, kLoraOnly };

struct PeftConfig {
  int rank = 8;      // "r"
  double alpha = 8;  // "lora_alpha"
  bool rslora = false, lora_bias = false, ensure_weight_tying = false;
  PeftBias bias = PeftBias::kNone;

  bool all_linear = false;                    // target_modules = "all-linear"
  std::optional<std::string> target_pattern;  // target_modules as one regular expression
  std::vector<std::string> target_names;      // target_modules as a list
  std::optional<std::string> exclude_pattern;
  std::vector<std::string> exclude_names;
  std::optional<std::vector<int64_t>> layers;             // layers_to_transform; absent or empty: all
  std::vector<std::string> layers_patterns;               // layers_pattern
  std::vector<std::pair<std::string, int>> rank_pattern;  // in the file's order: the first key that matches counts
  std::vector<std::pair<std::string, double>> alpha_pattern;

  std::vector<std::string> target_parameters;  // names or ends of names

  std::vector<std::string> modules_to_save;
  std::map<std::string, std::vector<TokenId>>
      trainable_tokens;  // module name -> ids in the order of the rows; "embed_tokens" for a plain list
  std::vector<TokenId> alora_invocation;

  std::string base_model;            // base_model_name_or_path, for display
  std::vector<std::string> notes;    // harmless things worth telling
  std::vector<std::string> refused;  // non-strict only: what is asked for and not applied, one sentence each
};

// Strict: the first refusal is an error. Otherwise refusals are collected, and only what
// makes the file unreadable is an error.
Result<PeftConfig> parse_peft_config(std::string_view json, const std::string& path, bool strict);

// Whether an entry of a list of modules means the module `key`: its whole name, or the
// end of it after a dot.
bool is_module_name(const std::string& name, const std::string& key);

// Answers for full module keys such as "model.layers.3.self_attn.q_proj" and "lm_head".
class PeftMatcher {
 public:
  // Compiles all patterns. The config must outlive the matcher.
  static Result<PeftMatcher> create(const PeftConfig& config, const std::string& path);

  // Whether LoRA is put on this module; `linear`: it is a linear layer other than the
  // head (what "all-linear" means).
  Result<bool> targets(const std::string& key, bool linear);
  Result<int> rank(const std::string& key);
  Result<double> alpha(const std::string& key);
  // alpha / r, or alpha / sqrt(r) with rsLoRA.
  Result<double> scaling(const std::string& key);
  // Whether modules_to_save means this module (PEFT compares the end of the name).
  bool saves(const std::string& key) const;
  // Whether target_parameters means this parameter
  // ("model.layers.3.mlp.experts.down_proj").
  bool targets_parameter(const std::string& key);
  std::vector<std::string> unused_parameters() const;  // that meant nothing asked about so far
  // Entries of a target_modules list that matched nothing asked about so far.
  std::vector<std::string> unused_targets() const;

 private:
  struct Pattern {
    std::string ending;  // literal end that a matching name must have; empty when unknown
    PyRegex regex;
  };
  explicit PeftMatcher(const PeftConfig& config, const std::string& path) : config_(&config), path_(path) {}
  Result<bool> matches(const PyRegex& regex, const std::string& key, bool full);
  Result<bool> excluded(const std::string& key);
  Result<bool> in_layers(const std::string& key);
  Result<int> pattern_index(const std::vector<Pattern>& patterns, const std::string& key);

  const PeftConfig* config_;
  std::string path_;
  RegexBudget budget_;
  std::optional<PyRegex> target_, exclude_;
  std::vector<PyRegex> saved_, layers_;
  std::vector<Pattern> ranks_, alphas_;
  std::vector<bool> target_used_, parameter_used_;
};

}  // namespace loralei

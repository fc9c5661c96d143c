// SPDX-License-Identifier: Apache-2.0
#include "formats/peft_config.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "base/limits.h"
#include "base/units.h"
#include "formats/json_util.h"

namespace loralei {

namespace {

constexpr size_t kMaxNames = 20000;              // of modules in a list
constexpr size_t kMaxPatterns = 4096;            // regular expressions, of all keys together
constexpr size_t kMaxLayersPatterns = 1000;      // of them: these are tried at any place of a name
constexpr size_t kMaxPatternBytes = 256 * kKiB;  // of their text; compiled they take about a hundred times as much
constexpr int64_t kMaxTokens = 1 << 20;

enum class Treatment : unsigned char {
  kApplied,   // read below
  kHarmless,  // says nothing about the forward pass
  kNeutral,   // changes the result in a way that is not implemented: refused unless null, false, or empty
};
struct KeyRule {
  const char* key;
  Treatment treatment;
  const char* why;  // of a refusal
};

// Every key of PEFT's LoraConfig and of what it inherits, and keys that older versions
// and common trainers write.
constexpr KeyRule kKeys[] = {
    {"peft_type", Treatment::kApplied, ""},
    {"r", Treatment::kApplied, ""},
    {"lora_alpha", Treatment::kApplied, ""},
    {"use_rslora", Treatment::kApplied, ""},
    {"target_modules", Treatment::kApplied, ""},
    {"target_parameters", Treatment::kApplied, ""},
    {"exclude_modules", Treatment::kApplied, ""},
    {"layers_to_transform", Treatment::kApplied, ""},
    {"layers_pattern", Treatment::kApplied, ""},
    {"rank_pattern", Treatment::kApplied, ""},
    {"alpha_pattern", Treatment::kApplied, ""},
    {"bias", Treatment::kApplied, ""},
    {"lora_bias", Treatment::kApplied, ""},
    {"modules_to_save", Treatment::kApplied, ""},
    {"trainable_token_indices", Treatment::kApplied, ""},
    {"ensure_weight_tying", Treatment::kApplied, ""},
    {"alora_invocation_tokens", Treatment::kApplied, ""},
    {"init_lora_weights", Treatment::kApplied, ""},
    {"fan_in_fan_out", Treatment::kApplied, ""},
    {"task_type", Treatment::kApplied, ""},
    {"base_model_name_or_path", Treatment::kApplied, ""},
    {"auto_mapping", Treatment::kHarmless, ""},
    {"peft_version", Treatment::kHarmless, ""},
    {"revision", Treatment::kHarmless, ""},
    {"inference_mode", Treatment::kHarmless, ""},
    {"lora_dropout", Treatment::kHarmless, ""},   // training only
    {"megatron_core", Treatment::kHarmless, ""},  // a module's name, used with megatron_config only
    {"loftq_config", Treatment::kHarmless, ""},   // the settings of initialisations that init_lora_weights names
    {"eva_config", Treatment::kHarmless, ""},
    {"corda_config", Treatment::kHarmless, ""},
    {"lora_ga_config", Treatment::kHarmless, ""},
    {"velora_config", Treatment::kHarmless, ""},  // another backward pass; the forward pass is LoRA's
    {"runtime_config", Treatment::kHarmless, ""},
    {"qalora_group_size", Treatment::kHarmless, ""},  // used with use_qalora only
    {"lora_dtype", Treatment::kHarmless, ""},         // written by ms-swift: training settings
    {"lorap_lr_ratio", Treatment::kHarmless, ""},
    {"lorap_emb_lr", Treatment::kHarmless, ""},
    {"use_dora", Treatment::kNeutral,
     "DoRA scales each output by a learned magnitude; merge the adapter, or train it without DoRA"},
    {"use_qalora", Treatment::kNeutral, "QA-LoRA pools its inputs"},
    {"use_bdlora", Treatment::kNeutral, "block-diagonal factors"},
    {"kasa_config", Treatment::kNeutral, "KaSA changes the base weights"},
    {"monteclora_config", Treatment::kNeutral, "it samples perturbations of the weights"},
    {"arrow_config", Treatment::kNeutral, "it routes between several adapters"},
    {"layer_replication", Treatment::kNeutral, "it builds a model with more layers than the base"},
    {"megatron_config", Treatment::kNeutral, "parallel layers of Megatron"},
    {"enable_lora", Treatment::kNeutral, "merged linear layers of old PEFT versions"},
    {"merge_weights", Treatment::kNeutral, ""},
};

bool is_neutral(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_structured() || value.is_string()) && value.empty());
}

// Tinker calls lm_head so.
void take_own_name(std::string& name) {
  if (is_module_name("unembed_tokens", name)) name = "lm_head";
}

class Reader {
 public:
  Reader(const Json& root, std::string_view text, const std::string& path, bool strict)
      : root_(root), text_(text), path_(path), strict_(strict) {}

  Result<PeftConfig> read() {
    TRY(check_kind());
    TRY(check_keys());
    TRY(read_init());
    TRY(read_scalars());
    TRY(read_targets());
    TRY(read_layers());
    TRY(read_patterns());
    TRY(read_tokens());
    return std::move(config_);
  }

 private:
  // Strict: an error. Otherwise a sentence of the report.
  Status refuse(const std::string& sentence) {
    if (strict_) return unsupported(path_ + ": " + sentence);
    if (config_.refused.size() < 200) config_.refused.push_back("Not applied: " + sentence + ".");
    return {};
  }

  Status check_kind() {
    TRY_ASSIGN(const auto kind, json_string(root_, "peft_type", path_));
    if (!kind) return corrupt(path_ + ": lacks \"peft_type\", so it is not an adapter_config.json of PEFT");
    if (*kind == "LORA") return {};
    return unsupported(path_ + ": \"peft_type\": \"" + kind->substr(0, 60) + "\" is not supported; only LORA is");
  }

  Status check_keys() {
    for (const auto& item : root_.items()) {
      const std::string& key = item.key();
      const Json& value = item.value();
      const auto rule =
          std::find_if(std::begin(kKeys), std::end(kKeys), [&](const KeyRule& known) { return key == known.key; });
      if (rule != std::end(kKeys) && rule->treatment != Treatment::kNeutral) continue;
      if (is_neutral(value)) continue;
      const bool known = rule != std::end(kKeys);
      const std::string why = known ? rule->why : "this key is not known, so it cannot be applied";
      TRY(refuse("\"" + key.substr(0, 100) + "\": " + json_brief(value) + " is not supported" +
                 (why.empty() ? "" : " (" + why + ")")));
    }
    return {};
  }

  // Which initialisations leave the base weights as they are, from PEFT's lora/layer.py.
  // The others subtract the start values from the base; PEFT writes `true` here when it
  // saves such an adapter converted (path_initial_model_for_weight_conversion).
  Status read_init() {
    const Json* init = json_find(root_, "init_lora_weights");
    if (!init || init->is_boolean()) return {};
    if (init->is_string()) {
      const std::string name = init->get<std::string>();
      for (const char* fine : {"gaussian", "eva", "orthogonal", "mica"}) {
        if (name == fine) return {};
      }
      return refuse("\"init_lora_weights\": \"" + name.substr(0, 60) +
                    "\" is not supported, because such training changes the base weights; save the "
                    "adapter with save_pretrained(..., path_initial_model_for_weight_conversion=INITIAL), which "
                    "converts it to plain LoRA");
    }
    return corrupt(path_ + ": \"init_lora_weights\" must be true, false or a string, but it is " + json_brief(*init));
  }

  Status read_scalars() {
    TRY_ASSIGN(const auto rank, json_int(root_, "r", 1, kMaxLoraRank, path_));
    config_.rank = static_cast<int>(rank.value_or(8));
    TRY_ASSIGN(const auto alpha, json_number(root_, "lora_alpha", path_));
    config_.alpha = alpha.value_or(8);
    TRY_ASSIGN(const auto rslora, json_bool(root_, "use_rslora", path_));
    config_.rslora = rslora.value_or(false);
    TRY_ASSIGN(const auto lora_bias, json_bool(root_, "lora_bias", path_));
    config_.lora_bias = lora_bias.value_or(false);
    TRY_ASSIGN(const auto tying, json_bool(root_, "ensure_weight_tying", path_));
    config_.ensure_weight_tying = tying.value_or(false);
    TRY_ASSIGN(const auto bias, json_string(root_, "bias", path_));
    const std::string kind = bias.value_or("none");
    if (kind == "all")
      config_.bias = PeftBias::kAll;
    else if (kind == "lora_only")
      config_.bias = PeftBias::kLoraOnly;
    else if (kind != "none")
      return invalid_argument(path_ + ": \"bias\" must be none, all or lora_only, but it is \"" + kind.substr(0, 60) +
                              "\"");
    TRY_ASSIGN(const auto fan, json_bool(root_, "fan_in_fan_out", path_));
    if (fan.value_or(false)) {
      config_.notes.push_back("\"fan_in_fan_out\": true has no effect on linear modules, as in PEFT.");
    }
    TRY_ASSIGN(const auto task, json_string(root_, "task_type", path_));
    if (task && *task != "CAUSAL_LM")
      config_.notes.push_back("The adapter was made for the task " + task->substr(0, 40) + ", not CAUSAL_LM.");
    TRY_ASSIGN(const auto base, json_string(root_, "base_model_name_or_path", path_));
    config_.base_model = base.value_or("").substr(0, 300);
    return {};
  }

  Status read_targets() {
    TRY_ASSIGN(auto parameters, json_strings(root_, "target_parameters", path_));
    if (parameters) config_.target_parameters = std::move(*parameters);
    if (config_.target_parameters.size() > kMaxNames) return too_large(path_ + ": names too many parameters");
    const Json* targets = json_find(root_, "target_modules");
    if (targets && targets->is_string()) {
      std::string text = targets->get<std::string>();
      std::string lower = text;
      std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
      if (lower == "all-linear")
        config_.all_linear = true;
      else
        config_.target_pattern = std::move(text);
    } else if (targets) {
      TRY_ASSIGN(auto names, json_strings(root_, "target_modules", path_));
      if (names) config_.target_names = std::move(*names);
    } else if (config_.target_parameters.empty()) {
      config_.target_names = {"q_proj", "v_proj"};  // PEFT's default for all architectures we serve
    }
    const Json* exclude = json_find(root_, "exclude_modules");
    if (exclude && exclude->is_string()) {
      config_.exclude_pattern = exclude->get<std::string>();
    } else if (exclude) {
      TRY_ASSIGN(auto names, json_strings(root_, "exclude_modules", path_));
      if (names) config_.exclude_names = std::move(*names);
    }
    if (config_.exclude_pattern && config_.exclude_pattern->empty()) config_.exclude_pattern.reset();
    TRY_ASSIGN(auto saved, json_strings(root_, "modules_to_save", path_));
    if (saved) config_.modules_to_save = std::move(*saved);
    for (auto* list : {&config_.target_names, &config_.exclude_names, &config_.modules_to_save}) {
      if (list->size() > kMaxNames) return too_large(path_ + ": names too many modules");
      for (std::string& name : *list) take_own_name(name);
    }
    return {};
  }

  Status read_layers() {
    TRY_ASSIGN(config_.layers, json_ints(root_, "layers_to_transform", -kMaxLayers, INT32_MAX, path_));
    if (config_.layers && config_.layers->empty()) config_.layers.reset();
    TRY_ASSIGN(auto patterns, json_strings(root_, "layers_pattern", path_));
    if (patterns) config_.layers_patterns = std::move(*patterns);
    if (config_.layers_patterns.size() == 1 && config_.layers_patterns[0].empty()) config_.layers_patterns.clear();
    if (config_.layers_patterns.size() > kMaxLayersPatterns)
      return too_large(path_ + ": \"layers_pattern\" has too many entries");
    const bool text = config_.target_pattern.has_value() || config_.all_linear;
    if (text && (config_.layers || !config_.layers_patterns.empty())) {
      return invalid_argument(path_ +
                              ": \"layers_to_transform\" and \"layers_pattern\" cannot be used when \"target_modules\" "
                              "is a string (PEFT refuses it too)");
    }
    if (!config_.layers_patterns.empty() && !config_.layers) {
      return invalid_argument(path_ + ": \"layers_pattern\" needs \"layers_to_transform\"");
    }
    return {};
  }

  // The keys of the object `name` in the file's order; a key that stands twice counts at
  // its first place (as in Python).
  std::vector<std::string> key_order(const std::string& name) const {
    std::vector<std::string> order;
    std::unordered_set<std::string> seen;
    bool inside = false;
    const auto listen = [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (event == Json::parse_event_t::key && parsed.is_string()) {
        if (depth == 1)
          inside = parsed.get<std::string>() == name;
        else if (depth == 2 && inside && seen.insert(parsed.get<std::string>()).second)
          order.push_back(parsed.get<std::string>());
      }
      return true;
    };
    try {
      const Json ignored = Json::parse(text_, listen, false);
    } catch (const std::exception&) {
      order.clear();  // not reached: the same text was parsed before
    }
    return order;
  }

  Status read_patterns() {
    for (const char* key : {"rank_pattern", "alpha_pattern"}) {
      const Json* object = json_find(root_, key);
      if (!object) continue;
      if (!object->is_object())
        return corrupt(path_ + ": \"" + std::string(key) + "\" must be an object, but it is " + json_brief(*object));
      if (object->size() > kMaxPatterns)
        return too_large(path_ + ": \"" + std::string(key) + "\" has too many entries");
      const std::string place = path_ + ": in \"" + key + "\"";
      const bool ranks = std::string_view(key) == "rank_pattern";
      for (const std::string& name : key_order(key)) {
        if (!object->contains(name)) continue;
        std::string module = name;
        take_own_name(module);
        if (ranks) {
          TRY_ASSIGN(const auto rank, json_int(*object, name.c_str(), 1, kMaxLoraRank, place));
          if (rank) config_.rank_pattern.emplace_back(std::move(module), static_cast<int>(*rank));
        } else {
          TRY_ASSIGN(const auto alpha, json_number(*object, name.c_str(), place));
          if (alpha) config_.alpha_pattern.emplace_back(std::move(module), *alpha);
        }
      }
    }
    return {};
  }

  static std::vector<TokenId> ids(const std::vector<int64_t>& numbers) { return {numbers.begin(), numbers.end()}; }

  Status read_tokens() {
    TRY_ASSIGN(const auto invocation, json_ints(root_, "alora_invocation_tokens", 0, kMaxVocab, path_));
    if (invocation) {
      if (invocation->size() > 4096) return too_large(path_ + ": \"alora_invocation_tokens\" is longer than 4096");
      config_.alora_invocation = ids(*invocation);
    }
    const Json* trainable = json_find(root_, "trainable_token_indices");
    if (!trainable) return {};
    if (!trainable->is_object()) {
      TRY_ASSIGN(const auto list, json_ints(root_, "trainable_token_indices", 0, kMaxVocab, path_));
      return list ? add_tokens("embed_tokens", *list) : Status();
    }
    if (trainable->size() > 16) return too_large(path_ + ": \"trainable_token_indices\" names too many modules");
    for (const auto& [name, value] : trainable->items()) {
      TRY_ASSIGN(const auto list,
                 json_ints(*trainable, name.c_str(), 0, kMaxVocab, path_ + ": in \"trainable_token_indices\""));
      if (list) TRY(add_tokens(name, *list));
    }
    return {};
  }

  Status add_tokens(const std::string& name, const std::vector<int64_t>& list) {
    if (static_cast<int64_t>(list.size()) > kMaxTokens)
      return too_large(path_ + ": \"trainable_token_indices\" is too long");
    if (list.empty()) return {};
    std::vector<int64_t> sorted = list;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      return invalid_argument(path_ + ": \"trainable_token_indices\" names a token twice");
    }
    config_.trainable_tokens.emplace(name, ids(list));
    return {};
  }

  const Json& root_;
  std::string_view text_;
  const std::string& path_;
  bool strict_;
  PeftConfig config_;
};

Result<PyRegex> compile(const std::string& pattern, const std::string& shown, const char* key,
                        const std::string& path) {
  auto regex = PyRegex::compile(pattern);
  if (regex.ok()) return regex;
  Error error = std::move(regex).error();
  error.message = path + ": \"" + key + "\": \"" + shown.substr(0, 200) +
                  "\" cannot be used as a regular expression: " + error.message;
  return error;
}

// The literal end of a pattern, which every name that matches must share; "" when there
// is none. Only an aid to skip patterns quickly.
std::string literal_ending(const std::string& pattern) {
  if (pattern.find_first_of("|()[]{}?*+$") != std::string::npos) return "";
  size_t begin = pattern.size();
  while (begin > 0 && (std::isalnum(static_cast<unsigned char>(pattern[begin - 1])) || pattern[begin - 1] == '_'))
    --begin;
  if (begin > 0 && pattern[begin - 1] == '\\') ++begin;
  return begin >= pattern.size() ? "" : pattern.substr(begin);
}

// Of everything that is compiled.
Status check_patterns(const PeftConfig& config, const std::string& path) {
  size_t count = 0, bytes = 0;
  const auto add = [&](const std::string& pattern) {
    ++count;
    bytes += pattern.size();
  };
  add(config.target_pattern.value_or(""));
  add(config.exclude_pattern.value_or(""));
  for (const std::string& name : config.modules_to_save) add(name);
  for (const std::string& name : config.layers_patterns) add(name);
  for (const auto& [name, rank] : config.rank_pattern) add(name);
  for (const auto& [name, alpha] : config.alpha_pattern) add(name);
  if (count <= kMaxPatterns && bytes <= kMaxPatternBytes) return {};
  return too_large(path + ": has " + std::to_string(count) + " patterns of " +
                   format_bytes(static_cast<int64_t>(bytes)) +
                   " (target_modules, exclude_modules, modules_to_save, layers_pattern, rank_pattern, alpha_pattern), "
                   "but at most " +
                   std::to_string(kMaxPatterns) + " of " + format_bytes(kMaxPatternBytes) +
                   " in all are read; let one pattern stand for several modules");
}

}  // namespace

bool is_module_name(const std::string& name, const std::string& key) {
  return key == name || (key.size() > name.size() && key[key.size() - name.size() - 1] == '.' && key.ends_with(name));
}

Result<PeftConfig> parse_peft_config(std::string_view json, const std::string& path, bool strict) {
  TRY_ASSIGN(const Json root, parse_json_object(json, path, kMaxAdapterConfigBytes));
  return Reader(root, json, path, strict).read();
}

Result<PeftMatcher> PeftMatcher::create(const PeftConfig& config, const std::string& path) {
  TRY(check_patterns(config, path));
  PeftMatcher matcher(config, path);
  if (config.target_pattern) {
    TRY_ASSIGN(matcher.target_, compile(*config.target_pattern, *config.target_pattern, "target_modules", path));
  }
  if (config.exclude_pattern) {
    TRY_ASSIGN(matcher.exclude_, compile(*config.exclude_pattern, *config.exclude_pattern, "exclude_modules", path));
  }
  for (const std::string& name : config.modules_to_save) {
    TRY_ASSIGN(PyRegex regex, compile("(^|.*\\.)" + name + "($|\\..*)", name, "modules_to_save", path));
    matcher.saved_.push_back(std::move(regex));
  }
  if (config.layers_patterns.empty()) {
    TRY_ASSIGN(PyRegex regex, compile(".*?\\.[^.]*\\.(?P<idx>\\d+)\\.", "", "layers_pattern", path));
    matcher.layers_.push_back(std::move(regex));
  }
  for (const std::string& name : config.layers_patterns) {
    TRY_ASSIGN(PyRegex regex, compile("(?:^|.*?\\.)" + name + "\\.(?P<idx>\\d+)\\.", name, "layers_pattern", path));
    matcher.layers_.push_back(std::move(regex));
  }
  const auto add = [&](const std::string& name, const char* key, std::vector<Pattern>& list) -> Status {
    TRY_ASSIGN(PyRegex regex, compile("(.*\\.)?(" + name + ")$", name, key, path));
    list.push_back({literal_ending(name), std::move(regex)});
    return {};
  };
  for (const auto& [name, rank] : config.rank_pattern) TRY(add(name, "rank_pattern", matcher.ranks_));
  for (const auto& [name, alpha] : config.alpha_pattern) TRY(add(name, "alpha_pattern", matcher.alphas_));
  matcher.target_used_.assign(config.target_names.size(), false);
  matcher.parameter_used_.assign(config.target_parameters.size(), false);
  return matcher;
}

Result<bool> PeftMatcher::matches(const PyRegex& regex, const std::string& key, bool full) {
  switch (full ? regex.full_match(key, budget_) : regex.match(key, budget_)) {
    case PyRegex::Answer::kYes:
      return true;
    case PyRegex::Answer::kNo:
      return false;
    case PyRegex::Answer::kTooHard:
      break;
  }
  return too_large(path_ + ": its regular expressions take too long to evaluate; list the module names instead");
}

Result<bool> PeftMatcher::excluded(const std::string& key) {
  if (exclude_) {
    TRY_ASSIGN(const bool out, matches(*exclude_, key, true));
    if (out) return true;
  }
  for (const std::string& name : config_->exclude_names) {
    if (is_module_name(name, key)) return true;
  }
  for (const PyRegex& regex : saved_) {
    TRY_ASSIGN(const bool saved, matches(regex, key, false));
    if (saved) return true;
  }
  return false;
}

Result<bool> PeftMatcher::in_layers(const std::string& key) {
  if (!config_->layers) return true;
  for (const PyRegex& regex : layers_) {
    std::string digits;
    const auto answer = regex.match_group(key, "idx", digits, budget_);
    if (answer == PyRegex::Answer::kTooHard)
      return too_large(path_ + ": \"layers_pattern\" takes too long to evaluate");
    if (answer == PyRegex::Answer::kNo) continue;
    int64_t index = 0;
    for (const char c : digits) index = std::min<int64_t>(index * 10 + (c - '0'), INT32_MAX);
    return !digits.empty() &&
           std::find(config_->layers->begin(), config_->layers->end(), index) != config_->layers->end();
  }
  return false;
}

Result<bool> PeftMatcher::targets(const std::string& key, bool linear) {
  TRY_ASSIGN(const bool out, excluded(key));
  if (out) {
    // An entry whose modules are all excluded asked for nothing.
    for (size_t i = 0; i < target_used_.size(); ++i)
      target_used_[i] = target_used_[i] || is_module_name(config_->target_names[i], key);
    return false;
  }
  if (config_->all_linear) return linear;
  if (target_) return matches(*target_, key, true);
  bool found = false, exact = false;
  for (size_t i = 0; i < config_->target_names.size(); ++i) {
    const std::string& name = config_->target_names[i];
    if (!is_module_name(name, key)) continue;
    target_used_[i] = true;
    found = true;
    exact = exact || key == name;
  }
  if (!found || exact) return found;  // a full name counts whatever layers_to_transform says
  return in_layers(key);
}

Result<int> PeftMatcher::pattern_index(const std::vector<Pattern>& patterns, const std::string& key) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (!patterns[i].ending.empty() && !key.ends_with(patterns[i].ending)) continue;
    TRY_ASSIGN(const bool yes, matches(patterns[i].regex, key, false));
    if (yes) return static_cast<int>(i);
  }
  return -1;
}

Result<int> PeftMatcher::rank(const std::string& key) {
  TRY_ASSIGN(const int index, pattern_index(ranks_, key));
  return index < 0 ? config_->rank : config_->rank_pattern[static_cast<size_t>(index)].second;
}

Result<double> PeftMatcher::alpha(const std::string& key) {
  TRY_ASSIGN(const int index, pattern_index(alphas_, key));
  return index < 0 ? config_->alpha : config_->alpha_pattern[static_cast<size_t>(index)].second;
}

Result<double> PeftMatcher::scaling(const std::string& key) {
  TRY_ASSIGN(const int r, rank(key));
  TRY_ASSIGN(const double a, alpha(key));
  return a / (config_->rslora ? std::sqrt(static_cast<double>(r)) : static_cast<double>(r));
}

bool PeftMatcher::saves(const std::string& key) const {
  return std::any_of(config_->modules_to_save.begin(), config_->modules_to_save.end(),
                     [&](const std::string& name) { return !name.empty() && key.ends_with(name); });
}

bool PeftMatcher::targets_parameter(const std::string& key) {
  bool found = false;
  for (size_t i = 0; i < config_->target_parameters.size(); ++i) {
    if (!is_module_name(config_->target_parameters[i], key)) continue;
    parameter_used_[i] = found = true;
  }
  return found;
}

std::vector<std::string> PeftMatcher::unused_parameters() const {
  std::vector<std::string> unused;
  for (size_t i = 0; i < parameter_used_.size(); ++i) {
    if (!parameter_used_[i]) unused.push_back(config_->target_parameters[i]);
  }
  return unused;
}

std::vector<std::string> PeftMatcher::unused_targets() const {
  std::vector<std::string> unused;
  for (size_t i = 0; i < target_used_.size(); ++i) {
    if (!target_used_[i]) unused.push_back(config_->target_names[i]);
  }
  return unused;
}

}  // namespace loralei

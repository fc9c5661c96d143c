// SPDX-License-Identifier: Apache-2.0
// Plans the load of a PEFT adapter: config and tensors against each other and
// against the base.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "adapters/expert_map.h"
#include "adapters/load_plan.h"
#include "adapters/peft_map.h"
#include "base/limits.h"
#include "formats/peft_config.h"
#include "formats/words.h"

namespace loralei {

namespace {

constexpr size_t kUnusedTargetsMax = 200;  // that are looked for among the file's tensors

// What the file holds of one module.
struct ModuleTensors {
  ModuleRef module;
  PairTensors pair;
  const TensorInfo* bias = nullptr;    // replaces the base's
  const TensorInfo* weight = nullptr;  // saved whole
  bool base_layer = false;             // `weight` was saved beside LoRA or token rows (save_embedding_layers)
  const TensorInfo* tokens = nullptr;  // trainable token rows
  // What PEFT writes beside `weight` when it saves a wrapped embedding or head
  // with all it has.
  const TensorInfo* copy = nullptr;      // of `weight`
  const TensorInfo* original = nullptr;  // what was there before
  bool taken = false;                    // kExpertStack: it is one that the config means
};

class PeftPlanner {
 public:
  PeftPlanner(const PeftConfig& peft, PeftMatcher matcher, const AdapterFile& file, const AdapterBase& base,
              const AdapterLoadOptions& options, const std::string& config_path)
      : peft_(peft),
        matcher_(std::move(matcher)),
        file_(file),
        base_(base),
        config_(base.config),
        strict_(options.strict),
        path_(file.weights_path),
        config_path_(config_path),
        plan_(base.config, options) {}

  Result<LoadPlan> plan() {
    find_inside();
    // What the config names first: a wrong config explains wrong tensors.
    TRY(check_saved_names());
    TRY(find_targets());
    TRY(sort_tensors());
    TRY(settle_copies());
    TRY(plan_saved());
    TRY(plan_pairs());
    TRY(plan_stacks());
    TRY(plan_tied_head());
    TRY(plan_biases());
    TRY(plan_tokens());
    plan_.alora_invocation = peft_.alora_invocation;
    return std::move(plan_);
  }
  // Before the tensors, so that a wrong config is reported first.
  Status note_config(const std::vector<std::string>& foreign) {
    for (const std::string& line : peft_.refused) plan_.report.push_back(line);
    for (const std::string& line : peft_.notes) plan_.report.push_back(line);
    note_made_for(peft_.base_model, base_, plan_);
    for (const std::string& name : foreign) {
      TRY(refuse(path_, "tensor \"" + name +
                            "\" is in a number format that cannot be computed with (F64, F32, F16 and BF16 can)"));
    }
    return {};
  }

 private:
  Status refuse(const std::string& place, const std::string& sentence) {
    if (strict_) return unsupported(place + ": " + sentence);
    if (plan_.report.size() < 1000) plan_.report.push_back("Not applied: " + sentence + ".");
    return {};
  }

  ModuleTensors* find(const std::string& key) {
    const auto it = modules_.find(key);
    return it == modules_.end() ? nullptr : &it->second;
  }

  Status sort_tensors() {
    for (const TensorInfo& tensor : file_.tensors) {
      TensorRef ref = parse_peft_name(tensor.name, config_);
      TRY(one_adapter(ref.adapter));
      ModuleTensors entry{.module = ref.module};
      ModuleTensors& module = modules_.emplace(ref.module.key, std::move(entry)).first->second;
      module.module.unembed |= ref.module.unembed;
      const TensorInfo** slot = slot_of(module, ref.part);
      if (!slot) {
        if (module.module.site == Site::kUnknown) modules_.erase(ref.module.key);
        TRY(refuse(path_, "tensor \"" + tensor.name + "\" is not one that a LoRA adapter of this base model can have"));
        continue;
      }
      if (*slot)
        return corrupt(path_ + ": tensors \"" + (*slot)->name + "\" and \"" + tensor.name + "\" mean the same");
      *slot = &tensor;
    }
    return {};
  }

  // Which of several was meant nobody can know.
  Status one_adapter(const std::string& name) {
    if (name.empty()) return {};
    if (adapter_.empty()) adapter_ = name;
    if (adapter_ == name) return {};
    return invalid_argument(path_ + ": holds tensors of two adapters, \"" + adapter_.substr(0, 100) + "\" and \"" +
                            name.substr(0, 100) + "\"; save the one that is meant alone");
  }

  // Where a tensor belongs; null where this module can have none such.
  static const TensorInfo** slot_of(ModuleTensors& module, Part part) {
    const Site site = module.module.site;
    const bool linear = site == Site::kLinear || site == Site::kQkv || site == Site::kGateUp || is_of_experts(site);
    const bool vocab = site == Site::kHead || site == Site::kEmbed;
    switch (part) {
      case Part::kLoraA:
        return linear || site == Site::kHead ? &module.pair.a : nullptr;
      case Part::kLoraB:
        return linear || site == Site::kHead ? &module.pair.b : nullptr;
      case Part::kLoraBBias:
        return linear || site == Site::kHead ? &module.pair.b_bias : nullptr;
      case Part::kEmbedA:
        return site == Site::kEmbed ? &module.pair.a : nullptr;
      case Part::kEmbedB:
        return site == Site::kEmbed ? &module.pair.b : nullptr;
      case Part::kBias:
        return site == Site::kLinear ? &module.bias : nullptr;
      case Part::kTokens:
        return vocab ? &module.tokens : nullptr;
      case Part::kWeight:
        return linear ? nullptr : &module.weight;
      case Part::kBaseWeight:
        module.base_layer |= vocab;
        return vocab ? &module.weight : nullptr;
      case Part::kSavedCopy:
        return linear ? nullptr : &module.copy;
      case Part::kOriginal:
        return linear ? nullptr : &module.original;
      case Part::kUnknown:
        break;
    }
    return nullptr;
  }

  // A module in modules_to_save may be in the file with all it has: the weight under two
  // names, and what it was before. That is what the other one of a tied pair still reads.
  Status settle_copies() {
    std::vector<ModuleTensors*> saved;
    for (auto& [key, module] : modules_) {
      if (!module.copy && !module.original) continue;
      if (saves(module.module)) {
        if (!module.weight) module.weight = std::exchange(module.copy, nullptr);
        saved.push_back(&module);
        continue;
      }
      const TensorInfo& first = module.copy ? *module.copy : *module.original;
      TRY(refuse(path_, "tensor \"" + first.name + "\" is not named by \"modules_to_save\""));
    }
    int unused = 0;
    for (ModuleTensors* module : saved) {
      ModuleTensors* twin = untied_twin(module->module.site);
      if (module->original && twin && !twin->weight) twin->weight = std::exchange(module->original, nullptr);
      unused += (module->copy != nullptr) + (module->original != nullptr);
    }
    if (unused > 0) {
      plan_.report.push_back(std::to_string(unused) +
                             " tensors named modules_to_save or original_module repeat what else is in the file; they "
                             "are not used, as in PEFT.");
    }
    return {};
  }

  // The head of a tied model for its embedding and the other way round, where the adapter
  // does not change both as one.
  ModuleTensors* untied_twin(Site site) {
    if (!config_.tied_head || peft_.ensure_weight_tying || (site != Site::kEmbed && site != Site::kHead))
      return nullptr;
    const std::string key = site == Site::kEmbed ? "lm_head" : "model.embed_tokens";
    return &modules_.emplace(key, ModuleTensors{.module = parse_module(key, config_)}).first->second;
  }

  // Every entry of modules_to_save must mean modules that can be replaced,
  // and nothing else.
  Status check_saved_names() {
    for (const std::string& name : peft_.modules_to_save) {
      const auto ends_so = [&](const ModuleRef& module) {
        return !name.empty() && module.key.size() >= name.size() &&
               module.key.compare(module.key.size() - name.size(), name.size(), name) == 0;
      };
      const auto savable = savable_modules(config_);
      const auto linear = lora_modules(config_);
      const bool some = std::any_of(savable.begin(), savable.end(), ends_so);
      const bool other = std::any_of(linear.begin(), linear.end(),
                                     [&](const ModuleRef& module) { return module.layer >= 0 && ends_so(module); });
      if (some && !other) continue;
      TRY(refuse(config_path_, "\"modules_to_save\" names \"" + name.substr(0, 100) +
                                   "\", but only embed_tokens, lm_head and the norms can be replaced"));
    }
    return {};
  }

  Status plan_saved() {
    for (const ModuleRef& ref : savable_modules(config_)) {
      ModuleTensors* module = find(ref.key);
      const bool asked = saves(ref);
      if (!module || !module->weight) {
        if (asked && !tied_follower(ref)) {
          TRY(refuse(path_, "modules_to_save asks for " + ref.key + ", but its tensor \"base_model.model." + ref.key +
                                ".weight\" is missing"));
        }
        continue;
      }
      // PEFT saves embedding and head on its own account when they are trained or resized
      // (save_embedding_layers).
      const bool own_account = ref.site == Site::kHead || ref.site == Site::kEmbed;
      if (!asked && !own_account) {
        TRY(refuse(path_, "tensor \"" + module->weight->name + "\" is not named by \"modules_to_save\""));
        continue;
      }
      TRY(plan_saved_tensor(ref, *module->weight));
      if (!asked) saved_on_own_account_ = true;
    }
    return settle_vocab();
  }

  // modules_to_save, where ensure_weight_tying means both of a tied pair with one.
  bool saves(const ModuleRef& ref) const {
    const bool vocab = ref.site == Site::kHead || ref.site == Site::kEmbed;
    if (!vocab || !config_.tied_head || !peft_.ensure_weight_tying) return matcher_.saves(as_named(ref.key));
    return matcher_.saves("lm_head") || matcher_.saves("model.embed_tokens");
  }

  bool tied_follower(const ModuleRef& ref) const {
    return ref.site == Site::kHead && config_.tied_head && peft_.ensure_weight_tying;
  }

  Status plan_saved_tensor(const ModuleRef& ref, const TensorInfo& tensor) {
    const float plus = config_.norm_plus_one ? 1.0f : 0.0f;
    TRY_ASSIGN(const bool norm, plan_norm(config_, ref, tensor, plus, path_, plan_));
    if (norm) return {};
    ++plan_.modules[module_name(ref)];
    SavedMatrix& matrix = ref.site == Site::kEmbed ? plan_.embed : plan_.head;
    // Any number of rows: the vocabulary may have been resized. Both must
    // agree in the end.
    const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0];
    if (rows < 1 || rows > kMaxVocab)
      return corrupt(path_ + ": tensor \"" + tensor.name + "\" has an impossible number of rows");
    const DType dtype = is_quantised(tensor.dtype) ? DType::kF32 : tensor.dtype;
    TRY_ASSIGN(matrix.offset, plan_whole(tensor, {rows, config_.hidden}, dtype, plan_.layer_of(ref), path_, plan_));
    matrix.dtype = dtype;
    matrix.rows = static_cast<int>(rows);
    return {};
  }

  Status settle_vocab() {
    // A tied head follows an embedding that was saved as part of the base model, or
    // that was trained tied.
    const bool follows = config_.tied_head && (peft_.ensure_weight_tying || saved_on_own_account_);
    if (follows && plan_.embed.offset >= 0 && plan_.head.offset < 0) plan_.head = plan_.embed;
    const int embed = plan_.embed.offset >= 0 ? plan_.embed.rows : config_.vocab;
    const int head = plan_.head.offset >= 0 ? plan_.head.rows : config_.vocab;
    if (embed != head) {
      return invalid_argument(path_ + ": the embedding has " + std::to_string(embed) + " rows and the head " +
                              std::to_string(head) +
                              "; an adapter that resizes the vocabulary must hold both embed_tokens and lm_head");
    }
    plan_.vocab = embed;
    if (embed != config_.vocab) {
      plan_.report.push_back("The vocabulary is resized from " + std::to_string(config_.vocab) + " to " +
                             std::to_string(embed) + ".");
    }
    return {};
  }

  Status find_targets() {
    for (const ModuleRef& ref : lora_modules(config_)) {
      const bool linear = ref.site == Site::kLinear || is_of_experts(ref.site);
      TRY_ASSIGN(bool targeted, matcher_.targets(as_named(ref.key), linear));
      if (ref.site == Site::kRouter && matcher_.targets_parameter(router_parameter(config_, ref.layer)))
        targeted = true;
      targeted_.push_back(targeted);
    }
    TRY(find_stacks());
    find_tied_pair();
    const std::vector<std::string> unused = matcher_.unused_targets();
    if (unused.empty()) return {};
    const bool none = unused.size() == peft_.target_names.size();
    const std::vector<std::string> keys = keys_in_file();
    for (size_t i = 0; i < unused.size(); ++i) {
      const std::string which = "\"target_modules\" names \"" + unused[i].substr(0, 100) + "\"";
      // A list may be made for many models. As in PEFT it must mean something here;
      // of the others nothing is lost.
      if (!none && i < kUnusedTargetsMax && !names_one_of(keys, unused[i])) {
        plan_.report.push_back(which +
                               ", which this base model lacks; the file holds no tensor for it, so nothing is "
                               "left out.");
        continue;
      }
      TRY(refuse(config_path_, which + ", which is no linear module or embedding of this base model"));
    }
    return {};
  }

  // Parameters of all experts of a layer that the config means.
  Status find_stacks() {
    for (int layer = 0; layer < config_.layers; ++layer) {
      if (!has_experts(config_, layer)) continue;
      for (const bool down : {false, true}) {
        if (matcher_.targets_parameter(expert_parameter(layer, down)))
          stacks_.push_back({layer, down, expert_parameter(layer, down)});
      }
    }
    for (const std::string& name : matcher_.unused_parameters()) {
      TRY(refuse(config_path_, "\"target_parameters\" names \"" + name.substr(0, 100) +
                                   "\"; LoRA on parameters that are not linear modules is known of experts and their "
                                   "router (mlp.experts.gate_up_proj, mlp.experts.down_proj, mlp.gate.weight or "
                                   "mlp.router.weight), and this base model has none of that name"));
    }
    return {};
  }

  // Of two of a layer that of down_proj is the outer one.
  Status plan_stacks() {
    for (const ExpertStack& stack : stacks_) {
      const std::string outer = "model.layers." + std::to_string(stack.layer) + ".mlp.experts";
      const bool both = std::count_if(stacks_.begin(), stacks_.end(),
                                      [&](const ExpertStack& other) { return other.layer == stack.layer; }) == 2;
      const std::string key = both && !stack.down ? outer + ".base_layer" : outer;
      ModuleTensors* const module = find(key);
      if (module == nullptr || (!module->pair.a && !module->pair.b)) {
        TRY(refuse(path_, "\"target_parameters\" targets " + stack.key + ", but \"base_model.model." + key +
                              ".lora_A.weight\" is missing"));
        continue;
      }
      module->taken = true;
      TRY_ASSIGN(const int rank, matcher_.rank(stack.key));
      TRY_ASSIGN(const double scaling, matcher_.scaling(stack.key));
      TRY(plan_expert_stack(config_, stack, module->pair, rank, scaling, path_, plan_));
    }
    for (const auto& [key, module] : modules_) {
      if (module.module.site != Site::kExpertStack || module.taken) continue;
      const TensorInfo* const first = module.pair.a   ? module.pair.a
                                      : module.pair.b ? module.pair.b
                                                      : module.pair.b_bias;
      if (first == nullptr) continue;
      TRY(refuse(path_, "tensor \"" + first->name + "\" is for a parameter that \"target_parameters\" does not name"));
    }
    return {};
  }

  std::vector<std::string> keys_in_file() const {
    std::vector<std::string> keys;
    for (const TensorInfo& tensor : file_.tensors) {
      std::string key = parse_peft_name(tensor.name, config_).module.key;
      if (keys.empty() || keys.back() != key) keys.push_back(std::move(key));
    }
    return keys;
  }

  static bool names_one_of(const std::vector<std::string>& keys, const std::string& target) {
    return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) { return is_module_name(target, key); });
  }

  // With ensure_weight_tying LoRA on one of a tied pair is LoRA on the embedding, and
  // the head's pair is that one seen the other way (PEFT: LoraModel._add_targets_to_tie).
  // Modules that are saved whole come first.
  void find_tied_pair() {
    if (!config_.tied_head || !peft_.ensure_weight_tying) return;
    if (matcher_.saves("lm_head") || matcher_.saves("model.embed_tokens")) return;
    std::vector<bool>::reference head = targeted_[targeted_.size() - 2], embed = targeted_.back();
    tied_pair_ = head || embed;
    head = embed = tied_pair_;
  }

  // "all-linear" is what some trainers write whatever they trained (PEFT then has pairs
  // that change nothing): a kind of module that the file has in no layer is noted once.
  std::set<std::string> untrained_kinds(const std::vector<ModuleRef>& modules) {
    std::set<std::string> kinds;
    if (!peft_.all_linear) return kinds;
    for (const ModuleRef& ref : modules)
      if (ref.site == Site::kLinear || is_of_experts(ref.site)) kinds.insert(module_name(ref));
    for (const ModuleRef& ref : modules) {
      const ModuleTensors* module = find(ref.key);
      if ((module && (module->pair.a || module->pair.b)) || covered_by_fused(ref)) kinds.erase(module_name(ref));
    }
    if (!kinds.empty()) {
      plan_.report.push_back("\"target_modules\" is \"all-linear\", and the file has no tensors of " +
                             join({kinds.begin(), kinds.end()}) + ": these are left as they are, as in PEFT.");
    }
    return kinds;
  }

  // To newer versions of transformers single experts are no modules, and a name that PEFT
  // shortened means the shared expert alone. So it does where the file has none of a
  // single expert.
  std::set<std::string> names_of_shared(const std::vector<ModuleRef>& modules) {
    std::set<std::string> names;
    for (const ModuleRef& ref : modules) {
      const ModuleTensors* module = find(ref.key);
      if (module == nullptr || (!module->pair.a && !module->pair.b)) continue;
      if (ref.site == Site::kExpertMatrix) return {};
      if (ref.key.find(".mlp.shared_expert.") != std::string::npos) names.insert(module_name(ref));
    }
    return names;
  }

  Status plan_pairs() {
    std::vector<std::string> missing;
    const std::vector<ModuleRef> modules = lora_modules(config_);
    const std::set<std::string> untrained = untrained_kinds(modules), shared = names_of_shared(modules);
    for (size_t i = 0; i < modules.size(); ++i) {
      const ModuleRef& ref = modules[i];
      const bool targeted = targeted_[i];
      ModuleTensors* module = find(ref.key);
      const bool fused = is_fused(ref);
      TRY_ASSIGN(const bool wanted_otherwise, wanted_by_other_name(module));
      const bool wanted = targeted || wanted_otherwise;
      if (module && wanted) TRY(drop_bias_not_asked(module->pair));
      const bool has = module && (module->pair.a || module->pair.b || module->pair.b_bias);
      if (!has) {
        // A pattern may mean a fused name by accident; a list names it on purpose.
        const bool meant = !fused || !peft_.target_names.empty();
        const bool fine = covered_by_fused(ref) || (tied_pair_ && ref.site == Site::kHead) ||
                          untrained.contains(module_name(ref)) ||
                          (ref.site == Site::kExpertMatrix && shared.contains(module_name(ref)));
        if (targeted && meant && !fine) missing.push_back(ref.key);
        continue;
      }
      if (!wanted) {
        const TensorInfo* first = module->pair.a   ? module->pair.a
                                  : module->pair.b ? module->pair.b
                                                   : module->pair.b_bias;
        TRY(refuse(path_, "tensor \"" + first->name +
                              "\" is for a module that the config does not target (target_modules, exclude_modules, "
                              "layers_to_transform)"));
        continue;
      }
      TRY(plan_one(ref, module->pair));
    }
    if (!missing.empty()) {
      const size_t count = missing.size();
      missing.resize(std::min<size_t>(count, 3));
      TRY(refuse(path_, "\"target_modules\" targets " + std::to_string(count) +
                            " modules without tensors in the file (" + join(missing) + (count > 3 ? ", ...)" : ")")));
    }
    return {};
  }

  static bool is_fused(const ModuleRef& ref) { return ref.site == Site::kQkv || ref.site == Site::kGateUp; }

  // A fused projection, or a head that the file calls unembed_tokens, is a linear module
  // of the model it was trained on.
  Result<bool> wanted_by_other_name(const ModuleTensors* module) {
    if (module == nullptr) return false;
    if (is_fused(module->module)) return peft_.all_linear;
    if (!module->module.unembed) return false;
    return matcher_.targets("model.unembed_tokens", true);
  }

  // Before it is asked what the module has: with this bias alone it has no pair.
  Status drop_bias_not_asked(PairTensors& pair) {
    if (!pair.b_bias || peft_.lora_bias) return {};
    TRY(refuse(path_, "tensor \"" + pair.b_bias->name + "\" is there, but the config says \"lora_bias\": false"));
    pair.b_bias = nullptr;
    return {};
  }

  Status plan_one(const ModuleRef& ref, const PairTensors& pair) {
    if (ref.site == Site::kEmbed && peft_.lora_bias) {
      return unsupported(config_path_ + ": \"lora_bias\": true is not defined for embed_tokens (PEFT refuses it too)");
    }
    if (!pair.b_bias && peft_.lora_bias) {
      return corrupt(path_ + ": the config says \"lora_bias\": true, but lora_B.bias of " + ref.key + " is missing");
    }
    TRY_ASSIGN(const int rank, matcher_.rank(as_named(ref.key)));
    TRY_ASSIGN(const double scaling, matcher_.scaling(as_named(ref.key)));
    const PairOptions options{.rank_wanted = rank,
                              .scaling = scaling,
                              .vocab = plan_.vocab,
                              .row_order_of = &rows_as_in_base,
                              .col_order_of = &cols_as_in_base};
    return plan_pair(config_, ref, pair, options, path_, plan_);
  }

  // The module as the adapter's config means it: where the base's text model stands
  // inside of another one, paths may begin with that one's.
  std::string as_named(const std::string& key) const {
    if (inside_.empty()) return key;
    if (key.starts_with("model.")) return inside_ + key.substr(6);
    return inside_ == "language_model.model." ? "language_model." + key : key;
  }

  void find_inside() {
    for (const TensorInfo& tensor : file_.tensors) {
      for (const char* inside : {"model.language_model.", "language_model.model."}) {
        if (tensor.name.find(inside) == std::string::npos) continue;
        inside_ = inside;
        return;
      }
    }
  }

  // The fused twin of a q, k, v, gate or up projection brings its tensors.
  bool covered_by_fused(const ModuleRef& ref) {
    if (ref.site != Site::kLinear) return false;
    const std::string prefix = "model.layers." + std::to_string(ref.layer);
    const bool qkv = ref.module == Module::kQ || ref.module == Module::kK || ref.module == Module::kV;
    const bool gate_up = ref.module == Module::kGate || ref.module == Module::kUp;
    const ModuleTensors* fused = qkv       ? find(prefix + ".self_attn.qkv_proj")
                                 : gate_up ? find(prefix + ".mlp.gate_up_proj")
                                           : nullptr;
    return fused && fused->pair.a;
  }

  Status plan_tied_head() {
    if (!tied_pair_) return {};
    const PairPlan& embed = plan_.pair(-1, Module::kEmbed);
    PairPlan& head = plan_.pair(-1, Module::kLmHead);
    if (embed.rank == 0 || head.rank > 0) return {};
    // PEFT: lora_A of the head is lora_embedding_B transposed, lora_B is lora_embedding_A
    // transposed (lora/model.py, tied_adapter).
    head = embed;
    head.a = embed.b_t;
    head.b_t = plan_.reserve(embed.rank * row_bytes(embed.dtype, embed.in));
    std::swap(head.in, head.out);
    TRY_ASSIGN(const double scaling, matcher_.scaling("lm_head"));
    head.scaling = static_cast<float>(scaling);
    plan_.head_pair_from_embed = true;
    plan_.report.push_back("The head shares the embedding's pair (ensure_weight_tying).");
    return {};
  }

  Status plan_biases() {
    for (auto& [key, module] : modules_) {
      if (!module.bias) continue;
      bool asked = peft_.bias == PeftBias::kAll;
      if (peft_.bias == PeftBias::kLoraOnly) {
        TRY_ASSIGN(asked, matcher_.targets(as_named(key), true));
      }
      if (!asked) {
        TRY(refuse(path_,
                   "tensor \"" + module.bias->name + "\" replaces a bias that the config's \"bias\" does not name"));
        continue;
      }
      if (!base_.bias)
        return unsupported(path_ + ": replaces biases of the base model, and the base's biases are not at hand");
      if (!base_.bias(base_.bias_context, module.module.layer, module.module.module)) {
        TRY(refuse(path_,
                   "tensor \"" + module.bias->name + "\" replaces a bias, but " + key + " of the base model has none"));
        continue;
      }
      const ModuleShape shape = linear_shape(config_, module.module.layer, module.module.module);
      PairPlan& pair = plan_.pair(module.module.layer, module.module.module);
      TRY_ASSIGN(pair.bias,
                 plan_whole(*module.bias, {shape.out}, DType::kF32, plan_.layer_of(module.module), path_, plan_));
      plan_.placements.back().row_order = rows_as_in_base(config_, module.module.layer, module.module.module);
      pair.in = shape.in;
      pair.out = shape.out;
      ++plan_.modules["bias"];
    }
    return {};
  }

  Status plan_tokens() {
    const std::vector<TokenId>* of_embed = nullptr;
    const std::vector<TokenId>* of_head = nullptr;
    for (const auto& entry : peft_.trainable_tokens) {
      const std::string& name = entry.first;
      const std::vector<TokenId>& ids = entry.second;
      const auto means = [&](const std::string& key) {
        return key.size() >= name.size() && !name.empty() &&
               key.compare(key.size() - name.size(), name.size(), name) == 0;
      };
      if (means("model.embed_tokens") && !of_embed)
        of_embed = &ids;
      else if (means("lm_head") && !of_head)
        of_head = &ids;
      else {
        TRY(refuse(config_path_, "\"trainable_token_indices\" names \"" + name.substr(0, 100) +
                                     "\", but only embed_tokens and lm_head have token rows"));
      }
    }
    const bool equal = of_embed && of_head && *of_embed == *of_head;
    if (config_.tied_head && peft_.ensure_weight_tying && of_embed && of_head && !equal) {
      return invalid_argument(config_path_ +
                              ": \"trainable_token_indices\" differ between embed_tokens and lm_head, which "
                              "\"ensure_weight_tying\" forbids");
    }
    if (of_embed) TRY(plan_token_rows("model.embed_tokens", *of_embed, plan_.embed_tokens, plan_.embed_rows));
    const bool follows = config_.tied_head && of_embed && (!of_head || equal);
    if (follows) {
      plan_.head_tokens = plan_.embed_tokens;
      plan_.head_rows = plan_.embed_rows;
    } else if (of_head) {
      TRY(plan_token_rows("lm_head", *of_head, plan_.head_tokens, plan_.head_rows));
    }
    for (const char* key : {"model.embed_tokens", "lm_head"}) {
      const ModuleTensors* module = find(key);
      const bool wanted = std::string_view(key) == "lm_head" ? of_head && !follows : of_embed != nullptr;
      const bool repeats = follows && std::string_view(key) == "lm_head";  // the embedding's, saved once more
      if (module && module->tokens && !wanted && !repeats) {
        TRY(refuse(path_, "tensor \"" + module->tokens->name + "\" is not named by \"trainable_token_indices\""));
      }
    }
    return {};
  }

  Status plan_token_rows(const std::string& key, const std::vector<TokenId>& ids, std::vector<TokenId>& tokens,
                         int64_t& rows) {
    if (matcher_.saves(as_named(key))) {
      return invalid_argument(
          config_path_ + ": " + key +
          " stands in \"modules_to_save\" and in \"trainable_token_indices\" (PEFT refuses it too)");
    }
    ModuleTensors* module = find(key);
    if (module && (module->pair.a || module->pair.b)) {
      TRY(refuse(config_path_, "\"trainable_token_indices\" together with LoRA on " + key + " is not supported"));
    }
    if (!module || !module->tokens) {
      return refuse(path_, "\"trainable_token_indices\" asks for rows of " + key + ", but \"base_model.model." + key +
                               ".token_adapter.trainable_tokens_delta\" is missing");
    }
    for (const TokenId id : ids) {
      if (id < plan_.vocab) continue;
      return invalid_argument(config_path_ + ": \"trainable_token_indices\" names token " + std::to_string(id) +
                              ", but the vocabulary has " + std::to_string(plan_.vocab));
    }
    TRY_ASSIGN(rows, plan_whole(*module->tokens, {static_cast<int64_t>(ids.size()), config_.hidden}, DType::kF32,
                                plan_.layer_of(module->module), path_, plan_));
    std::vector<int32_t> by_id(ids.size());
    std::iota(by_id.begin(), by_id.end(), 0);
    std::sort(by_id.begin(), by_id.end(),
              [&](int32_t x, int32_t y) { return ids[static_cast<size_t>(x)] < ids[static_cast<size_t>(y)]; });
    std::vector<int32_t>& order = plan_.placements.back().row_order;
    order.resize(ids.size());
    for (size_t place = 0; place < by_id.size(); ++place) {
      order[static_cast<size_t>(by_id[place])] = static_cast<int32_t>(place);
      tokens.push_back(ids[static_cast<size_t>(by_id[place])]);
    }
    ++plan_.modules["trainable_tokens"];
    return {};
  }

  const PeftConfig& peft_;
  PeftMatcher matcher_;
  const AdapterFile& file_;
  const AdapterBase& base_;
  const ModelConfig& config_;
  const bool strict_;
  const std::string& path_;
  const std::string& config_path_;
  LoadPlan plan_;
  std::map<std::string, ModuleTensors> modules_;  // by canonical key
  std::vector<bool> targeted_;                    // as lora_modules()
  std::vector<ExpertStack> stacks_;               // that are targeted
  bool saved_on_own_account_ = false;
  bool tied_pair_ = false;  // the head's pair is the embedding's
  std::string adapter_;     // the name that the file's tensors have for the adapter
  std::string inside_;      // where its base has the text model; empty: everywhere
};

}  // namespace

Result<LoadPlan> plan_peft(const std::string& config_path, const AdapterFile& file,
                           const std::vector<std::string>& foreign, const AdapterBase& base,
                           const AdapterLoadOptions& options) {
  TRY_ASSIGN(const PeftConfig peft, parse_peft_config(file.config_text, config_path, options.strict));
  TRY_ASSIGN(PeftMatcher matcher, PeftMatcher::create(peft, config_path));
  PeftPlanner planner(peft, std::move(matcher), file, base, options, config_path);
  TRY(planner.note_config(foreign));
  return planner.plan();
}

}  // namespace loralei

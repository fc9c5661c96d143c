// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_load.h"

#include <algorithm>

#include "base/limits.h"

namespace loralei {

namespace {

constexpr int64_t kBuildFactor = 2;  // lists of tokens are copied and sorted while one is made

// Special tokens that the configuration names and the vocabulary has are special added
// tokens, as transformers makes them.
void add_named_specials(const TokenizerSettings& settings, const TokenTable& table, std::vector<AddedToken>& added) {
  std::vector<std::string> names = settings.additional_special_tokens;
  for (const auto& [key, text] : settings.special_tokens) names.push_back(text);
  for (const std::string& text : names) {
    const auto id = table.find(text);
    if (!id) continue;
    const auto known =
        std::find_if(added.begin(), added.end(), [&](const AddedToken& token) { return token.id == *id; });
    if (known != added.end()) continue;
    AddedToken token;
    token.id = *id;
    token.content = text;
    token.special = true;
    added.push_back(std::move(token));
  }
}

// add_bos_token and add_eos_token, where stated, replace what the post-processor does.
Status apply_frame(const TokenizerConfig& config, const TokenizerSettings& settings, const AddedTokens& added,
                   const TokenTable& table, LoadedCore& loaded) {
  if (!config.add_bos && !config.add_eos) return {};
  const auto find = [&](const char* key) -> Result<TokenId> {
    const auto text = settings.special_tokens.find(key);
    if (text == settings.special_tokens.end()) return TokenId{-1};  // transformers adds nothing, then
    if (const AddedToken* token = added.find(std::string_view(text->second))) return token->id;
    if (const auto id = table.find(text->second)) return *id;
    return corrupt(std::string("the ") + key + " '" + text->second.substr(0, 100) +
                   "' of the tokenizer is not in its vocabulary");
  };
  loaded.prefix_ids.clear();
  loaded.suffix_ids.clear();
  if (config.add_bos.value_or(false)) {
    TRY_ASSIGN(const TokenId bos, find("bos_token"));
    if (bos >= 0) loaded.prefix_ids.push_back(bos);
  }
  if (config.add_eos.value_or(false)) {
    TRY_ASSIGN(const TokenId eos, find("eos_token"));
    if (eos >= 0) loaded.suffix_ids.push_back(eos);
  }
  return {};
}

// An added token may name a piece of the vocabulary or a free id, but not put another
// text on a piece; an adapter may rename what was an added token of its base (`base`;
// null for the base itself), as fine-tuning does with reserved tokens.
Status check_against_table(const std::vector<AddedToken>& added, const AddedTokens* base, const TokenTable& table) {
  for (const AddedToken& token : added) {
    if (base != nullptr && base->find(token.id) != nullptr) continue;
    const std::string name = "the added token '" + token.content.substr(0, 100) + "'";
    const auto id = table.find(token.content);
    if (id && *id != token.id && table.text(token.id) != token.content) {
      return corrupt(name + " has the id " + std::to_string(token.id) + ", but the vocabulary gives it " +
                     std::to_string(*id));
    }
    if (table.has(token.id) && table.text(token.id) != token.content) {
      return corrupt(name + " has the id " + std::to_string(token.id) + ", which is '" +
                     std::string(table.text(token.id).substr(0, 100)) + "' in the vocabulary");
    }
  }
  return {};
}

Result<std::shared_ptr<const AddedTokens>> build_added(std::vector<AddedToken> added, const TokenizerCore& core) {
  if (core.finds_added_as_written) {
    for (AddedToken& token : added) token.normalized = false;
  }
  return AddedTokens::build(std::move(added), core.normalizer, core.decoder, core.added_are_text);
}

void merge_settings(TokenizerSettings& base, const TokenizerSettings& over) {
  for (const auto& [key, text] : over.special_tokens) base.special_tokens[key] = text;
  if (!over.additional_special_tokens.empty()) base.additional_special_tokens = over.additional_special_tokens;
  if (!over.tokenizer_class.empty()) base.tokenizer_class = over.tokenizer_class;
  // Named ones belong to the default one beside them.
  if (over.chat_template && base.chat_template != over.chat_template) base.named_templates.clear();
  if (over.chat_template) base.chat_template = over.chat_template;
  for (const auto& [name, text] : over.named_templates) base.named_templates[name] = text;
}

}  // namespace

Result<Tokenizer::Ptr> assemble_tokenizer(LoadedCore loaded, const TokenizerConfig& config) {
  TRY(merge_added_tokens(loaded.added, config.added, MergeMode::kReplace));
  TRY(merge_added_tokens(loaded.added, config.plain_added, MergeMode::kFill));
  Tokenizer::Parts parts;
  parts.settings.special_tokens = std::move(loaded.special_tokens);
  if (!loaded.chat_template.empty()) parts.settings.chat_template = std::move(loaded.chat_template);
  if (!loaded.tool_template.empty()) parts.settings.named_templates["tool_use"] = std::move(loaded.tool_template);
  merge_settings(parts.settings, config.settings);
  add_named_specials(config.settings, loaded.core->table, loaded.added);
  TRY(check_against_table(loaded.added, nullptr, loaded.core->table));
  TRY_ASSIGN(parts.added, build_added(std::move(loaded.added), *loaded.core));
  TRY(apply_frame(config, parts.settings, *parts.added, loaded.core->table, loaded));
  const TokenId end = std::max(loaded.core->table.size(), parts.added->highest_id() + 1);
  for (const auto* ids : {&loaded.prefix_ids, &loaded.suffix_ids}) {
    for (const TokenId id : *ids) {
      if (id >= end)
        return corrupt("the post_processor of the tokenizer adds the id " + std::to_string(id) +
                       ", which is not in its vocabulary");
    }
  }
  parts.core = std::move(loaded.core);
  parts.prefix_ids = std::move(loaded.prefix_ids);
  parts.suffix_ids = std::move(loaded.suffix_ids);
  parts.more_end_ids = std::move(loaded.more_end_ids);
  return Tokenizer::Ptr(std::make_shared<const Tokenizer>(std::move(parts)));
}

Result<Tokenizer::Ptr> Tokenizer::from_json(std::string_view tokenizer_json, std::string_view tokenizer_config) {
  TokenizerConfig config;
  if (!tokenizer_config.empty()) TRY(read_config_json(tokenizer_config, config));
  TRY_ASSIGN(LoadedCore loaded, load_tokenizer_json(tokenizer_json));
  return assemble_tokenizer(std::move(loaded), config);
}

Result<Tokenizer::Ptr> Tokenizer::from_sentencepiece(std::string_view model, std::string_view tokenizer_config) {
  TokenizerConfig config;
  if (!tokenizer_config.empty()) TRY(read_config_json(tokenizer_config, config));
  TRY_ASSIGN(LoadedCore loaded, load_sentencepiece(model, config));
  return assemble_tokenizer(std::move(loaded), config);
}

Result<Tokenizer::Ptr> Tokenizer::from_gguf(const GgufVocab& vocab) {
  TRY_ASSIGN(LoadedCore loaded, load_gguf_vocab(vocab));
  return assemble_tokenizer(std::move(loaded), TokenizerConfig{});
}

Result<Tokenizer::Ptr> Tokenizer::from_directory(const std::filesystem::path& directory) {
  const PosixFileSystem files;
  TRY_ASSIGN(const TokenizerConfig config, read_tokenizer_config(files, directory.string()));
  const auto json_path = directory / "tokenizer.json", model_path = directory / "tokenizer.model";
  const auto load = [&]() -> Result<Ptr> {
    TRY_ASSIGN(const auto json, read_optional_file(files, json_path.string(), kMaxJsonBytes));
    if (json) {
      TRY_ASSIGN(LoadedCore loaded, load_tokenizer_json(*json));
      return assemble_tokenizer(std::move(loaded), config);
    }
    TRY_ASSIGN(const auto model, read_optional_file(files, model_path.string(), kMaxJsonBytes));
    if (!model) return not_found("there is neither tokenizer.json nor tokenizer.model");
    TRY_ASSIGN(LoadedCore loaded, load_sentencepiece(*model, config));
    return assemble_tokenizer(std::move(loaded), config);
  };
  Result<Ptr> result = load();
  if (!result.ok()) return std::move(result).error().with_context("in the model folder " + directory.string());
  return result;
}

Result<Tokenizer::Ptr> Tokenizer::with_added_tokens(const FileSystem& files, const std::string& adapter_directory,
                                                    const TakeMemory& take) const {
  const auto load = [&]() -> Result<Ptr> {
    const TokenizerFileLimits limits = TokenizerFileLimits::of_adapter(take);
    TRY_ASSIGN(const TokenizerConfig config, read_tokenizer_config(files, adapter_directory, limits));
    TRY_ASSIGN(const auto own, read_added_tokens(files, join_path(adapter_directory, "tokenizer.json"), limits));
    if (own.empty() && !config.present) return shared_from_this();
    if (take) {
      int64_t bytes = 0;
      for (const auto* tokens : {&added_->tokens(), &own, &config.added, &config.plain_added})
        bytes += added_tokens_bytes(*tokens);
      TRY(take(kBuildFactor * bytes));
    }
    std::vector<AddedToken> added = added_->tokens();
    TRY(merge_added_tokens(added, own, MergeMode::kReplace));
    TRY(merge_added_tokens(added, config.added, MergeMode::kReplace));
    TRY(merge_added_tokens(added, config.plain_added, MergeMode::kFill));
    Parts parts;
    parts.core = core_;
    parts.settings = settings_;
    merge_settings(parts.settings, config.settings);
    add_named_specials(config.settings, core_->table, added);
    TRY(check_against_table(added, added_.get(), core_->table));
    TRY_ASSIGN(parts.added, build_added(std::move(added), *core_));
    parts.prefix_ids = prefix_ids_;
    parts.suffix_ids = suffix_ids_;
    parts.more_end_ids = end_ids_;
    return Ptr(std::make_shared<const Tokenizer>(std::move(parts)));
  };
  Result<Ptr> result = load();
  if (!result.ok()) return std::move(result).error().with_context("in the adapter folder " + adapter_directory);
  return result;
}

}  // namespace loralei

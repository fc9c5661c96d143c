// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "base/limits.h"
#include "base/utf8.h"

namespace loralei {

namespace {

constexpr size_t kMaxTemplates = 64;
constexpr int64_t kMaxTemplateBytes = 1 * kMiB;
constexpr std::array<const char*, 7> kSpecialNames{"bos_token", "eos_token", "unk_token", "sep_token",
                                                   "pad_token", "cls_token", "mask_token"};

constexpr int64_t kValuesPerToken = 8;  // an entry of a list of added tokens has seven members
constexpr int64_t kOtherValues = 1 << 16;

// What is read of tokenizer_config.json and special_tokens_map.json.
constexpr std::array<std::string_view, 17> kConfigKeys{"tokenizer_class",
                                                       "bos_token",
                                                       "eos_token",
                                                       "unk_token",
                                                       "sep_token",
                                                       "pad_token",
                                                       "cls_token",
                                                       "mask_token",
                                                       "additional_special_tokens",
                                                       "extra_special_tokens",
                                                       "chat_template",
                                                       "add_bos_token",
                                                       "add_eos_token",
                                                       "legacy",
                                                       "add_prefix_space",
                                                       "split_special_tokens",
                                                       "added_tokens_decoder"};

int64_t values_within(const TokenizerFileLimits& limits) {
  return limits.added_tokens * kValuesPerToken + kOtherValues;
}

Status check_count(size_t count, const TokenizerFileLimits& limits, const char* list) {
  if (static_cast<int64_t>(count) <= limits.added_tokens) return {};
  return too_large(std::string(list) + " of the tokenizer has " + std::to_string(count) + " tokens; at most " +
                   std::to_string(limits.added_tokens) + " are read");
}

// A special token is a string or {"content": ...}.
Result<std::optional<std::string>> special_text(const Json& value, const char* key) {
  if (value.is_string()) return std::optional<std::string>(value.get<std::string>());
  if (const Json* content = json_find(value, "content"); content != nullptr && content->is_string()) {
    return std::optional<std::string>(content->get<std::string>());
  }
  return corrupt(std::string("the key '") + key + "' of the tokenizer's configuration is neither a string nor a token");
}

Status read_special_tokens(const Json& json, TokenizerSettings& settings) {
  for (const char* name : kSpecialNames) {
    const Json* value = json_find(json, name);
    if (value == nullptr) continue;
    TRY_ASSIGN(auto text, special_text(*value, name));
    if (text) settings.special_tokens[name] = std::move(*text);
  }
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json* list = json_find(json, name);
    if (list == nullptr) continue;
    if (!list->is_array() && !list->is_object())
      return corrupt(std::string("the key '") + name + "' of the tokenizer's configuration is not a list");
    for (const Json& value : *list) {
      TRY_ASSIGN(auto text, special_text(value, name));
      auto& all = settings.additional_special_tokens;
      if (text && std::find(all.begin(), all.end(), *text) == all.end()) all.push_back(std::move(*text));
    }
  }
  return {};
}

Status read_chat_template(const Json& json, TokenizerSettings& settings) {
  const Json* value = json_find(json, "chat_template");
  if (value == nullptr) return {};
  if (value->is_string()) {
    settings.chat_template = value->get<std::string>();
    return {};
  }
  if (!value->is_array() || value->size() > kMaxTemplates) {
    return corrupt("the chat_template of the tokenizer is neither a string nor a short list of {name, template}");
  }
  for (const Json& entry : *value) {
    TRY_ASSIGN(const std::string name, field_string(entry, "name", ""));
    TRY_ASSIGN(std::string text, field_string(entry, "template", ""));
    if (name.empty()) return corrupt("a chat template in the tokenizer's list has no name");
    if (name == "default") {
      settings.chat_template = std::move(text);
    } else {
      settings.named_templates[name] = std::move(text);
    }
  }
  return {};
}

Result<std::optional<bool>> optional_bool(const Json& json, const char* key) {
  if (json_find(json, key) == nullptr) return std::optional<bool>();
  TRY_ASSIGN(const bool value, field_bool(json, key, false));
  return std::optional<bool>(value);
}

Status read_added_tokens_decoder(const Json& json, const TokenizerFileLimits& limits, std::vector<AddedToken>& added) {
  const Json* table = json_find(json, "added_tokens_decoder");
  if (table == nullptr) return {};
  if (!table->is_object()) return corrupt("added_tokens_decoder of the tokenizer's configuration is not an object");
  TRY(check_count(table->size(), limits, "added_tokens_decoder"));
  for (const auto& [key, entry] : table->items()) {
    TokenId id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || id < 0) {
      return corrupt("added_tokens_decoder of the tokenizer's configuration has the key '" + key.substr(0, 50) +
                     "', which is not an id");
    }
    TRY_ASSIGN(AddedToken token, parse_added_token(entry, id));
    added.push_back(std::move(token));
  }
  return {};
}

bool names_special(const TokenizerSettings& settings, const std::string& content) {
  const auto& more = settings.additional_special_tokens;
  return std::any_of(settings.special_tokens.begin(), settings.special_tokens.end(),
                     [&](const auto& entry) { return entry.second == content; }) ||
         std::find(more.begin(), more.end(), content) != more.end();
}

// added_tokens.json: {content: id}. Which of them are special, the other files
// have said before.
Status read_added_tokens_file(const FileSystem& files, const std::string& path, const TokenizerFileLimits& limits,
                              TokenizerConfig& config) {
  TRY_ASSIGN(const auto text, read_optional_file(files, path, limits.config_bytes, limits.take));
  if (!text) return {};
  TRY_ASSIGN(const Json json, parse_json_members(*text, path, std::nullopt, values_within(limits), limits.take));
  TRY(check_count(json.size(), limits, "added_tokens.json"));
  for (const auto& [content, value] : json.items()) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocab)) {
      return corrupt(path + " gives the token '" + content.substr(0, 100) + "' no valid id");
    }
    AddedToken token;
    token.id = static_cast<TokenId>(value.get<uint64_t>());
    token.content = content;
    token.special = names_special(config.settings, content);
    token.normalized = !token.special;
    config.plain_added.push_back(std::move(token));
    config.present = true;
  }
  return {};
}

Result<std::optional<std::string>> read_template_file(const FileSystem& files, const std::string& path,
                                                      const TokenizerFileLimits& limits) {
  TRY_ASSIGN(auto text, read_optional_file(files, path, kMaxTemplateBytes, limits.take));
  if (text && !is_valid_utf8(*text)) return corrupt(path + " is not valid UTF-8");
  return text;
}

// chat_template.jinja and additional_chat_templates/NAME.jinja win over what the
// configuration says.
Status read_template_files(const FileSystem& files, const std::string& directory, const TokenizerFileLimits& limits,
                           TokenizerConfig& config) {
  TRY_ASSIGN(auto text, read_template_file(files, join_path(directory, "chat_template.jinja"), limits));
  if (text) {
    config.settings.chat_template = std::move(*text);
    config.present = true;
  }
  const std::string folder = join_path(directory, "additional_chat_templates");
  auto entries = files.list(folder);
  if (!entries.ok()) {
    if (entries.error().code == ErrorCode::kNotFound) return {};
    return std::move(entries).error();
  }
  size_t count = 0;
  for (const DirEntry& entry : *entries) {
    constexpr std::string_view kEnd = ".jinja";
    if (entry.name.size() <= kEnd.size() || !entry.name.ends_with(kEnd)) continue;
    if (++count > kMaxTemplates) return too_large("the folder " + folder + " has too many templates");
    TRY_ASSIGN(auto named, read_template_file(files, join_path(folder, entry.name), limits));
    if (named)
      config.settings.named_templates[entry.name.substr(0, entry.name.size() - kEnd.size())] = std::move(*named);
    config.present = true;
  }
  return {};
}

}  // namespace

Result<AddedToken> parse_added_token(const Json& entry, std::optional<TokenId> id) {
  AddedToken token;
  TRY_ASSIGN(token.content, field_string(entry, "content", ""));
  TRY_ASSIGN(const int64_t stated, field_int(entry, "id", id ? *id : -1));
  if (stated < 0 || stated >= kMaxVocab) {
    return corrupt("the added token '" + token.content.substr(0, 100) + "' has no id in 0.." +
                   std::to_string(kMaxVocab - 1));
  }
  token.id = id ? *id : static_cast<TokenId>(stated);
  TRY_ASSIGN(token.single_word, field_bool(entry, "single_word", false));
  TRY_ASSIGN(token.lstrip, field_bool(entry, "lstrip", false));
  TRY_ASSIGN(token.rstrip, field_bool(entry, "rstrip", false));
  TRY_ASSIGN(token.special, field_bool(entry, "special", false));
  TRY_ASSIGN(token.normalized, field_bool(entry, "normalized", !token.special));
  return token;
}

Result<std::vector<AddedToken>> parse_added_tokens(const Json& tokenizer) {
  std::vector<AddedToken> tokens;
  const Json* list = json_find(tokenizer, "added_tokens");
  if (list == nullptr) return tokens;
  if (!list->is_array()) return corrupt("added_tokens of the tokenizer is not a list");
  for (const Json& entry : *list) {
    TRY_ASSIGN(AddedToken token, parse_added_token(entry, std::nullopt));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

Status merge_added_tokens(std::vector<AddedToken>& tokens, const std::vector<AddedToken>& more, MergeMode mode) {
  std::unordered_map<TokenId, size_t> by_id;
  std::unordered_map<std::string, TokenId> by_content;
  for (size_t i = 0; i < tokens.size(); ++i) {
    by_id[tokens[i].id] = i;
    by_content[tokens[i].content] = tokens[i].id;
  }
  for (const AddedToken& token : more) {
    const auto content = by_content.find(token.content);
    if (content != by_content.end() && content->second != token.id) {
      return corrupt("the added token '" + token.content.substr(0, 100) + "' has the id " +
                     std::to_string(content->second) + " in one file and " + std::to_string(token.id) + " in another");
    }
    const auto same_id = by_id.find(token.id);
    if (same_id != by_id.end() && mode == MergeMode::kFill) {
      if (tokens[same_id->second].content == token.content) continue;
      return corrupt("the id " + std::to_string(token.id) + " is the token '" +
                     tokens[same_id->second].content.substr(0, 100) + "' in one file and '" +
                     token.content.substr(0, 100) + "' in another");
    }
    if (same_id != by_id.end()) {
      by_content.erase(tokens[same_id->second].content);
      tokens[same_id->second] = token;
    } else {
      by_id[token.id] = tokens.size();
      tokens.push_back(token);
    }
    by_content[token.content] = token.id;
  }
  return {};
}

Status read_config_json(std::string_view text, TokenizerConfig& config, const TokenizerFileLimits& limits) {
  TRY_ASSIGN(const Json json,
             parse_json_members(text, "tokenizer_config.json", kConfigKeys, values_within(limits), limits.take));
  config.present = true;
  TRY(read_special_tokens(json, config.settings));
  TRY(read_chat_template(json, config.settings));
  if (const Json* name = json_find(json, "tokenizer_class"); name != nullptr && name->is_string())
    config.settings.tokenizer_class = name->get<std::string>();
  TRY_ASSIGN(config.add_bos, optional_bool(json, "add_bos_token"));
  TRY_ASSIGN(config.add_eos, optional_bool(json, "add_eos_token"));
  TRY_ASSIGN(config.legacy, field_bool(json, "legacy", true));
  TRY_ASSIGN(config.add_prefix_space, field_bool(json, "add_prefix_space", true));
  TRY_ASSIGN(const bool split_special, field_bool(json, "split_special_tokens", false));
  if (split_special)
    return unsupported("the tokenizer's configuration sets split_special_tokens, which is not supported");
  return read_added_tokens_decoder(json, limits, config.added);
}

Result<TokenizerConfig> read_tokenizer_config(const FileSystem& files, const std::string& directory,
                                              const TokenizerFileLimits& limits) {
  TokenizerConfig config;
  const auto map_path = join_path(directory, "special_tokens_map.json");
  TRY_ASSIGN(const auto map_text, read_optional_file(files, map_path, limits.map_bytes, limits.take));
  if (map_text) {
    TRY_ASSIGN(const Json json, parse_json_members(*map_text, map_path, kConfigKeys, kOtherValues, limits.take));
    TRY(read_special_tokens(json, config.settings));
    config.present = true;
  }
  const auto config_path = join_path(directory, "tokenizer_config.json");
  TRY_ASSIGN(const auto config_text, read_optional_file(files, config_path, limits.config_bytes, limits.take));
  if (config_text) {
    if (auto status = read_config_json(*config_text, config, limits); !status.ok()) {
      return std::move(status).error().with_context("in " + config_path);
    }
  }
  TRY(read_added_tokens_file(files, join_path(directory, "added_tokens.json"), limits, config));
  TRY(read_template_files(files, directory, limits, config));
  return config;
}

Result<std::vector<AddedToken>> read_added_tokens(const FileSystem& files, const std::string& path,
                                                  const TokenizerFileLimits& limits) {
  TRY_ASSIGN(const auto text, read_optional_file(files, path, limits.tokenizer_bytes, limits.take));
  if (!text) return std::vector<AddedToken>();
  constexpr std::array<std::string_view, 1> kKeys{"added_tokens"};
  TRY_ASSIGN(const Json json, parse_json_members(*text, path, kKeys, values_within(limits), limits.take));
  if (const Json* list = json_find(json, "added_tokens")) TRY(check_count(list->size(), limits, "added_tokens"));
  return parse_added_tokens(json);
}

}  // namespace loralei

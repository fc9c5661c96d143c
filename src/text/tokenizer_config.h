// SPDX-License-Identifier: Apache-2.0
// The files beside a tokenizer: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json, chat_template.jinja.
//
// Thread: pure functions over files.
// Ownership: plain values.
// Invariants: strings are valid UTF-8 (JSON is).
// Failure: unreadable or malformed files, keys of the wrong type. Keys
// that change neither ids nor templates (padding_side, model_max_length,
// clean_up_tokenization_spaces, ...) are not needed here and are not read.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/result.h"
#include "sys/file.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_json_read.h"

namespace loralei {

// How much is read of a folder's files, and of what memory.
struct TokenizerFileLimits {
  int64_t tokenizer_bytes = kMaxJsonBytes;  // tokenizer.json
  int64_t config_bytes = kMaxJsonBytes;     // tokenizer_config.json, added_tokens.json
  int64_t map_bytes = kMaxJsonBytes;        // special_tokens_map.json
  int64_t added_tokens = kMaxVocab;         // of each file
  TakeMemory take;

  static TokenizerFileLimits of_adapter(TakeMemory take) {
    return {kMaxAdapterTokenizerBytes, kMaxAdapterTokenizerConfigBytes, kMaxAdapterTokensMapBytes,
            kMaxAdapterAddedTokens, std::move(take)};
  }
};

struct TokenizerConfig {
  TokenizerSettings settings;
  std::optional<bool> add_bos, add_eos;  // stated explicitly: they replace the post-processor, as transformers does
  // SentencePiece: a space is put before every part between special tokens. As
  // transformers do it, unless tokenizer_config.json says no; SentencePiece itself,
  // without that file, does not.
  bool legacy = false;
  bool add_prefix_space = true;
  std::vector<AddedToken> added;        // added_tokens_decoder
  std::vector<AddedToken> plain_added;  // added_tokens.json: special where the others name them so
  bool present = false;                 // any of the files was there
};

Status read_config_json(std::string_view text, TokenizerConfig& config, const TokenizerFileLimits& limits = {});
// All files of the folder; a missing one is no error.
Result<TokenizerConfig> read_tokenizer_config(const FileSystem& files, const std::string& directory,
                                              const TokenizerFileLimits& limits = {});
// The added_tokens of a tokenizer.json, and nothing else of it.
Result<std::vector<AddedToken>> read_added_tokens(const FileSystem& files, const std::string& path,
                                                  const TokenizerFileLimits& limits);
// One entry of tokenizer.json's added_tokens or of added_tokens_decoder (where `id`
// comes from the key).
Result<AddedToken> parse_added_token(const Json& entry, std::optional<TokenId> id);
Result<std::vector<AddedToken>> parse_added_tokens(const Json& tokenizer);
// Adds `more` to `tokens`. A token whose id is there already replaces the old one
// (kReplace) or must be the same one and changes nothing (kFill).
enum class MergeMode : unsigned char { kReplace, kFill };
Status merge_added_tokens(std::vector<AddedToken>& tokens, const std::vector<AddedToken>& more, MergeMode mode);

}  // namespace loralei

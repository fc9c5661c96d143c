// SPDX-License-Identifier: Apache-2.0
// AddedTokens: tokens that are cut out of the text before the model sees it: specials and
// what fine-tuning added.
//
// Thread: immutable after build().
// Ownership: owns its tokens.
// Invariants: one token per id and per content; contents are not empty and valid UTF-8.
// Failure: build() fails when a normaliser fails on a content or two tokens claim one
// id.
// Source: tokenizers/src/tokenizer/added_vocabulary.rs: leftmost, then longest;
// first the tokens that are not normalised in the raw text, then the normalised ones in
// the normalised text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "text/normalize.h"
#include "text/tokenizer_decoder.h"
#include "text/tokenizer_table.h"

namespace loralei {

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool single_word = false;  // only between non-word characters
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;
  bool normalized = false;  // matches the normalised text, in its normalised form
  bool special = false;
};

// The memory of AddedTokens made of these, with what of them stands in signatures.
// An upper bound.
int64_t added_tokens_bytes(const std::vector<AddedToken>& tokens);

class AddedTokens {
 public:
  AddedTokens() = default;  // empty; build() makes the others
  AddedTokens(const AddedTokens&) = delete;
  AddedTokens& operator=(const AddedTokens&) = delete;

  // `are_text`: contents decode to themselves, also where the decoder takes each of their
  // characters for a byte.
  static Result<std::shared_ptr<const AddedTokens>> build(std::vector<AddedToken> tokens, const Normalizer& normalizer,
                                                          const TokenDecoder& decoder, bool are_text);

  struct Part {
    size_t begin, end;
    TokenId id;  // -1: plain text
  };
  // Cuts the raw text (or, second stage, one normalised part of it) into tokens and the
  // text between them.
  Result<std::vector<Part>> split_raw(std::string_view text, bool parse_special, Work& work) const {
    return split(text, raw_, parse_special, work);
  }
  Result<std::vector<Part>> split_normalized(std::string_view text, bool parse_special, Work& work) const {
    return split(text, normalized_, parse_special, work);
  }

  const AddedToken* find(TokenId id) const;
  const AddedToken* find(std::string_view content) const;
  // What decoding sees for this token: its normalised form where it has one, in the
  // decoder's own characters where it is text.
  std::string_view piece(const AddedToken& token) const;
  // The raw bytes in mid-stream.
  std::string_view bytes(const AddedToken& token) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  TokenId highest_id() const { return highest_id_; }

 private:
  Result<std::vector<Part>> split(std::string_view text, const PrefixIndex& index, bool parse_special,
                                  Work& work) const;
  size_t index_of(const AddedToken& token) const { return static_cast<size_t>(&token - tokens_.data()); }

  std::vector<AddedToken> tokens_;
  std::vector<std::string> sought_, pieces_, bytes_;  // [tokens]; the first: what is looked for in texts
  std::unordered_map<TokenId, size_t> by_id_;
  std::unordered_map<std::string_view, size_t> by_content_;
  PrefixIndex raw_, normalized_;
  TokenId highest_id_ = -1;
};

}  // namespace loralei

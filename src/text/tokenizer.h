// SPDX-License-Identifier: Apache-2.0
// Tokenizer: text to token ids and back, exactly as the model's own tokenizer does it.
//
// What: one pipeline (added tokens, normaliser, pre-tokeniser, BPE or unigram model,
// post-processor, decoder) filled from a Hugging Face folder (tokenizer.json, else a
// SentencePiece tokenizer.model) or from a GGUF vocabulary.
// Thread: immutable after construction; every method may be called from any
// thread at once.
// Ownership: handed out as shared_ptr<const>. with_added_tokens() shares the large
// tables with its origin.
// Invariants: ids lie in [0, vocab_size()); holes in the id space are allowed and
// contribute no bytes; token_bytes views live as long as the tokenizer. encode() and
// decode() give the ids and the text of the reference implementations (Hugging Face
// tokenizers for tokenizer.json, SentencePiece for .model);
// clean_up_tokenization_spaces, which belongs to neither, is not applied.
// Failure: loaders refuse what they do not know by name; encode() fails on invalid UTF-8,
// when a pattern hits its limits, when the text needs more than kMaxByteWork for each of
// its bytes, and with cancelled where the watch of the work has stopped it. decode() and
// the id look-ups accept any id: one without a token contributes nothing.
// Source of formulas: Hugging Face tokenizers (Apache-2.0), SentencePiece (Apache-2.0);
// see bpe.h, spm.h, tokenizer_unigram.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_budget.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/work.h"
#include "text/token_bound.h"

namespace loralei {

struct GgufVocab;
class AddedTokens;
struct TokenizerCore;

struct EncodeOptions {
  bool add_special = true;    // what the post-processor adds: BOS, EOS
  bool parse_special = true;  // special tokens written in the text become their ids; otherwise they are plain text
  // As soon as there are more, encode() stops: what it gives then is longer than this,
  // and not the whole text.
  int64_t max_tokens = INT64_MAX;
  Work* work = nullptr;  // what the request spends on its text, watched by who may stop it
};

struct DecodeOptions {
  bool skip_special = true;
  std::span<const TokenId> but_not = {};  // special tokens that are not skipped; borrowed
  bool skips(TokenId special) const {
    return skip_special && std::find(but_not.begin(), but_not.end(), special) == but_not.end();
  }
};

// The names a chat template may use: bos_token, eos_token, ... with the text of each.
using SpecialTokenMap = std::map<std::string, std::string>;

// What comes from tokenizer_config.json and the small files beside it; a plain value.
struct TokenizerSettings {
  std::optional<std::string> chat_template;            // the default one
  std::map<std::string, std::string> named_templates;  // of a list of {name, template}; "default" is not in it
  SpecialTokenMap special_tokens;
  std::vector<std::string> additional_special_tokens;
  std::string tokenizer_class;  // as the configuration names it; empty: it does not
};

class FileSystem;

class Tokenizer : public std::enable_shared_from_this<Tokenizer> {
 public:
  using Ptr = std::shared_ptr<const Tokenizer>;

  static Result<Ptr> from_directory(const std::filesystem::path& directory);
  // The bytes of tokenizer.json and, where there is one, of tokenizer_config.json.
  static Result<Ptr> from_json(std::string_view tokenizer_json, std::string_view tokenizer_config = {});
  // The bytes of a SentencePiece .model and, where there is one, of
  // tokenizer_config.json.
  static Result<Ptr> from_sentencepiece(std::string_view model, std::string_view tokenizer_config = {});
  static Result<Ptr> from_gguf(const GgufVocab& vocab);

  // A tokenizer with the added tokens and the chat template of an adapter's folder on
  // top; the same object when there are none. Limits are those of base/limits.h for
  // adapters; `take`: the memory of reading and of what is made.
  Result<Ptr> with_added_tokens(const FileSystem& files, const std::string& adapter_directory,
                                const TakeMemory& take = {}) const;
  // Of memory, beside what with_added_tokens() shares with its origin. An upper bound.
  int64_t own_bytes() const;

  Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options = {}) const;
  std::string decode(std::span<const TokenId> ids, const DecodeOptions& options = {}) const;
  // No text has fewer tokens than this; 0 where nothing is known. Takes no longer than
  // reading the text once.
  int64_t least_tokens(std::string_view text) const { return bound_.least_tokens(text); }

  // The raw bytes that a token contributes in mid-stream; not always valid UTF-8.
  std::string_view token_bytes(TokenId id) const;
  // The raw bytes that it contributes as the first token of a text (some decoders drop
  // a leading space there).
  std::string first_token_bytes(TokenId id) const;
  // As token_bytes(), printable: invalid bytes are U+FFFD.
  std::string token_text(TokenId id) const;
  // The token as the vocabulary writes it ("Ġhello", "▁hello", "<0x0A>").
  std::string_view token_piece(TokenId id) const;
  std::optional<TokenId> find_token(std::string_view piece) const;

  int vocab_size() const;
  bool is_special(TokenId id) const;
  bool is_hole(TokenId id) const;  // outside of the vocabulary or without a token
  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  // Ids at which generation ends: eos and what the model format names besides
  // (GgufVocab::ends).
  std::span<const TokenId> end_ids() const { return end_ids_; }
  bool adds_bos() const;
  bool adds_eos() const;

  const std::optional<std::string>& chat_template() const { return settings_.chat_template; }
  const std::map<std::string, std::string>& named_templates() const { return settings_.named_templates; }
  const SpecialTokenMap& special_tokens() const { return settings_.special_tokens; }
  const TokenizerSettings& settings() const { return settings_; }

  // What with_added_tokens() may change of the ids that texts become and of the
  // special tokens that templates see: equal for two tokenizers made of one exactly
  // where neither differs.
  std::string signature() const;

  // For StreamDecoder.
  const TokenizerCore& core() const { return *core_; }

  struct Parts;
  explicit Tokenizer(Parts&& parts);  // by the loaders, through tokenizer_core.h
  ~Tokenizer();

 private:
  std::shared_ptr<const TokenizerCore> core_;
  std::shared_ptr<const AddedTokens> added_;
  std::vector<TokenId> prefix_ids_, suffix_ids_;  // what add_special puts before and after
  TokenizerSettings settings_;
  std::optional<TokenId> bos_, eos_;
  std::vector<TokenId> end_ids_;
  TokenBound bound_;
};

}  // namespace loralei

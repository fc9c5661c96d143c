// SPDX-License-Identifier: Apache-2.0
// SentencePiece: the .model file (a protocol buffer) as plain values, and its BPE (merges
// by the score of the joined piece).
//
// Thread: parse_spm_model() is pure; SpmBpeModel is immutable.
// Ownership: SpmBpeModel views the TokenTable of its core.
// Invariants: parsed strings are valid UTF-8 except for charsmap; scores are finite;
// piece count is below kMaxVocab.
// Failure: parse_spm_model() refuses truncated or inconsistent files and the model kinds
// WORD and CHAR by name.
// Source: sentencepiece_model.proto, sentencepiece/src/bpe_model.cc (Apache-2.0).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/tokenizer_table.h"

namespace loralei {

enum class SpmPieceType : unsigned char {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct SpmPiece {
  std::string text;  // empty: the id is a hole (never in a file that was parsed)
  float score = 0;
  SpmPieceType type = SpmPieceType::kNormal;
};

enum class SpmKind : unsigned char { kUnigram = 1, kBpe = 2 };

struct SpmModel {
  std::vector<SpmPiece> pieces;
  SpmKind kind = SpmKind::kUnigram;
  bool byte_fallback = false;
  int32_t unk_id = 0, bos_id = 1, eos_id = 2, pad_id = -1;
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";
  std::string charsmap;  // precompiled, see normalize_charsmap.h
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool space_as_suffix = false;
  std::string unk_surface = " \xE2\x81\x87 ";  // what the unknown piece decodes to
};

Result<SpmModel> parse_spm_model(std::string_view bytes);

class SpmBpeModel final : public TokenModel {
 public:
  struct Options {
    TokenId unk = -1;
    bool byte_fallback = false;
  };
  // `types` and `scores` are indexed by id and at least as long as the table.
  SpmBpeModel(const TokenTable& table, std::vector<SpmPieceType> types, std::vector<float> scores, Options options);
  Status encode(std::string_view word, std::vector<TokenId>& ids, Work& work) const override;
  size_t longest_bytes(bool byte_level) const override;

 private:
  struct Symbol {
    uint32_t begin, end;  // bytes of the word; equal: merged away
    int32_t previous, next;
    bool frozen;  // a user-defined piece, never merged further
  };
  using Halves = std::unordered_map<std::string_view, size_t>;  // an unused piece -> length of its left half
  Status first_symbols(std::string_view word, std::vector<Symbol>& symbols, Work& work) const;
  Status merge(std::string_view word, std::vector<Symbol>& symbols, Halves& halves, Work& work) const;
  // The id of a piece that merging may produce; -1 otherwise.
  TokenId mergeable(std::string_view piece) const;
  void emit(std::string_view piece, const Halves& halves, std::vector<TokenId>& ids) const;

  const TokenTable& table_;
  std::vector<SpmPieceType> types_;
  std::vector<float> scores_;
  PrefixIndex user_defined_;
  ByteTokens bytes_;
  Options options_;
};

}  // namespace loralei

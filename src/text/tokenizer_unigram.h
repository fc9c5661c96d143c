// SPDX-License-Identifier: Apache-2.0
// UnigramModel: the segmentation of a word with the highest sum of piece scores
// (Viterbi), as SentencePiece and Hugging Face do it.
//
// Thread: immutable after construction.
// Ownership: views the TokenTable of the core that owns both.
// Invariants: a character that no piece covers is the unknown token with the lowest
// score - 10; neighbouring unknowns are one, written as byte tokens where the vocabulary
// has byte fallback. Ties go to the path found first (shorter piece from further left).
// Failure: an unknown character without an unknown token.
// Source: Kudo 2018, "Subword regularization"; sentencepiece/src/unigram_model.cc
// EncodeOptimized.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/tokenizer_table.h"

namespace loralei {

// SentencePiece adds up float scores and Hugging Face doubles; near-ties depend on it.
enum class ScoreWidth : unsigned char { kFloat, kDouble };

struct UnigramPiece {
  TokenId id;
  double score;
};

struct UnigramOptions {
  TokenId unk = -1;
  bool byte_fallback = false;
  ScoreWidth width = ScoreWidth::kDouble;
  double min_score = 0;  // over the pieces that the implementation counts
};

class UnigramModel final : public TokenModel {
 public:
  // `pieces`: those that may match text, with the scores that matching them earns.
  UnigramModel(const TokenTable& table, const std::vector<UnigramPiece>& pieces, UnigramOptions options);
  Status encode(std::string_view word, std::vector<TokenId>& ids, Work& work) const override;
  size_t longest_bytes(bool byte_level) const override;

 private:
  struct Node {
    double score = 0;
    TokenId id = -1;
    int32_t start = -1;  // -1: not reached
  };
  Status emit_unknown(std::string_view span, std::vector<TokenId>& ids) const;
  double sum(double a, double b) const;

  const TokenTable& table_;
  PrefixIndex index_;  // piece -> position in pieces_
  std::vector<UnigramPiece> pieces_;
  ByteTokens bytes_;
  UnigramOptions options_;
  double unk_score_ = 0;
};

}  // namespace loralei

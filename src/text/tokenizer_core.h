// SPDX-License-Identifier: Apache-2.0
// TokenizerCore: the large, shared part of a tokenizer; Tokenizer::Parts: what the
// loaders hand to its constructor.
//
// Thread: built by one thread, then read by any.
// Ownership: the model views the table beside it, so a core is built in place
// and never moved.
// Invariants: bytes_of(id) is decoder.piece_bytes() of the piece, computed
// once for all ids.
// Failure: only finish_bytes().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/bpe.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/token_bound.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_decoder.h"
#include "text/tokenizer_table.h"

namespace loralei {

struct TokenizerCore {
  TokenizerCore() = default;
  TokenizerCore(const TokenizerCore&) = delete;
  TokenizerCore& operator=(const TokenizerCore&) = delete;

  TokenTable table;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  TokenDecoder decoder;
  TokenId unk = -1;  // decodes to unk_surface where that is not empty (SentencePiece)
  std::string unk_surface;
  TokenBound bound;                     // without added tokens; of finish_bytes()
  bool finds_added_as_written = false;  // SentencePiece: added tokens match the text before any normalising
  bool added_are_text = false;          // GGUF: beside byte-level pieces they are written as they read

  // The piece that decoding sees.
  std::string_view piece(TokenId id) const { return id == unk && !unk_surface.empty() ? unk_surface : table.text(id); }
  // Fills the bytes of all ids, and the bound; call once after all else is complete.
  // Fails beyond 1 GiB.
  Status finish_bytes();
  std::string_view bytes_of(TokenId id) const;

 private:
  std::string bytes_;
  std::vector<uint32_t> ends_;  // [table size]
};

struct Tokenizer::Parts {
  std::shared_ptr<const TokenizerCore> core;
  std::shared_ptr<const AddedTokens> added;
  std::vector<TokenId> prefix_ids, suffix_ids;
  TokenizerSettings settings;
  std::vector<TokenId> more_end_ids;  // besides eos
};

}  // namespace loralei

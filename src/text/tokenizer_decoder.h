// SPDX-License-Identifier: Apache-2.0
// TokenDecoder: pieces of a vocabulary back to text.
//
// Thread: immutable after construction.
// Ownership: plain values.
// Invariants: decode() gives valid UTF-8 whatever the pieces say.
// Failure: set_up() refuses a chain of decoders that does not have the form below;
// decoding cannot fail. Form: either ByteLevel, or [Replace|Strip|Metaspace]*
// ByteFallback? [Replace|Strip|Metaspace]* Fuse? Strip*, or nothing (pieces joined by
// spaces): every tokenizer known to us has it, and it lets text be decoded token by token
// (see stream_decoder.h).
// Source: the decoders of Hugging Face tokenizers, with the same names; SentencePiece's
// decoding for kPerCharacter.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/normalize.h"

namespace loralei {

struct StripDecoder {
  char32_t content = U' ';
  size_t start = 0;  // at most this many at the front, and `stop` at the back
  size_t stop = 0;
};
struct MetaspaceDecoder {
  char32_t replacement = 0x2581;
  bool drop_first = true;  // in the first piece the replacement is dropped, elsewhere it is a space
};
// SentencePiece: the space sign is a space, but one at the very start of the text
// is the dummy prefix.
struct SpmSpaceDecoder {
  bool drop_one = true;     // at the start of the first piece
  bool until_text = false;  // and of the following ones while there is no text yet
};
using PieceRewrite = std::variant<ReplaceStep, StripDecoder, MetaspaceDecoder, SpmSpaceDecoder>;

// What a run of byte tokens that is not valid UTF-8 becomes.
enum class ByteRuns : unsigned char {
  kNone,          // no byte tokens
  kAllOrNothing,  // Hugging Face: one U+FFFD for every byte of the run
  kPerCharacter,  // SentencePiece: one U+FFFD for every byte that starts no code point
};

struct DecoderPlan {
  bool byte_level = false;
  std::vector<PieceRewrite> rewrites;
  ByteRuns byte_runs = ByteRuns::kNone;
  std::vector<PieceRewrite> late_rewrites;  // on pieces and on the text of whole byte runs
  std::vector<StripDecoder> strips;         // on the whole text
  std::string separator;                    // between pieces
};

class TokenDecoder {
 public:
  TokenDecoder() = default;
  explicit TokenDecoder(DecoderPlan plan) : plan_(std::move(plan)) {}

  std::string decode(std::span<const std::string_view> pieces) const;
  // The raw bytes of one piece, as the first of a text or in mid-stream.
  std::string piece_bytes(std::string_view piece, bool first) const;
  // What decodes to this text where a piece is read as bytes; elsewhere the text itself.
  std::string piece_of(std::string_view text) const;
  // Whether piece_bytes depends on `first`, and whether a piece still counts as first
  // while there is no text yet.
  bool first_differs() const;
  bool first_until_text() const;
  const std::vector<StripDecoder>& strips() const { return plan_.strips; }

 private:
  template <typename Match>
  bool any_rewrite(Match&& match) const;
  DecoderPlan plan_;
};

// The byte that a token of the form <0xHH> stands for; -1 otherwise.
int byte_token_value(std::string_view piece);
std::string strip_text(std::string_view text, const StripDecoder& strip);

}  // namespace loralei

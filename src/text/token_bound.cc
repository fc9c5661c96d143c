// SPDX-License-Identifier: Apache-2.0
#include "text/token_bound.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/char_classes.h"
#include "text/tokenizer_core.h"

namespace loralei {

namespace {

// What a tokenizer's steps may do to a text before its model sees it.
struct Shrinking {
  int64_t factor = 1;  // bytes of the text for each byte that is left; 0: any number
  bool drops_space = false;
  bool byte_level = false;  // a byte is a character from here on

  void shrink(int64_t times) { factor *= times; }
  void no_bound() { factor = 0; }
};

bool is_space_text(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (!is_unicode_space(step.code_point)) return false;
    at += step.length;
  }
  return true;
}

size_t bytes_without_space(std::string_view text) {
  size_t bytes = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (!is_unicode_space(step.code_point)) bytes += step.length;
    at += step.length;
  }
  return bytes;
}

// --- normalisers

// Compatibility characters have up to four bytes and may leave one, marks join their
// letter: five bytes for one at most (token_bound_test computes it).
constexpr int64_t kUnicodeShrinks = 5;
constexpr int64_t kLowercaseShrinks = 3;  // the Kelvin sign

void note(const UnicodeStep&, Shrinking& out) { out.shrink(kUnicodeShrinks); }
void note(const CharRewriteStep& step, Shrinking& out) {
  switch (step.rewrite) {
    case CharRewrite::kLowercase:
      return out.shrink(kLowercaseShrinks);
    case CharRewrite::kByteLevel:
      out.byte_level = true;
      return;
    case CharRewrite::kStripAccents:
    case CharRewrite::kNmt:
      return out.no_bound();
  }
}
void note(const StripStep&, Shrinking& out) { out.drops_space = true; }
void note(const PrependStep&, Shrinking&) {}
void note(const ReplaceStep& step, Shrinking& out) {
  const auto* literal = std::get_if<std::string>(&step.pattern);
  if (literal == nullptr) return out.no_bound();
  const size_t left = bytes_without_space(step.content);
  if (left > 0) return out.shrink(static_cast<int64_t>((literal->size() + left - 1) / left));
  if (!is_space_text(*literal)) return out.no_bound();
  out.drops_space = true;
}
void note(const PrecompiledStep&, Shrinking& out) { out.no_bound(); }
void note(const SpmNormalizeStep& step, Shrinking& out) {
  if (!step.map->empty()) return out.no_bound();
  if (step.remove_extra_whitespaces) out.drops_space = true;
}

// --- pre-tokenisers

void note(const ByteLevelStep&, Shrinking& out) { out.byte_level = true; }
void note(const SplitStep& step, Shrinking& out) {
  if (step.behavior == SplitBehavior::kRemoved) out.no_bound();
}
void note(const MetaspaceStep&, Shrinking&) {}
void note(const CharClassStep& step, Shrinking& out) {
  if (step.behavior != SplitBehavior::kRemoved) return;
  if (step.char_class == CharClass::kSpace)
    out.drops_space = true;
  else
    out.no_bound();
}
void note(const WhitespaceStep&, Shrinking& out) { out.drops_space = true; }

// What is written for a space may go with it at the end of a text (SentencePiece).
constexpr char32_t kSpaceMark = 0x2581;

int64_t counted_bytes(std::string_view text) {
  int64_t bytes = 0;
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80) {
      bytes += is_unicode_space(byte) ? 0 : 1;
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text, at);
    if (!is_unicode_space(step.code_point) && step.code_point != kSpaceMark) bytes += step.length;
    at += step.length;
  }
  return bytes;
}

}  // namespace

TokenBound TokenBound::of(const TokenizerCore& core) {
  Shrinking shrinking;
  for (const NormalizeStep& step : core.normalizer.steps())
    std::visit([&](const auto& concrete) { note(concrete, shrinking); }, step);
  const int64_t normalizer_factor = shrinking.factor;
  for (const PreTokenizeStep& step : core.pre_tokenizer.steps())
    std::visit([&](const auto& concrete) { note(concrete, shrinking); }, step);
  TokenBound bound;
  const auto longest = static_cast<int64_t>(core.model->longest_bytes(shrinking.byte_level));
  bound.longest_bytes_ = longest * shrinking.factor;
  bound.shrinks_ = normalizer_factor;
  bound.space_counts_ = !shrinking.drops_space;
  return bound;
}

TokenBound TokenBound::with(const AddedTokens& added) const {
  TokenBound bound = *this;
  if (longest_bytes_ == 0) return bound;
  for (const AddedToken& token : added.tokens()) {
    const int64_t bytes = static_cast<int64_t>(added.piece(token).size()) * (token.normalized ? shrinks_ : 1);
    bound.longest_bytes_ = std::max(bound.longest_bytes_, bytes);
    if (token.lstrip || token.rstrip) bound.space_counts_ = false;
  }
  return bound;
}

int64_t TokenBound::least_tokens(std::string_view text) const {
  if (longest_bytes_ == 0) return 0;
  const int64_t bytes = space_counts_ ? static_cast<int64_t>(text.size()) : counted_bytes(text);
  return (bytes + longest_bytes_ - 1) / longest_bytes_;
}

}  // namespace loralei

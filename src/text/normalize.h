// SPDX-License-Identifier: Apache-2.0
// Normalizer: rewrites text before it is cut into tokens: the tokenizer's own normaliser
// and never another.
//
// Thread: immutable after construction.
// Ownership: plain values.
// Invariants: valid UTF-8 in, valid UTF-8 out.
// Failure: a pattern that hits its limits, an output beyond kMaxEncodeBytes.
// Source: the normalizers of Hugging Face tokenizers, with the same names; SpmNormalize
// is SentencePiece's own (spm.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/normalize_charsmap.h"
#include "text/pretokenize_regex.h"
#include "text/tokenizer_table.h"

namespace loralei {

enum class UnicodeForm : unsigned char { kNfc, kNfd, kNfkc, kNfkd };
enum class CharRewrite : unsigned char { kLowercase, kStripAccents, kNmt, kByteLevel };

struct UnicodeStep {
  UnicodeForm form;
};
struct CharRewriteStep {
  CharRewrite rewrite;
};
struct StripStep {
  bool left = true;
  bool right = true;
};
struct PrependStep {
  std::string text;
};
struct ReplaceStep {
  std::variant<std::string, Regex> pattern;
  std::string content;
};
// Hugging Face's reading of a charsmap: by grapheme clusters below 6 bytes,
// else by code points.
struct PrecompiledStep {
  std::shared_ptr<const CharsMap> map;
};
// SentencePiece's normaliser with its white-space rules.
struct SpmNormalizeStep {
  std::shared_ptr<const CharsMap> map;              // may be empty
  std::shared_ptr<const PrefixIndex> user_defined;  // never rewritten; may be null
  bool add_dummy_prefix = true;
  bool prefix_every_part = false;  // also after a special token ("legacy"), not only at the start of the text
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool space_as_suffix = false;  // the dummy space stands after the text
};

using NormalizeStep =
    std::variant<UnicodeStep, CharRewriteStep, StripStep, PrependStep, ReplaceStep, PrecompiledStep, SpmNormalizeStep>;

class Normalizer {
 public:
  void add(NormalizeStep step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }
  // `starts_text`: the part begins where the caller's whole text begins.
  Result<std::string> apply(std::string_view text, bool starts_text, Work& work) const;
  const std::vector<NormalizeStep>& steps() const { return steps_; }

 private:
  std::vector<NormalizeStep> steps_;
};

// Replaces every match; used by the Replace decoder too.
Result<std::string> replace_all(std::string_view text, const ReplaceStep& step, Work& work);

}  // namespace loralei

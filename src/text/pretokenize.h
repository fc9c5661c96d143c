// SPDX-License-Identifier: Apache-2.0
// PreTokenizer: cuts normalised text into the words that the model sees one at a time.
//
// Thread: immutable after construction, shared by all threads; a PreTokenized
// belongs to one call.
// Ownership: plain values.
// Invariants: pieces are ordered, not empty, and lie inside `text`, which is valid UTF-8.
// Failure: a pattern that hits its limits; a text that grows beyond kMaxEncodeBytes.
// Source: the pre-tokenizers of Hugging Face tokenizers, with the same names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/pretokenize_regex.h"

namespace loralei {

// No text of a request comes near (kDefaultMaxBodyBytes); keeps every offset in 32 bits.
inline constexpr size_t kMaxEncodeBytes = size_t{1} << 26;

struct PreTokenized {
  std::string text;
  std::vector<TextRange> pieces;
  bool starts_text = true;  // the first piece begins where the caller's whole text begins
};

enum class SplitBehavior : unsigned char { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class PrependScheme : unsigned char { kAlways, kFirst, kNever };

struct ByteLevelStep {
  bool add_prefix_space = true;
  std::optional<Regex> regex;  // absent: use_regex is false
};
struct SplitStep {
  Regex regex;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
};
struct MetaspaceStep {
  std::string replacement = "\xE2\x96\x81";  // one code point
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;
};
enum class CharClass : unsigned char { kSpace, kNumber, kPunctuation, kDelimiter };
struct CharClassStep {
  CharClass char_class;
  SplitBehavior behavior;
  char32_t delimiter = 0;
};
struct WhitespaceStep {};  // \w+|[^\w\s]+ are the words

using PreTokenizeStep = std::variant<ByteLevelStep, SplitStep, MetaspaceStep, CharClassStep, WhitespaceStep>;

class PreTokenizer {
 public:
  template <typename Step>
  void add(Step step) {
    steps_.emplace_back(std::in_place_type<Step>, std::move(step));
  }
  bool empty() const { return steps_.empty(); }
  // `work` holds one text with one piece over all of it.
  Status apply(PreTokenized& work, Work& spent) const;
  const std::vector<PreTokenizeStep>& steps() const { return steps_; }

 private:
  std::vector<PreTokenizeStep> steps_;
};

// GPT-2's pattern, used by ByteLevel.
Result<Regex> gpt2_regex();
// GPT-2's printable character for each byte, as UTF-8, and back; -1 where a code point
// stands for no byte.
std::string_view byte_level_char(unsigned char byte);
int byte_of_level_char(char32_t code_point);
// `text` with every byte written as its character.
std::string byte_level_encode(std::string_view text);

}  // namespace loralei

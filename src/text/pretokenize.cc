// SPDX-License-Identifier: Apache-2.0
#include "text/pretokenize.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/utf8.h"
#include "text/char_classes.h"

namespace loralei {

namespace {

struct Mark {
  TextRange range;
  bool match;
};

// GPT-2's table: printable Latin-1 stands for itself, every other byte for U+0100
// and up, in order.
struct ByteLevelTable {
  std::array<std::array<char, 2>, 256> utf8{};
  std::array<unsigned char, 256> length{};
  std::array<int, 0x144> byte_of{};
};

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr ByteLevelTable make_table() {
  ByteLevelTable table;
  for (int& byte : table.byte_of) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code = stands_for_itself(byte) ? byte : next++;
    table.byte_of[code] = byte;
    if (code < 0x80) {
      table.utf8[byte] = {static_cast<char>(code), 0};
      table.length[byte] = 1;
    } else {
      table.utf8[byte] = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
      table.length[byte] = 2;
    }
  }
  return table;
}
constexpr ByteLevelTable kByteLevel = make_table();

std::string_view view(const std::string& text, TextRange range) {
  return std::string_view(text).substr(range.begin, range.end - range.begin);
}

// What becomes of the marked ranges of one piece, as SplitDelimiterBehavior says; empty
// ranges are dropped.
void emit(const std::vector<Mark>& marks, SplitBehavior behavior, std::vector<TextRange>& out) {
  std::vector<TextRange> merged;
  const auto push = [&](TextRange range) { merged.push_back(range); };
  bool previous_match = false;
  if (behavior == SplitBehavior::kMergedWithNext) {
    for (auto mark = marks.rbegin(); mark != marks.rend(); ++mark) {
      if (mark->match && !previous_match && !merged.empty()) {
        merged.back().begin = mark->range.begin;
      } else {
        push(mark->range);
      }
      previous_match = mark->match;
    }
    std::reverse(merged.begin(), merged.end());
  } else {
    for (const Mark& mark : marks) {
      const bool joins = (behavior == SplitBehavior::kContiguous && mark.match == previous_match) ||
                         (behavior == SplitBehavior::kMergedWithPrevious && mark.match && !previous_match);
      if (behavior == SplitBehavior::kRemoved && mark.match) {
      } else if (joins && !merged.empty()) {
        merged.back().end = mark.range.end;
      } else {
        push(mark.range);
      }
      previous_match = mark.match;
    }
  }
  for (const TextRange range : merged) {
    if (range.begin < range.end) out.push_back(range);
  }
}

// Marks of a piece from the matches of a pattern inside of it (offsets relative
// to the piece).
void marks_from_matches(TextRange piece, const std::vector<TextRange>& matches, bool invert, std::vector<Mark>& marks) {
  marks.clear();
  uint32_t previous = piece.begin;
  for (const TextRange match : matches) {
    const TextRange range{piece.begin + match.begin, piece.begin + match.end};
    if (previous != range.begin) marks.push_back({{previous, range.begin}, invert});
    marks.push_back({range, !invert});
    previous = range.end;
  }
  if (previous != piece.end) marks.push_back({{previous, piece.end}, invert});
}

constexpr int64_t kCharWork = 16;  // a character looked at and its place kept

template <typename IsMatch>
Status split_by_char(PreTokenized& work, SplitBehavior behavior, Work& spent, IsMatch&& is_match) {
  std::vector<TextRange> out;
  std::vector<Mark> marks;
  for (const TextRange piece : work.pieces) {
    marks.clear();
    uint32_t last = piece.begin;
    for (uint32_t at = piece.begin; at < piece.end;) {
      const Utf8Step step = utf8_step(work.text, at);
      const uint32_t next = at + static_cast<uint32_t>(step.length);
      if (!spent.spend(kCharWork)) return spent.error();
      if (is_match(step.code_point)) {
        if (last < at) marks.push_back({{last, at}, false});
        marks.push_back({{at, next}, true});
        last = next;
      }
      at = next;
    }
    if (last < piece.end) marks.push_back({{last, piece.end}, false});
    emit(marks, behavior, out);
  }
  work.pieces = std::move(out);
  return {};
}

Status split_by_regex(PreTokenized& work, const Regex& regex, SplitBehavior behavior, bool invert, Work& spent) {
  std::vector<TextRange> out, matches;
  std::vector<Mark> marks;
  for (const TextRange piece : work.pieces) {
    matches.clear();
    TRY(regex.find_all(view(work.text, piece), matches, spent));
    if (!spent.spend(kCharWork)) return spent.error();
    marks_from_matches(piece, matches, invert, marks);
    emit(marks, behavior, out);
  }
  work.pieces = std::move(out);
  return {};
}

Status check_size(const std::string& text) {
  if (text.size() <= kMaxEncodeBytes) return {};
  return too_large("the text is longer than " + std::to_string(kMaxEncodeBytes) + " bytes while it is tokenised");
}

Status apply_step(const ByteLevelStep& step, PreTokenized& work, Work& spent) {
  if (step.add_prefix_space) {
    PreTokenized spaced;
    for (const TextRange piece : work.pieces) {
      const uint32_t begin = static_cast<uint32_t>(spaced.text.size());
      if (work.text[piece.begin] != ' ') spaced.text += ' ';
      spaced.text += view(work.text, piece);
      TRY(check_size(spaced.text));
      spaced.pieces.push_back({begin, static_cast<uint32_t>(spaced.text.size())});
    }
    work.text = std::move(spaced.text);
    work.pieces = std::move(spaced.pieces);
  }
  if (step.regex) TRY(split_by_regex(work, *step.regex, SplitBehavior::kIsolated, false, spent));
  std::string mapped;
  mapped.reserve(work.text.size() + work.text.size() / 4);
  for (TextRange& piece : work.pieces) {
    const uint32_t begin = static_cast<uint32_t>(mapped.size());
    for (uint32_t at = piece.begin; at < piece.end; ++at)
      mapped += byte_level_char(static_cast<unsigned char>(work.text[at]));
    piece = {begin, static_cast<uint32_t>(mapped.size())};
  }
  work.text = std::move(mapped);
  return check_size(work.text);
}

Status apply_step(const SplitStep& step, PreTokenized& work, Work& spent) {
  return split_by_regex(work, step.regex, step.behavior, step.invert, spent);
}

Status apply_step(const MetaspaceStep& step, PreTokenized& work, Work& spent) {
  std::string text;
  std::vector<TextRange> pieces;
  for (const TextRange piece : work.pieces) {
    const std::string_view source = view(work.text, piece);
    const uint32_t begin = static_cast<uint32_t>(text.size());
    const bool first = work.starts_text && piece.begin == 0;
    const bool marked = source[0] == ' ' || source.starts_with(step.replacement);
    if (!marked && (step.scheme == PrependScheme::kAlways || (step.scheme == PrependScheme::kFirst && first))) {
      text += step.replacement;
    }
    for (const char c : source) {
      if (c == ' ') {
        text += step.replacement;
      } else {
        text += c;
      }
    }
    TRY(check_size(text));
    pieces.push_back({begin, static_cast<uint32_t>(text.size())});
  }
  work.text = std::move(text);
  work.pieces = std::move(pieces);
  if (step.split) {
    const char32_t mark = utf8_step(step.replacement, 0).code_point;
    return split_by_char(work, SplitBehavior::kMergedWithNext, spent, [&](char32_t c) { return c == mark; });
  }
  return {};
}

Status apply_step(const CharClassStep& step, PreTokenized& work, Work& spent) {
  switch (step.char_class) {
    case CharClass::kSpace:
      return split_by_char(work, step.behavior, spent, is_unicode_space);
    case CharClass::kNumber:
      return split_by_char(work, step.behavior, spent, is_unicode_number);
    case CharClass::kPunctuation:
      return split_by_char(work, step.behavior, spent, is_unicode_punctuation);
    case CharClass::kDelimiter:
      return split_by_char(work, step.behavior, spent, [&](char32_t c) { return c == step.delimiter; });
  }
  return {};
}

Status apply_step(const WhitespaceStep&, PreTokenized& work, Work& spent) {
  std::vector<TextRange> out;
  const auto kind_of = [](char32_t c) { return is_unicode_word(c) ? 1 : is_unicode_space(c) ? 0 : 2; };
  for (const TextRange piece : work.pieces) {
    for (uint32_t at = piece.begin; at < piece.end;) {
      const uint32_t begin = at;
      const int kind = kind_of(utf8_step(work.text, at).code_point);
      while (at < piece.end) {
        const Utf8Step step = utf8_step(work.text, at);
        if (kind_of(step.code_point) != kind) break;
        at += static_cast<uint32_t>(step.length);
        if (!spent.spend(kCharWork)) return spent.error();
      }
      if (kind != 0) out.push_back({begin, at});
    }
  }
  work.pieces = std::move(out);
  return {};
}

}  // namespace

Status PreTokenizer::apply(PreTokenized& work, Work& spent) const {
  for (const PreTokenizeStep& step : steps_) {
    if (!spent.spend(4 * static_cast<int64_t>(work.text.size()))) return spent.error();  // copied, byte by byte
    TRY(std::visit([&](const auto& concrete) { return apply_step(concrete, work, spent); }, step));
  }
  return {};
}

Result<Regex> gpt2_regex() {
  return Regex::compile(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
}

std::string_view byte_level_char(unsigned char byte) { return {kByteLevel.utf8[byte].data(), kByteLevel.length[byte]}; }

int byte_of_level_char(char32_t code_point) {
  return code_point < kByteLevel.byte_of.size() ? kByteLevel.byte_of[code_point] : -1;
}

std::string byte_level_encode(std::string_view text) {
  std::string out;
  for (const char c : text) out += byte_level_char(static_cast<unsigned char>(c));
  return out;
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "text/normalize.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

#include "base/utf8.h"
#include "text/char_classes.h"
#include "text/grapheme.h"
#include "text/pretokenize.h"

namespace loralei {

namespace {

constexpr int64_t kCharWork = 32;  // a character looked up and copied

constexpr std::string_view kSpmSpace = "\xE2\x96\x81";

Status check_size(const std::string& text) {
  if (text.size() <= kMaxEncodeBytes) return {};
  return too_large("the text is longer than " + std::to_string(kMaxEncodeBytes) + " bytes after normalisation");
}

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

// A text is normalised piece by piece: between two of them its size is looked at, and a
// request can be given up.
constexpr size_t kPieceBytes = size_t{1} << 16;
// Every kStride bytes a segment's begin is looked for. One that is not found within
// kLongSegment bytes means a segment longer than those of texts that somebody reads.
constexpr size_t kStride = 64;
constexpr size_t kLongSegment = 64;

Error icu_error(UErrorCode code) {
  return internal_error(std::string("the text could not be normalised: ") + u_errorName(code));
}

Result<const icu::Normalizer2*> normalizer_of(UnicodeForm form) {
  UErrorCode code = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;  // ICU's own, for all threads and for ever
  switch (form) {
    case UnicodeForm::kNfc:
      normalizer = icu::Normalizer2::getNFCInstance(code);
      break;
    case UnicodeForm::kNfd:
      normalizer = icu::Normalizer2::getNFDInstance(code);
      break;
    case UnicodeForm::kNfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(code);
      break;
    case UnicodeForm::kNfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(code);
      break;
  }
  if (U_FAILURE(code)) return icu_error(code);
  return normalizer;
}

// Whether a segment begins at text[pos]: characters that may join or change places, as a
// letter and its marks do. No character before has to do with one behind.
bool begins_segment(const icu::Normalizer2& normalizer, std::string_view text, size_t pos) {
  return normalizer.hasBoundaryBefore(static_cast<UChar32>(utf8_step(text, pos).code_point));
}

size_t next_character(std::string_view text, size_t pos) {
  do ++pos;
  while (pos < text.size() && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80);
  return std::min(pos, text.size());
}

// `text` decomposed, the marks in order of their class, equal ones as they were. ICU
// moves each mark to its place past those before it: a long run of marks would take
// quadratic time, a run already in order takes none.
std::string with_ordered_marks(const icu::Normalizer2& normalizer, std::string_view text) {
  struct Point {
    char32_t c;
    uint8_t mark_class;
  };
  std::vector<Point> points;
  points.reserve(text.size() / 2);
  const auto add = [&](UChar32 c) { points.push_back({static_cast<char32_t>(c), u_getCombiningClass(c)}); };
  icu::UnicodeString parts;
  for (size_t pos = 0; pos < text.size(); pos = next_character(text, pos)) {
    const auto c = static_cast<UChar32>(utf8_step(text, pos).code_point);
    if (!normalizer.getDecomposition(c, parts)) {
      add(c);
      continue;
    }
    for (int32_t i = 0; i < parts.length(); i = parts.moveIndex32(i, 1)) add(parts.char32At(i));
  }
  for (auto begin = points.begin(); begin != points.end();) {
    const auto end = std::find_if(begin, points.end(), [](const Point& at) { return at.mark_class == 0; });
    std::stable_sort(begin, end, [](const Point& a, const Point& b) { return a.mark_class < b.mark_class; });
    begin = end == points.end() ? end : end + 1;
  }
  std::string out;
  out.reserve(text.size());
  for (const Point& at : points) utf8_append(out, at.c);
  return out;
}

Status append_normalized(const icu::Normalizer2& normalizer, std::string_view text, std::string& out) {
  UErrorCode code = U_ZERO_ERROR;
  icu::StringByteSink<std::string> sink(&out);
  normalizer.normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr, code);
  if (U_FAILURE(code)) return icu_error(code);
  return check_size(out);
}

Result<std::string> apply_step(const UnicodeStep& step, std::string_view text, bool, Work& work) {
  if (is_ascii(text)) return std::string(text);  // ASCII is its own normal form in all four
  std::string repaired;
  if (!is_valid_utf8(text)) text = repaired = utf8_repair(text);
  TRY_ASSIGN(const icu::Normalizer2* normalizer, normalizer_of(step.form));
  std::string out;
  out.reserve(text.size());
  size_t piece = 0;                           // what lies before is in `out`
  for (size_t pos = 0; pos < text.size();) {  // a segment begins at each pos
    const size_t probe = next_character(text, pos + kStride - 1);
    if (!work.spend(kCharWork * static_cast<int64_t>(probe - pos))) return work.error();
    size_t end = probe;
    while (end < text.size() && !begins_segment(*normalizer, text, end)) {
      if (!work.spend(4 * kCharWork)) return work.error();
      end = next_character(text, end);
    }
    if (end - probe > kLongSegment) {
      size_t begin = pos;  // of the segment at the probe
      for (size_t at = pos; at < probe; at = next_character(text, at)) {
        if (begins_segment(*normalizer, text, at)) begin = at;
      }
      TRY(append_normalized(*normalizer, text.substr(piece, begin - piece), out));
      TRY(append_normalized(*normalizer, with_ordered_marks(*normalizer, text.substr(begin, end - begin)), out));
      piece = end;
    } else if (end - piece >= kPieceBytes || end == text.size()) {
      TRY(append_normalized(*normalizer, text.substr(piece, end - piece), out));
      piece = end;
    }
    pos = end;
  }
  return out;
}

bool nmt_drops(char32_t c) {
  return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

bool nmt_is_space(char32_t c) {
  return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

Result<std::string> apply_step(const CharRewriteStep& step, std::string_view text, bool, Work& work) {
  if (step.rewrite == CharRewrite::kByteLevel) return byte_level_encode(text);
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step at = utf8_step(text, pos);
    const char32_t c = at.code_point;
    pos += at.length;
    if (!work.spend(kCharWork)) return work.error();
    switch (step.rewrite) {
      case CharRewrite::kLowercase:
        if (c == 0x130) {
          out += "i\xCC\x87";  // the one code point whose full lower case has two
        } else {
          utf8_append(out, static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))));
        }
        break;
      case CharRewrite::kStripAccents:
        if (!is_unicode_mark(c)) utf8_append(out, c);
        break;
      case CharRewrite::kNmt:
        if (!nmt_drops(c)) utf8_append(out, nmt_is_space(c) ? U' ' : c);
        break;
      case CharRewrite::kByteLevel:
        break;
    }
  }
  return out;
}

Result<std::string> apply_step(const StripStep& step, std::string_view text, bool, Work& work) {
  size_t begin = 0, end = text.size();
  if (step.left) {
    while (begin < end) {
      const Utf8Step at = utf8_step(text, begin);
      if (!is_unicode_space(at.code_point)) break;
      begin += at.length;
    }
  }
  while (step.right && end > begin) {
    size_t start = end - 1;
    while (start > begin && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    if (!is_unicode_space(utf8_step(text, start).code_point)) break;
    end = start;
  }
  return std::string(text.substr(begin, end - begin));
}

Result<std::string> apply_step(const PrependStep& step, std::string_view text, bool, Work& work) {
  return text.empty() ? std::string() : step.text + std::string(text);
}

Result<std::string> apply_step(const ReplaceStep& step, std::string_view text, bool, Work& work) {
  return replace_all(text, step, work);
}

Result<std::string> apply_step(const PrecompiledStep& step, std::string_view text, bool, Work& work) {
  std::string out;
  const auto by_code_points = [&](std::string_view cluster) {
    for (size_t pos = 0; pos < cluster.size();) {
      const std::string_view part = cluster.substr(pos, utf8_step(cluster, pos).length);
      const auto match = step.map->shortest(part);
      out += match ? match->replacement : part;
      pos += part.size();
    }
  };
  for (GraphemeReader reader(text); !reader.done();) {
    const std::string_view cluster = reader.next();
    const auto match = cluster.size() < 6 ? step.map->shortest(cluster) : std::nullopt;
    if (match) {
      out += match->replacement;
    } else {
      by_code_points(cluster);
    }
    TRY(check_size(out));
    if (!work.spend(kCharWork * static_cast<int64_t>(cluster.size()))) return work.error();
  }
  return out;
}

// One replacement unit of SentencePiece's normaliser at the head of `text`: {replacement,
// bytes consumed}.
std::pair<std::string_view, size_t> spm_prefix(const SpmNormalizeStep& step, std::string_view text, Work& work) {
  if (step.user_defined) {
    size_t longest = 0;
    const size_t read = step.user_defined->for_each_prefix(text, [&](size_t length, int32_t) { longest = length; });
    work.spend(PrefixIndex::kByteWork * static_cast<int64_t>(read));  // the caller asks next
    if (longest > 0) return {text.substr(0, longest), longest};
  }
  if (const auto match = step.map->longest(text)) return {match->replacement, match->length};
  const size_t length = static_cast<size_t>(utf8_step(text, 0).length);
  return {text.substr(0, length), length};
}

Result<std::string> apply_step(const SpmNormalizeStep& step, std::string_view text, bool starts_text, Work& work) {
  if (step.remove_extra_whitespaces) {
    while (!text.empty()) {
      const auto [replacement, consumed] = spm_prefix(step, text, work);
      if (!work.spend(kCharWork)) return work.error();
      if (replacement != " ") break;
      text.remove_prefix(consumed);
    }
  }
  std::string out;
  if (text.empty()) return out;
  const std::string_view space = step.escape_whitespaces ? kSpmSpace : std::string_view(" ");
  if (step.add_dummy_prefix && !step.space_as_suffix && (starts_text || step.prefix_every_part)) out += space;
  bool after_space = step.remove_extra_whitespaces;
  while (!text.empty()) {
    auto [replacement, consumed] = spm_prefix(step, text, work);
    if (!work.spend(kCharWork)) return work.error();
    while (after_space && !replacement.empty() && replacement[0] == ' ') replacement.remove_prefix(1);
    if (!replacement.empty()) {
      for (const char c : replacement) {
        if (c == ' ') {
          out += space;
        } else {
          out += c;
        }
      }
      after_space = replacement.back() == ' ';
    }
    if (!step.remove_extra_whitespaces) after_space = false;
    TRY(check_size(out));
    text.remove_prefix(consumed);
  }
  while (step.remove_extra_whitespaces && out.ends_with(space)) out.resize(out.size() - space.size());
  if (step.add_dummy_prefix && step.space_as_suffix) out += space;
  return out;
}

}  // namespace

Result<std::string> replace_all(std::string_view text, const ReplaceStep& step, Work& work) {
  std::string out;
  if (const auto* literal = std::get_if<std::string>(&step.pattern)) {
    if (literal->empty()) return std::string(text);
    size_t from = 0;
    for (size_t at = text.find(*literal); at != std::string_view::npos; at = text.find(*literal, from)) {
      out += text.substr(from, at - from);
      out += step.content;
      from = at + literal->size();
      if (!work.spend(kCharWork)) return work.error();
      TRY(check_size(out));
    }
    out += text.substr(from);
    return out;
  }
  std::vector<TextRange> matches;
  TRY(std::get<Regex>(step.pattern).find_all(text, matches, work));
  size_t from = 0;
  for (const TextRange match : matches) {
    out += text.substr(from, match.begin - from);
    out += step.content;
    from = match.end;
    TRY(check_size(out));
  }
  out += text.substr(from);
  return out;
}

Result<std::string> Normalizer::apply(std::string_view text, bool starts_text, Work& work) const {
  std::string current(text);
  for (const NormalizeStep& step : steps_) {
    if (!work.spend(4 * static_cast<int64_t>(current.size()))) return work.error();  // copied, byte by byte
    TRY_ASSIGN(
        current,
        std::visit([&](const auto& concrete) { return apply_step(concrete, current, starts_text, work); }, step));
    TRY(check_size(current));
  }
  return current;
}

}  // namespace loralei

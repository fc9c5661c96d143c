// SPDX-License-Identifier: Apache-2.0
#include "text/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "text/char_classes.h"
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

// Combining marks come in order of their class, equal ones as they were. utf8proc's own
// ordering swaps neighbours: a long run of marks would take quadratic time, a run already
// in order takes none.
void order_marks(std::vector<utf8proc_int32_t>& points) {
  const auto mark_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto begin = points.begin(); begin != points.end();) {
    const auto end = std::find_if(begin, points.end(), [&](utf8proc_int32_t c) { return mark_class(c) == 0; });
    if (end - begin > 1) {
      std::stable_sort(begin, end,
                       [&](utf8proc_int32_t a, utf8proc_int32_t b) { return mark_class(a) < mark_class(b); });
    }
    begin = end == points.end() ? end : end + 1;
  }
}

Result<std::string> apply_step(const UnicodeStep& step, std::string_view text, bool, Work& work) {
  if (is_ascii(text)) return std::string(text);  // ASCII is its own normal form in all four
  int flags = UTF8PROC_STABLE;
  switch (step.form) {
    case UnicodeForm::kNfc:
      flags |= UTF8PROC_COMPOSE;
      break;
    case UnicodeForm::kNfd:
      flags |= UTF8PROC_DECOMPOSE;
      break;
    case UnicodeForm::kNfkc:
      flags |= UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
      break;
    case UnicodeForm::kNfkd:
      flags |= UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
      break;
  }
  const auto options = static_cast<utf8proc_option_t>(flags);
  const auto failed = [](utf8proc_ssize_t code) {
    return internal_error(std::string("the text could not be normalised: ") + utf8proc_errmsg(code));
  };
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step at = utf8_step(text, pos);
    pos += static_cast<size_t>(at.length);
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(at.code_point), parts.data(),
                                                           parts.size(), options, nullptr);
    if (count < 0) return failed(count);
    if (!work.spend(kCharWork * (1 + count))) return work.error();
    points.insert(points.end(), parts.begin(), parts.begin() + count);
  }
  order_marks(points);
  // Composes where the form asks for it.
  const utf8proc_ssize_t length =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  if (length < 0) return failed(length);
  points.resize(static_cast<size_t>(length));
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t c : points) utf8_append(out, static_cast<char32_t>(c));
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
          utf8_append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
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
  for (size_t pos = 0; pos < text.size();) {
    Utf8Step at = utf8_step(text, pos);
    size_t end = pos + at.length;
    utf8proc_int32_t state = 0;
    while (end < text.size()) {
      const Utf8Step next = utf8_step(text, end);
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(at.code_point),
                                           static_cast<utf8proc_int32_t>(next.code_point), &state)) {
        break;
      }
      end += next.length;
      at = next;
    }
    const std::string_view cluster = text.substr(pos, end - pos);
    const auto match = cluster.size() < 6 ? step.map->shortest(cluster) : std::nullopt;
    if (match) {
      out += match->replacement;
    } else {
      by_code_points(cluster);
    }
    TRY(check_size(out));
    if (!work.spend(kCharWork * static_cast<int64_t>(end - pos))) return work.error();
    pos = end;
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

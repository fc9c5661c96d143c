// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_decoder.h"

#include "base/utf8.h"
#include "text/pretokenize.h"

namespace loralei {

namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

std::string byte_level_decode(std::string_view piece) {
  std::string bytes;
  for (size_t pos = 0; pos < piece.size();) {
    const Utf8Step step = utf8_step(piece, pos);
    const int byte = step.valid ? byte_of_level_char(step.code_point) : -1;
    if (byte < 0) return std::string(piece);  // an added token, written as it is
    bytes += static_cast<char>(byte);
    pos += step.length;
  }
  return bytes;
}

std::string metaspace_decode(std::string_view piece, const MetaspaceDecoder& decoder, bool first) {
  std::string out;
  for (size_t pos = 0; pos < piece.size();) {
    const Utf8Step step = utf8_step(piece, pos);
    if (step.code_point == decoder.replacement) {
      if (!(first && decoder.drop_first)) out += ' ';
    } else {
      out += piece.substr(pos, step.length);
    }
    pos += step.length;
  }
  return out;
}

std::string spm_decode(std::string_view piece, const SpmSpaceDecoder& decoder, bool first) {
  constexpr std::string_view kSpace = "\xE2\x96\x81";
  if (first && decoder.drop_one && piece.starts_with(kSpace)) piece.remove_prefix(kSpace.size());
  std::string out;
  for (size_t at = piece.find(kSpace); at != std::string_view::npos; at = piece.find(kSpace)) {
    out += piece.substr(0, at);
    out += ' ';
    piece.remove_prefix(at + kSpace.size());
  }
  out += piece;
  return out;
}

std::string rewrite(const std::vector<PieceRewrite>& steps, std::string_view piece, bool first) {
  std::string current(piece);
  Work work;
  for (const PieceRewrite& step : steps) {
    if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
      // A pattern that hits its limits on one piece leaves it as it is: decoding cannot
      // fail, and pieces are short.
      if (auto replaced = replace_all(current, *replace, work); replaced.ok()) current = std::move(replaced).value();
    } else if (const auto* strip = std::get_if<StripDecoder>(&step)) {
      current = strip_text(current, *strip);
    } else if (const auto* metaspace = std::get_if<MetaspaceDecoder>(&step)) {
      current = metaspace_decode(current, *metaspace, first);
    } else {
      current = spm_decode(current, std::get<SpmSpaceDecoder>(step), first);
    }
  }
  return current;
}

std::string byte_run_text(std::string_view run, ByteRuns kind) {
  std::string out;
  if (kind == ByteRuns::kAllOrNothing) {
    if (is_valid_utf8(run)) return std::string(run);
    for (size_t i = 0; i < run.size(); ++i) out += kReplacementUtf8;
    return out;
  }
  for (size_t pos = 0; pos < run.size();) {
    const Utf8Step step = utf8_step(run, pos);
    out += step.valid ? run.substr(pos, step.length) : kReplacementUtf8;
    pos += step.valid ? step.length : 1;
  }
  return out;
}

}  // namespace

int byte_token_value(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const int high = hex_value(piece[3]), low = hex_value(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string strip_text(std::string_view text, const StripDecoder& strip) {
  std::string content;
  utf8_append(content, strip.content);
  for (size_t i = 0; i < strip.start && text.starts_with(content); ++i) text.remove_prefix(content.size());
  for (size_t i = 0; i < strip.stop && text.ends_with(content); ++i) text.remove_suffix(content.size());
  return std::string(text);
}

template <typename Match>
bool TokenDecoder::any_rewrite(Match&& match) const {
  for (const auto* steps : {&plan_.rewrites, &plan_.late_rewrites}) {
    for (const PieceRewrite& step : *steps) {
      if (match(step)) return true;
    }
  }
  return false;
}

bool TokenDecoder::first_differs() const {
  return !plan_.separator.empty() || any_rewrite([](const PieceRewrite& step) {
    const auto* metaspace = std::get_if<MetaspaceDecoder>(&step);
    const auto* spm = std::get_if<SpmSpaceDecoder>(&step);
    return (metaspace != nullptr && metaspace->drop_first) || (spm != nullptr && spm->drop_one);
  });
}

bool TokenDecoder::first_until_text() const {
  return any_rewrite([](const PieceRewrite& step) {
    const auto* spm = std::get_if<SpmSpaceDecoder>(&step);
    return spm != nullptr && spm->until_text;
  });
}

std::string TokenDecoder::piece_bytes(std::string_view piece, bool first) const {
  if (plan_.byte_level) return byte_level_decode(piece);
  std::string text = rewrite(plan_.rewrites, piece, first);
  const int byte = plan_.byte_runs == ByteRuns::kNone ? -1 : byte_token_value(text);
  if (byte >= 0) {
    text.assign(1, static_cast<char>(byte));
  } else {
    text = rewrite(plan_.late_rewrites, text, first);
  }
  return first || plan_.separator.empty() ? text : plan_.separator + text;
}

std::string TokenDecoder::piece_of(std::string_view text) const {
  return plan_.byte_level ? byte_level_encode(text) : std::string(text);
}

std::string TokenDecoder::decode(std::span<const std::string_view> pieces) const {
  std::string out;
  if (plan_.byte_level) {
    for (const std::string_view piece : pieces) out += byte_level_decode(piece);
    return utf8_repair(out);
  }
  const bool until_text = first_until_text();
  bool first = true;
  std::string run;
  bool run_is_first = false;
  const auto end_run = [&] {
    if (!run.empty()) out += rewrite(plan_.late_rewrites, byte_run_text(run, plan_.byte_runs), run_is_first);
    run.clear();
  };
  for (const std::string_view piece : pieces) {
    const std::string text = rewrite(plan_.rewrites, piece, first);
    const int byte = plan_.byte_runs == ByteRuns::kNone ? -1 : byte_token_value(text);
    if (byte >= 0) {
      if (run.empty()) run_is_first = first;
      run += static_cast<char>(byte);
    } else {
      end_run();
      if (!first) out += plan_.separator;
      out += rewrite(plan_.late_rewrites, text, first);
    }
    first = first && until_text && out.empty() && run.empty();
  }
  end_run();
  for (const StripDecoder& strip : plan_.strips) out = strip_text(out, strip);
  return is_valid_utf8(out) ? out : utf8_repair(out);
}

}  // namespace loralei

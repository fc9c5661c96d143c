// SPDX-License-Identifier: Apache-2.0
#include "template/jinja_lexer.h"

#include <algorithm>

#include "base/utf8.h"
#include "template/jinja_text.h"

namespace loralei::jinja {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) TRY(lex_root());
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  Error error(const std::string& what) const {
    return invalid_argument("the chat template is not valid at line " + std::to_string(line_) + ": " + what);
  }

  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  // Moves to `to`, counting lines.
  void advance_to(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + to, '\n'));
    line_starting_ = to > 0 && source_[to - 1] == '\n';
    at_ = to;
  }

  size_t skip_space(size_t from) const {
    while (from < source_.size()) {
      size_t next = from;
      if (!is_space(next_code_point(source_, next))) break;
      from = next;
    }
    return from;
  }

  // "{%", an optional sign, spaces, then `word`. Sets `after` behind the word.
  bool is_tag_word(size_t begin, std::string_view word, size_t& after) const {
    size_t at = begin + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at = skip_space(at);
    if (std::string_view(source_).substr(at, word.size()) != word) return false;
    after = skip_space(at + word.size());
    return true;
  }

  // Text before a tag, cut as the tag's sign and lstrip_blocks say.
  std::string cut_before_tag(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return strip(text, false, true);
    if (sign == '+' || is_variable) return std::string(text);
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_begin == 0 && !line_starting_) return std::string(text);
    const std::string_view lead = text.substr(line_begin);
    if (lead.empty() || !strip(lead, true, false).empty()) return std::string(text);
    return std::string(text.substr(0, line_begin));
  }

  // The end of a block, comment or raw tag at `at`: "-%}" eats all space, "%}" one
  // newline, "+%}" nothing. 0 when none.
  size_t tag_end(size_t at, std::string_view close, bool trim_newline) const {
    const std::string_view here = std::string_view(source_).substr(at);
    if (here.size() > close.size() && here[0] == '-' && here.substr(1, close.size()) == close) {
      return skip_space(at + 1 + close.size());
    }
    if (trim_newline && here.size() > close.size() && here[0] == '+' && here.substr(1, close.size()) == close) {
      return at + 1 + close.size();
    }
    if (here.substr(0, close.size()) != close) return 0;
    const size_t after = at + close.size();
    return trim_newline && after < source_.size() && source_[after] == '\n' ? after + 1 : after;
  }

  Status lex_root() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        push(TokenKind::kData, source_.substr(at_));
        at_ = source_.size();
        return {};
      }
      const char second = source_[tag + 1];
      if (second == '{' || second == '%' || second == '#') break;
      ++tag;
    }
    const char second = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    std::string text = cut_before_tag(rest().substr(0, tag - at_), sign, second == '{');
    if (!text.empty()) push(TokenKind::kData, std::move(text));
    size_t after = 0;
    if (second == '%' && is_tag_word(tag, "raw", after)) {
      // "{% raw %}" keeps the newline behind it: trim_blocks does not reach this tag.
      if (const size_t end = tag_end(after, "%}", false)) return lex_raw(end);
    }
    advance_to(tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (second == '#') return lex_comment();
    push(second == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    return lex_tag(second == '{');
  }

  Status lex_raw(size_t begin) {
    advance_to(begin);
    if (at_ == source_.size()) return {};  // jinja2 forgives a raw block that is opened at the very end
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      size_t after = 0;
      if (!is_tag_word(tag, "endraw", after)) continue;
      const size_t end = tag_end(after, "%}", true);
      if (end == 0) continue;
      const char sign = source_[tag + 2];
      std::string text = cut_before_tag(rest().substr(0, tag - at_), sign, false);
      if (!text.empty()) push(TokenKind::kData, std::move(text));
      advance_to(end);
      return {};
    }
    return error("the end of a raw block is missing");
  }

  Status lex_comment() {
    for (size_t at = at_; at + 1 < source_.size(); ++at) {
      if (const size_t end = tag_end(at, "#}", true)) {
        advance_to(end);
        return {};
      }
    }
    return error("the end of a comment is missing");
  }

  Status lex_tag(bool variable) {
    std::string open;  // the brackets that are open, so that "}}" can close two dicts
    while (true) {
      advance_to(skip_space(at_));
      if (at_ >= source_.size()) return error("a tag is not closed");
      if (open.empty()) {
        const size_t end = variable ? tag_end(at_, "}}", false) : tag_end(at_, "%}", true);
        if (end != 0) {
          push(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "");
          advance_to(end);
          return {};
        }
      }
      TRY(lex_token(open));
    }
  }

  Status lex_token(std::string& open) {
    const char c = source_[at_];
    if (is_digit(c)) return lex_number();
    if (c == '"' || c == '\'') return lex_string();
    size_t next = at_;
    if (is_word(next_code_point(source_, next))) {
      size_t end = next;
      while (end < source_.size()) {
        size_t probe = end;
        if (!is_word(next_code_point(source_, probe))) break;
        end = probe;
      }
      push(TokenKind::kName, source_.substr(at_, end - at_));
      at_ = end;
      return {};
    }
    static constexpr std::string_view kDouble[] = {"//", "**", "==", "!=", "<=", ">="};
    for (std::string_view op : kDouble) {
      if (rest().substr(0, 2) == op) {
        push(TokenKind::kOperator, std::string(op));
        at_ += 2;
        return {};
      }
    }
    if (std::string_view("+-*/%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      return error("unexpected character " + quote_repr(source_.substr(at_, next - at_)));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) return error(std::string("unexpected '") + c + "'");
      open.pop_back();
    }
    push(TokenKind::kOperator, std::string(1, c));
    ++at_;
    return {};
  }

  // Digits with single underscores between them, from `at`; returns the end.
  template <typename Digit>
  size_t digits_end(size_t at, Digit digit) const {
    while (at < source_.size()) {
      if (digit(source_[at])) {
        ++at;
      } else if (source_[at] == '_' && at + 1 < source_.size() && digit(source_[at + 1])) {
        at += 2;
      } else {
        break;
      }
    }
    return at;
  }

  Status lex_number() {
    size_t end = at_;
    TokenKind kind = TokenKind::kInteger;
    const char base =
        at_ + 1 < source_.size() && source_[at_] == '0' ? static_cast<char>(source_[at_ + 1] | 0x20) : ' ';
    if (base == 'x' || base == 'o' || base == 'b') {
      end = digits_end(at_ + 2, [base](char c) {
        const char lower = static_cast<char>(c | 0x20);
        if (base == 'x') return is_digit(c) || (lower >= 'a' && lower <= 'f');
        return c >= '0' && c <= (base == 'o' ? '7' : '1');
      });
    }
    if (end <= at_ + 2) end = digits_end(at_, is_digit);
    // A float needs digits behind its point ("1.x" is an attribute); after a "." only an
    // integer can follow ("a.0.1").
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot && base != 'x') {
      if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
        end = digits_end(end + 1, is_digit);
        kind = TokenKind::kFloat;
      }
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        size_t power = end + 1;
        if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
        if (power < source_.size() && is_digit(source_[power])) {
          end = digits_end(power, is_digit);
          kind = TokenKind::kFloat;
        }
      }
    }
    std::string text = source_.substr(at_, end - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    push(kind, std::move(text));
    at_ = end;
    return {};
  }

  Status lex_string() {
    const char quote = source_[at_];
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return error("a string is not closed");
    TRY_ASSIGN(std::string value, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    push(TokenKind::kString, std::move(value));
    advance_to(end + 1);
    return {};
  }

  // Python's unicode-escape: an unknown escape keeps its backslash.
  Result<std::string> unescape(std::string_view raw) const {
    std::string out;
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\' || i + 1 >= raw.size()) {
        out += raw[i];
        continue;
      }
      const char c = raw[++i];
      static constexpr std::string_view kNames = "abfnrtv\\'\"";
      static constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t known = kNames.find(c); known != std::string_view::npos) {
        out += kValues[known];
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        TRY_ASSIGN(char32_t value, hex_escape(raw.substr(i + 1), count));
        i += count;
        if (value >= 0xD800 && value < 0xDC00 && raw.substr(i + 1, 2) == "\\u") {  // a pair, as JSON writes it
          TRY_ASSIGN(const char32_t low, hex_escape(raw.substr(i + 3), 4));
          if (low >= 0xDC00 && low < 0xE000) {
            value = ((value - 0xD7C0) << 10) + (low - 0xDC00);
            i += 6;
          }
        }
        if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
          return error("a string has an escape that is no Unicode character");
        }
        utf8_append(out, value);
      } else if (c >= '0' && c <= '7') {
        char32_t value = 0;
        size_t used = 0;
        for (; used < 3 && i + used < raw.size() && raw[i + used] >= '0' && raw[i + used] <= '7'; ++used) {
          value = value * 8 + (raw[i + used] - '0');
        }
        utf8_append(out, value);
        i += used - 1;
      } else if (c == 'N') {
        return error("\\N{...} escapes are not supported in template strings; write the character itself");
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  Result<char32_t> hex_escape(std::string_view digits, size_t count) const {
    char32_t value = 0;
    for (size_t i = 0; i < count; ++i) {
      const char c = i < digits.size() ? digits[i] : ' ';
      const char lower = static_cast<char>(c | 0x20);
      if (is_digit(c)) {
        value = value * 16 + (c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + (lower - 'a' + 10);
      } else {
        return error("a string has an escape with too few hexadecimal digits");
      }
    }
    return value;
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();  // keep_trailing_newline is off
  return Lexer(std::move(text)).run();
}

}  // namespace loralei::jinja

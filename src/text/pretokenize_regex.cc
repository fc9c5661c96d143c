// SPDX-License-Identifier: Apache-2.0
#include "text/pretokenize_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cctype>

#include "base/utf8.h"

namespace loralei {

namespace {

constexpr size_t kMaxPatternBytes = 65536;
constexpr uint32_t kMatchLimit = 10'000'000;    // PCRE2's own default; steps of backtracking per match
constexpr uint32_t kDepthLimit = 1'000'000;     // interpreter only
constexpr uint32_t kHeapLimitKib = 256 * 1024;  // interpreter only: a run of 8 MiB of one class fits

// White_Space; PCRE2's own \s also takes U+180E.
constexpr std::string_view kSpaceClass = "\\p{Z}\\x09-\\x0d\\x{85}";
// Oniguruma's Word: Alphabetic, M, Nd, Pc; PCRE2's own \w has L, N and _ only.
constexpr std::string_view kWordClass =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{"
    "1f189}";
// Outside of brackets its \w also takes Latin-1's superscripts and fractions.
constexpr std::string_view kWordLatin = "\\xb2\\xb3\\xb9\\xbc-\\xbe";
constexpr std::string_view kHexClass = "0-9a-fA-F";

struct PropertyName {
  std::string_view oniguruma, pcre;
};
constexpr std::array<PropertyName, 12> kPropertyNames{{{"Letter", "L"},
                                                       {"Lowercase_Letter", "Ll"},
                                                       {"Uppercase_Letter", "Lu"},
                                                       {"Mark", "M"},
                                                       {"Number", "N"},
                                                       {"Decimal_Number", "Nd"},
                                                       {"Punctuation", "P"},
                                                       {"Symbol", "S"},
                                                       {"Separator", "Z"},
                                                       {"Other", "C"},
                                                       {"Alphabetic", "Alphabetic"},
                                                       {"White_Space", "White_Space"}}};
// Members of the POSIX bracket classes.
constexpr std::array<PropertyName, 8> kPosixClasses{{{"alpha", "\\p{Alphabetic}"},
                                                     {"alnum", "\\p{Alphabetic}\\p{Nd}"},
                                                     {"upper", "\\p{Uppercase}"},
                                                     {"lower", "\\p{Lowercase}"},
                                                     {"digit", "\\p{Nd}"},
                                                     {"xdigit", kHexClass},
                                                     {"space", kSpaceClass},
                                                     {"punct", "\\p{P}\\p{S}"}}};

class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        TRY(escape());
      } else if (in_class_) {
        TRY(class_char(c));
      } else {
        TRY(plain_char(c));
      }
    }
    return std::move(out_);
  }

 private:
  Error refuse(std::string_view what) const {
    return unsupported("the pattern '" + std::string(in_.substr(0, 200)) + "' of the tokenizer uses " +
                       std::string(what) + ", which is not supported");
  }

  Status plain_char(char c) {
    if (c == '[') {
      in_class_ = true;
      out_ += c;
      ++at_;
      if (at_ < in_.size() && in_[at_] == '^') out_ += in_[at_++];
      if (at_ < in_.size() && in_[at_] == ']') return refuse("']' as the first character of a class");
      return {};
    }
    if (c == '(' && in_.substr(at_, 2) == "(?") {
      size_t flag = at_ + 2;
      while (flag < in_.size() && (in_[flag] == '-' || (in_[flag] >= 'a' && in_[flag] <= 'z'))) {
        if (in_[flag] == 'm') return refuse("the flag m");
        ++flag;
      }
    }
    // {n,m}+ is a repeat of a repeat in Oniguruma and possessive in PCRE2.
    if (c == '}' && at_ + 1 < in_.size() && in_[at_ + 1] == '+') return refuse("'+' after a counted repeat");
    out_ += c;
    ++at_;
    return {};
  }

  Status class_char(char c) {
    if (c == '[') {
      if (at_ + 1 >= in_.size() || in_[at_ + 1] != ':') return refuse("a class inside of a class");
      const size_t close = in_.find(":]", at_);
      if (close == std::string_view::npos) return refuse("an open POSIX class");
      return posix_class(in_.substr(at_ + 2, close - at_ - 2), close + 2);
    }
    if (c == '&' && in_.substr(at_, 2) == "&&") return refuse("'&&' in a class");
    if (c == ']') in_class_ = false;
    out_ += c;
    ++at_;
    return {};
  }

  // PCRE2's POSIX classes are narrower than Oniguruma's.
  Status posix_class(std::string_view name, size_t end) {
    for (const PropertyName& entry : kPosixClasses) {
      if (entry.oniguruma != name) continue;
      out_ += entry.pcre;
      at_ = end;
      return {};
    }
    return refuse("the POSIX class [:" + std::string(name) + ":]");
  }

  Status escape() {
    if (at_ + 1 >= in_.size()) return refuse("a backslash at its end");
    const char c = in_[at_ + 1];
    const auto named_class = [&](std::string_view members, bool negated) -> Status {
      if (in_class_ && negated) return refuse("a negated shorthand in a class");
      if (in_class_) {
        out_ += members;
      } else {
        out_ += negated ? "[^" : "[";
        out_ += members;
        if (members == kWordClass) out_ += kWordLatin;
        out_ += ']';
      }
      at_ += 2;
      return {};
    };
    switch (c) {
      case 's':
        return named_class(kSpaceClass, false);
      case 'S':
        return named_class(kSpaceClass, true);
      case 'w':
        return named_class(kWordClass, false);
      case 'W':
        return named_class(kWordClass, true);
      case 'h':
        return named_class(kHexClass, false);
      case 'H':
        return named_class(kHexClass, true);
      case 'p':
      case 'P':
        return property();
      case 'v':
        return named_class("\\x0b", false);
      case 'b':
      case 'B':
        return boundary(c);
      default:
        break;
    }
    // Letters with another meaning in PCRE2 than in Oniguruma, or none here.
    constexpr std::string_view kSame = "dDnrtfaexuAzZ";
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter && kSame.find(c) == std::string_view::npos) return refuse(std::string("the escape \\") + c);
    if (c == 'u') return unicode_escape();
    // A multi-byte character after the backslash is copied whole.
    const int length = utf8_step(in_, at_ + 1).length;
    out_ += in_.substr(at_, 1 + length);
    at_ += 1 + length;
    return {};
  }

  Status boundary(char c) {
    if (in_class_) return refuse("a boundary in a class");
    // PCRE2's \b would use its own \w.
    const std::string word = "[" + std::string(kWordClass) + std::string(kWordLatin) + "]";
    const std::string behind = "(?<=" + word + ")", ahead = "(?=" + word + ")";
    const std::string not_behind = "(?<!" + word + ")", not_ahead = "(?!" + word + ")";
    out_ += c == 'b' ? "(?:" + behind + not_ahead + "|" + not_behind + ahead + ")"
                     : "(?:" + behind + ahead + "|" + not_behind + not_ahead + ")";
    at_ += 2;
    return {};
  }

  Status unicode_escape() {
    if (at_ + 6 > in_.size()) return refuse("a cut \\u escape");
    out_ += "\\x{";
    for (size_t i = at_ + 2; i < at_ + 6; ++i) {
      if (!isxdigit(static_cast<unsigned char>(in_[i]))) return refuse("a broken \\u escape");
      out_ += in_[i];
    }
    out_ += '}';
    at_ += 6;
    return {};
  }

  Status property() {
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{') return refuse("\\p without braces");
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) return refuse("an open \\p{");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    bool negated = in_[at_ + 1] == 'P';
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    std::string target(name);
    bool known = name.size() <= 2;  // a general category
    for (const PropertyName& entry : kPropertyNames) {
      if (entry.oniguruma == name) {
        target = entry.pcre;
        known = true;
      }
    }
    if (!known) target = "sc:" + target;  // a script; not its extensions
    out_ += negated ? "\\P{" : "\\p{";
    out_ += target;
    out_ += '}';
    at_ = close + 1;
    return {};
  }

  std::string_view in_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

Result<std::string> pcre_from_oniguruma(std::string_view pattern) { return Rewriter(pattern).run(); }

struct Regex::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  bool jit = false;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return too_large("a pattern of the tokenizer has " + std::to_string(pattern.size()) + " bytes, but at most " +
                     std::to_string(kMaxPatternBytes) + " are allowed");
  }
  TRY_ASSIGN(const std::string rewritten, pcre_from_oniguruma(pattern));
  auto owned = std::make_shared<Code>();
  struct Free {
    void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  };
  std::unique_ptr<pcre2_compile_context, Free> compile_context(pcre2_compile_context_create(nullptr));
  if (!compile_context) return internal_error("no memory for a pattern of the tokenizer");
  pcre2_set_newline(compile_context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(compile_context.get(), 100);
  int code = 0;
  PCRE2_SIZE offset = 0;
  // MULTILINE: in Ruby's dialect ^ and $ always match at lines.
  owned->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset,
                              compile_context.get());
  if (owned->code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(code, message.data(), message.size());
    return unsupported("the pattern '" + std::string(pattern.substr(0, 200)) +
                       "' of the tokenizer cannot be compiled: " + reinterpret_cast<const char*>(message.data()));
  }
  owned->jit = pcre2_jit_compile(owned->code, PCRE2_JIT_COMPLETE) == 0;
  owned->context = pcre2_match_context_create(nullptr);
  if (owned->context == nullptr) return internal_error("no memory for a pattern of the tokenizer");
  pcre2_set_match_limit(owned->context, kMatchLimit);
  pcre2_set_depth_limit(owned->context, kDepthLimit);
  pcre2_set_heap_limit(owned->context, kHeapLimitKib);
  return Regex(std::move(owned));
}

Status Regex::find_all(std::string_view subject, std::vector<TextRange>& matches, Work& work) const {
  constexpr int64_t kMatchWork = 128, kByteWork = 8;
  struct Free {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  if (!data) return internal_error("no memory to match a pattern of the tokenizer");
  const auto* bytes = reinterpret_cast<PCRE2_SPTR>(subject.data());
  size_t from = 0;
  size_t last_end = ~size_t{0};
  while (from <= subject.size()) {
    // The subject is known to be valid: PCRE2 would check all of it again
    // for every match.
    int found = pcre2_match(code_->code, bytes, subject.size(), from, PCRE2_NO_UTF_CHECK, data.get(), code_->context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code_->code, bytes, subject.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                          code_->context);
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      return too_large(
          "the text cannot be tokenised: the tokenizer's pattern needs more steps or memory than allowed (PCRE2 "
          "error " +
          std::to_string(found) + ")");
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    const size_t begin = range[0], end = range[1];
    const size_t passed = end > from ? end - from : 0;
    if (!work.spend(kMatchWork + kByteWork * static_cast<int64_t>(passed))) return work.error();
    if (begin > end) return unsupported("a pattern of the tokenizer uses \\K in a look-around, which is not supported");
    if (begin == end && end == last_end) {
      if (from >= subject.size()) break;
      from += utf8_step(subject, from).length;
      continue;
    }
    matches.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
    from = end;
    last_end = end;
  }
  return {};
}

}  // namespace loralei

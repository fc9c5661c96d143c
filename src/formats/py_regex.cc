// SPDX-License-Identifier: Apache-2.0
#include "formats/py_regex.h"

#include <cctype>
#include <optional>

namespace loralei {

namespace {

constexpr size_t kMaxPatternBytes = 8192;
constexpr int kMaxNesting = 60;
constexpr int kMaxRepeat = 1000;
constexpr int kMaxDepth = 1500;  // of the recursion of the matcher; module names have fewer than 100 characters

using Set = std::bitset<256>;

bool ascii_word(unsigned char c) { return (c < 128 && std::isalnum(c)) || c == '_'; }

Set class_set(char letter) {
  Set set;
  for (int c = 0; c < 128; ++c) {
    const bool in = letter == 'd'   ? std::isdigit(c) != 0
                    : letter == 's' ? std::isspace(c) != 0
                                    : ascii_word(static_cast<unsigned char>(c));
    set[static_cast<size_t>(c)] = in;
  }
  return set;
}

}  // namespace

class RegexParser {
 public:
  RegexParser(std::string_view text, PyRegex& regex) : text_(text), regex_(regex) {}

  Status parse() {
    if (text_.size() > kMaxPatternBytes) return too_large("the pattern is longer than 8192 characters");
    TRY_ASSIGN(regex_.root_, choice(0));
    if (!at_end()) return bad("unbalanced parenthesis");
    return {};
  }

 private:
  using Kind = PyRegex::Kind;

  bool at_end() const { return pos_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0'; }
  Error bad(const std::string& what) const {
    return invalid_argument(what + " at position " + std::to_string(pos_) + " of the pattern");
  }
  Error not_supported(const std::string& what) const {
    return unsupported(what + " at position " + std::to_string(pos_) +
                       " of the pattern is not supported; list the module names instead");
  }
  int add(PyRegex::Node node) {
    regex_.nodes_.push_back(std::move(node));
    return static_cast<int>(regex_.nodes_.size()) - 1;
  }
  int add_set(const Set& set) { return add({.kind = Kind::kSet, .set = set}); }

  Result<int> choice(int nesting) {
    if (nesting > kMaxNesting) return bad("too deeply nested groups");
    std::vector<int> branches;
    TRY_ASSIGN(int first, sequence(nesting));
    branches.push_back(first);
    while (!at_end() && peek() == '|') {
      ++pos_;
      TRY_ASSIGN(int next, sequence(nesting));
      branches.push_back(next);
    }
    if (branches.size() == 1) return branches[0];
    return add({.kind = Kind::kChoice, .children = std::move(branches)});
  }

  Result<int> sequence(int nesting) {
    std::vector<int> items;
    while (!at_end() && peek() != '|' && peek() != ')') {
      TRY_ASSIGN(int item, atom(nesting));
      TRY_ASSIGN(item, quantified(item));
      items.push_back(item);
    }
    if (items.size() == 1) return items[0];
    return add({.kind = Kind::kSequence, .children = std::move(items)});
  }

  Result<int> atom(int nesting) {
    const char c = text_[pos_];
    switch (c) {
      case '(':
        return group(nesting);
      case '[':
        return set_class();
      case '\\':
        return escape();
      case '.': {
        ++pos_;
        Set set;
        set.set();
        set.reset('\n');
        return add_set(set);
      }
      case '^':
        ++pos_;
        return add({.kind = Kind::kBegin});
      case '$':
        ++pos_;
        return add({.kind = Kind::kEnd});
      case '*':
      case '+':
      case '?':
        return bad("nothing to repeat");
      case '{': {
        const size_t before = pos_;
        if (braces()) return bad("nothing to repeat");
        pos_ = before;
        break;
      }
      default:
        break;
    }
    ++pos_;
    Set set;
    set.set(static_cast<unsigned char>(c));
    return add_set(set);
  }

  // {m}, {m,}, {,n}, {m,n}; nullopt when the brace is a literal.
  std::optional<std::pair<int, int>> braces() {
    size_t at = pos_ + 1;
    const auto number = [&]() -> std::optional<int> {
      const size_t begin = at;
      int value = 0;
      while (at < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at]))) {
        value = std::min(value * 10 + (text_[at] - '0'), 1'000'000);
        ++at;
      }
      return at == begin ? std::nullopt : std::optional<int>(value);
    };
    const auto low = number();
    auto high = low;
    if (at < text_.size() && text_[at] == ',') {
      ++at;
      high = number();
      if (!low && !high && !(at < text_.size() && text_[at] == '}')) return std::nullopt;
    } else if (!low) {
      return std::nullopt;
    }
    if (at >= text_.size() || text_[at] != '}') return std::nullopt;
    pos_ = at + 1;
    return std::pair(low.value_or(0), high ? *high : -1);
  }

  Result<int> quantified(int item) {
    if (at_end()) return item;
    std::pair<int, int> range;
    switch (peek()) {
      case '*':
        range = {0, -1};
        ++pos_;
        break;
      case '+':
        range = {1, -1};
        ++pos_;
        break;
      case '?':
        range = {0, 1};
        ++pos_;
        break;
      case '{': {
        const auto counts = braces();
        if (!counts) return item;
        range = *counts;
        break;
      }
      default:
        return item;
    }
    if (range.first > kMaxRepeat || range.second > kMaxRepeat) return not_supported("a repetition of more than 1000");
    if (range.second >= 0 && range.second < range.first) return bad("min repeat greater than max repeat");
    const Kind kind = regex_.nodes_[static_cast<size_t>(item)].kind;
    if (kind == Kind::kBegin || kind == Kind::kLookAhead) return not_supported("a repeated anchor or look-ahead");
    PyRegex::Node node{.kind = Kind::kRepeat, .children = {item}, .min = range.first, .max = range.second};
    if (!at_end() && peek() == '?') {
      node.lazy = true;
      ++pos_;
    } else if (!at_end() && peek() == '+') {
      return not_supported("a possessive quantifier");
    }
    if (!at_end() && (peek() == '*' || peek() == '+' || peek() == '?')) return bad("multiple repeat");
    if (!at_end() && peek() == '{') {
      const size_t before = pos_;
      if (braces()) return bad("multiple repeat");
      pos_ = before;
    }
    return add(std::move(node));
  }

  Result<int> group(int nesting) {
    ++pos_;
    PyRegex::Node node{.kind = Kind::kGroup};
    if (peek() == '?') {
      if (peek(1) == ':') {
        pos_ += 2;
      } else if (peek(1) == '=' || peek(1) == '!') {
        node.kind = Kind::kLookAhead;
        node.negated = peek(1) == '!';
        pos_ += 2;
      } else if (peek(1) == 'P' && peek(2) == '<') {
        pos_ += 3;
        const size_t end = text_.find('>', pos_);
        if (end == std::string_view::npos || end == pos_) return bad("missing group name");
        std::string name(text_.substr(pos_, end - pos_));
        for (const char c : name) {
          if (!ascii_word(static_cast<unsigned char>(c))) return bad("bad character in group name");
        }
        for (const std::string& other : regex_.captures_) {
          if (other == name) return bad("redefinition of group name");
        }
        node.capture = static_cast<int>(regex_.captures_.size());
        regex_.captures_.push_back(std::move(name));
        pos_ = end + 1;
      } else {
        return not_supported("the group (?" + std::string(1, peek(1)) + "...)");
      }
    }
    TRY_ASSIGN(int inner, choice(nesting + 1));
    if (at_end() || peek() != ')') return bad("missing ), unterminated subpattern");
    ++pos_;
    node.children = {inner};
    return add(std::move(node));
  }

  // The character an escape inside or outside a class stands for.
  Result<unsigned char> escaped_char() {
    const char c = text_[pos_];
    switch (c) {
      case 'n':
        ++pos_;
        return static_cast<unsigned char>('\n');
      case 't':
        ++pos_;
        return static_cast<unsigned char>('\t');
      case 'r':
        ++pos_;
        return static_cast<unsigned char>('\r');
      case 'f':
        ++pos_;
        return static_cast<unsigned char>('\f');
      case 'v':
        ++pos_;
        return static_cast<unsigned char>('\v');
      default:
        break;
    }
    if (std::isdigit(static_cast<unsigned char>(c))) return not_supported("a back reference or numeric escape");
    if (std::isalpha(static_cast<unsigned char>(c))) return not_supported(std::string("the escape \\") + c);
    ++pos_;
    return static_cast<unsigned char>(c);
  }

  Result<int> escape() {
    ++pos_;
    if (at_end()) return bad("a backslash ends the pattern");
    const char c = peek();
    switch (c) {
      case 'd':
      case 's':
      case 'w':
        ++pos_;
        return add_set(class_set(c));
      case 'D':
      case 'S':
      case 'W':
        ++pos_;
        return add_set(~class_set(static_cast<char>(std::tolower(c))));
      case 'b':
        ++pos_;
        return add({.kind = Kind::kWordBoundary});
      case 'B':
        ++pos_;
        return add({.kind = Kind::kNotWordBoundary});
      case 'A':
        ++pos_;
        return add({.kind = Kind::kBegin});
      case 'Z':
        ++pos_;
        return add({.kind = Kind::kEndAbsolute});
      default:
        break;
    }
    TRY_ASSIGN(const unsigned char literal, escaped_char());
    Set set;
    set.set(literal);
    return add_set(set);
  }

  // One member of a class: a character, or a whole set (then `set` grows and
  // nullopt is answered).
  Result<std::optional<unsigned char>> class_item(Set& set) {
    if (peek() != '\\') {
      const unsigned char c = static_cast<unsigned char>(text_[pos_++]);
      if (c >= 128) return not_supported("a character outside ASCII in a class");
      return std::optional<unsigned char>(c);
    }
    ++pos_;
    if (at_end()) return bad("a backslash ends the pattern");
    const char c = peek();
    if (c == 'd' || c == 's' || c == 'w' || c == 'D' || c == 'S' || c == 'W') {
      ++pos_;
      const Set named = class_set(static_cast<char>(std::tolower(c)));
      set |= std::isupper(static_cast<unsigned char>(c)) ? ~named : named;
      return std::optional<unsigned char>();
    }
    TRY_ASSIGN(const unsigned char literal, escaped_char());
    return std::optional<unsigned char>(literal);
  }

  Result<int> set_class() {
    ++pos_;
    const bool negated = peek() == '^' && !at_end();
    if (negated) ++pos_;
    Set set;
    bool first = true;
    while (true) {
      if (at_end()) return bad("unterminated character set");
      if (peek() == ']' && !first) break;
      first = false;
      TRY_ASSIGN(const auto low, class_item(set));
      const bool range = peek() == '-' && pos_ + 1 < text_.size() && peek(1) != ']';
      if (!range) {
        if (low) set.set(*low);
        continue;
      }
      ++pos_;
      TRY_ASSIGN(const auto high, class_item(set));
      if (!low || !high || *high < *low) return bad("bad character range");
      for (int c = *low; c <= *high; ++c) set.set(static_cast<size_t>(c));
    }
    ++pos_;
    return add_set(negated ? ~set : set);
  }

  std::string_view text_;
  PyRegex& regex_;
  size_t pos_ = 0;
};

// One attempt: backtracking in continuation-passing style, as Python's engine
// orders its choices.
class RegexRun {
 public:
  RegexRun(const PyRegex& regex, std::string_view text, RegexBudget& budget)
      : regex_(regex), text_(text), budget_(budget), spans_(regex.captures_.size(), {std::string::npos, 0}) {}

  PyRegex::Answer run(bool to_end) {
    auto accept = [&](size_t pos) { return !to_end || pos == text_.size(); };
    const bool yes = step(regex_.root_, 0, Continuation(accept));
    if (exhausted_) return PyRegex::Answer::kTooHard;
    return yes ? PyRegex::Answer::kYes : PyRegex::Answer::kNo;
  }

  std::string group(size_t capture) const {
    const auto [begin, end] = spans_[capture];
    return begin == std::string::npos ? std::string() : std::string(text_.substr(begin, end - begin));
  }

 private:
  using Kind = PyRegex::Kind;

  // What follows: a plain pointer pair, so that nothing is allocated per step. The
  // context outlives the call it is passed to.
  struct Continuation {
    template <typename F>
    explicit Continuation(F& callable)
        : function([](void* target, size_t pos) { return (*static_cast<F*>(target))(pos); }), context(&callable) {}
    bool operator()(size_t pos) const { return function(context, pos); }
    bool (*function)(void*, size_t);
    void* context;
  };

  bool step(int index, size_t pos, Continuation next) {
    if (exhausted_ || --budget_.steps < 0 || depth_ >= kMaxDepth) {
      exhausted_ = true;
      return false;
    }
    ++depth_;
    const bool yes = node(regex_.nodes_[static_cast<size_t>(index)], pos, next);
    --depth_;
    return yes && !exhausted_;
  }

  bool word_at(size_t pos) const { return pos < text_.size() && ascii_word(static_cast<unsigned char>(text_[pos])); }
  bool boundary(size_t pos) const { return (pos > 0 && word_at(pos - 1)) != word_at(pos); }

  bool node(const PyRegex::Node& node, size_t pos, Continuation next) {
    switch (node.kind) {
      case Kind::kEmpty:
        return next(pos);
      case Kind::kSet:
        return pos < text_.size() && node.set[static_cast<unsigned char>(text_[pos])] && next(pos + 1);
      case Kind::kBegin:
        return pos == 0 && next(pos);
      case Kind::kEnd:
        return (pos == text_.size() || (pos + 1 == text_.size() && text_[pos] == '\n')) && next(pos);
      case Kind::kEndAbsolute:
        return pos == text_.size() && next(pos);
      case Kind::kWordBoundary:
        return boundary(pos) && next(pos);
      case Kind::kNotWordBoundary:
        return !boundary(pos) && next(pos);
      case Kind::kSequence:
        return sequence(node, 0, pos, next);
      case Kind::kChoice:
        for (const int child : node.children) {
          if (step(child, pos, next)) return true;
        }
        return false;
      case Kind::kRepeat:
        return repeat(node, 0, pos, next);
      case Kind::kGroup:
        return group_node(node, pos, next);
      case Kind::kLookAhead: {
        auto accept = [](size_t) { return true; };
        const bool found = step(node.children[0], pos, Continuation(accept));
        return !exhausted_ && found != node.negated && next(pos);
      }
    }
    return false;
  }

  bool sequence(const PyRegex::Node& node, size_t child, size_t pos, Continuation next) {
    if (child == node.children.size()) return next(pos);
    auto rest = [&](size_t after) { return sequence(node, child + 1, after, next); };
    return step(node.children[child], pos, Continuation(rest));
  }

  bool repeat(const PyRegex::Node& node, int count, size_t pos, Continuation next) {
    auto again = [&](size_t after) {
      if (after == pos && count >= node.min) return false;  // an empty round would go on for ever
      return repeat(node, count + 1, after, next);
    };
    const bool may_go_on = node.max < 0 || count < node.max;
    if (count < node.min) return step(node.children[0], pos, Continuation(again));
    if (node.lazy) return next(pos) || (!exhausted_ && may_go_on && step(node.children[0], pos, Continuation(again)));
    return (may_go_on && step(node.children[0], pos, Continuation(again))) || (!exhausted_ && next(pos));
  }

  bool group_node(const PyRegex::Node& node, size_t pos, Continuation next) {
    if (node.capture < 0) return step(node.children[0], pos, next);
    auto& span = spans_[static_cast<size_t>(node.capture)];
    auto close = [&](size_t after) {
      const auto before = span;
      span = {pos, after};
      if (next(after)) return true;
      span = before;
      return false;
    };
    return step(node.children[0], pos, Continuation(close));
  }

  const PyRegex& regex_;
  std::string_view text_;
  RegexBudget& budget_;
  std::vector<std::pair<size_t, size_t>> spans_;
  int depth_ = 0;
  bool exhausted_ = false;
};

Result<PyRegex> PyRegex::compile(std::string_view pattern) {
  PyRegex regex;
  TRY(RegexParser(pattern, regex).parse());
  return regex;
}

PyRegex::Answer PyRegex::full_match(std::string_view text, RegexBudget& budget) const {
  return RegexRun(*this, text, budget).run(true);
}

PyRegex::Answer PyRegex::match(std::string_view text, RegexBudget& budget) const {
  return RegexRun(*this, text, budget).run(false);
}

PyRegex::Answer PyRegex::match_group(std::string_view text, std::string_view name, std::string& group,
                                     RegexBudget& budget) const {
  RegexRun run(*this, text, budget);
  const Answer answer = run.run(false);
  group.clear();
  for (size_t i = 0; i < captures_.size() && answer == Answer::kYes; ++i) {
    if (captures_[i] == name) group = run.group(i);
  }
  return answer;
}

}  // namespace loralei

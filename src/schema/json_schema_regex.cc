// SPDX-License-Identifier: Apache-2.0
#include "schema/json_schema_regex.h"

#include <algorithm>
#include <memory>

#include "base/utf8.h"
#include "schema/json_schema.h"

namespace loralei::schema {

namespace {

constexpr int kMaxGroupDepth = 64;
constexpr size_t kMaxNodes = 60000;
constexpr int64_t kMaxRepeat = 100000;

struct Node {
  enum class Kind : unsigned char { kSet, kSequence, kChoice, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kSet;
  CharSet set;
  std::vector<Node> parts;  // kRepeat: one
  int64_t min = 0;
  int64_t max = -1;
};

CharSet digits() { return CharSet('0', '9'); }
CharSet word_characters() {
  CharSet set('0', '9');
  set.add('a', 'z');
  set.add('A', 'Z');
  set.add('_', '_');
  return set;
}
CharSet spaces() {
  CharSet set(0x09, 0x0D);
  for (const char32_t c : {0x20, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF}) set.add(c, c);
  set.add(0x2000, 0x200A);
  return set;
}
CharSet line_breaks() {
  CharSet set('\n', '\n');
  set.add('\r', '\r');
  set.add(0x2028, 0x2029);
  return set;
}

class Parser {
 public:
  explicit Parser(std::u32string pattern) : text_(std::move(pattern)) {}

  Result<Node> run() {
    TRY_ASSIGN(Node node, parse_choice(0));
    if (at_ < text_.size()) return error("an unmatched ')'");
    return node;
  }

 private:
  bool more() const { return at_ < text_.size(); }
  char32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool skip(char32_t c) {
    if (!more() || peek() != c) return false;
    ++at_;
    return true;
  }
  Error error(const std::string& what) const {
    return invalid_argument("the regular expression has " + what + " at character " + std::to_string(at_ + 1));
  }
  Error refuse(const std::string& what) const {
    return invalid_argument("the regular expression uses " + what + " at character " + std::to_string(at_ + 1) +
                            ", which is not supported");
  }

  Result<Node> parse_choice(int depth) {
    if (depth > kMaxGroupDepth) return error("groups nested deeper than " + std::to_string(kMaxGroupDepth));
    Node choice;
    choice.kind = Node::Kind::kChoice;
    do {
      Node sequence;
      sequence.kind = Node::Kind::kSequence;
      while (more() && peek() != '|' && peek() != ')') {
        TRY_ASSIGN(Node part, parse_repeat(depth));
        const bool reads_nothing = part.kind == Node::Kind::kSequence && part.parts.empty();
        if (!reads_nothing) sequence.parts.push_back(std::move(part));  // else "()" would be passed at every repetition
      }
      choice.parts.push_back(std::move(sequence));
    } while (skip('|'));
    if (choice.parts.size() > 1) return choice;
    return std::move(choice.parts[0]);
  }

  Result<Node> parse_repeat(int depth) {
    TRY_ASSIGN(Node node, parse_atom(depth));
    int stacked = 0;
    while (more()) {
      int64_t min = 0;
      int64_t max = -1;
      const size_t begin = at_;
      if (skip('*')) {
      } else if (skip('+')) {
        min = 1;
      } else if (skip('?')) {
        max = 1;
      } else if (peek() == '{') {
        TRY_ASSIGN(const bool counted, parse_counts(min, max));
        if (!counted) break;
      } else {
        break;
      }
      if (node.kind == Node::Kind::kBegin || node.kind == Node::Kind::kEnd || ++stacked > 1) {
        at_ = begin;
        return error("nothing to repeat");
      }
      skip('?');  // lazy: the same words
      if (more() && peek() == '+') return refuse("a possessive quantifier");
      if (node.kind == Node::Kind::kSequence && node.parts.empty()) continue;
      Node repeat;
      repeat.kind = Node::Kind::kRepeat;
      repeat.min = min;
      repeat.max = max;
      repeat.parts.push_back(std::move(node));
      node = std::move(repeat);
    }
    return node;
  }

  // "{m}", "{m,}" or "{m,n}"; anything else is a plain brace, and nothing is read.
  Result<bool> parse_counts(int64_t& min, int64_t& max) {
    const size_t begin = at_++;
    const auto number = [&](int64_t& out) {
      const size_t first = at_;
      for (out = 0; more() && peek() >= '0' && peek() <= '9'; ++at_)
        out = std::min<int64_t>(out * 10 + (peek() - '0'), kMaxRepeat + 1);
      return at_ > first;
    };
    bool valid = number(min);
    max = min;
    if (valid && skip(',')) {
      if (!number(max)) max = -1;
    }
    valid = valid && skip('}');
    if (!valid) {
      at_ = begin;
      return false;
    }
    if (min > kMaxRepeat || max > kMaxRepeat) return error("a count above " + std::to_string(kMaxRepeat));
    if (max >= 0 && max < min) return error("a count whose minimum is above its maximum");
    return true;
  }

  Result<Node> parse_atom(int depth) {
    Node node;
    const char32_t c = peek();
    switch (c) {
      case '^':
      case '$':
        ++at_;
        node.kind = c == '^' ? Node::Kind::kBegin : Node::Kind::kEnd;
        return node;
      case '(': {
        TRY(open_group());
        TRY_ASSIGN(node, parse_choice(depth + 1));
        if (!skip(')')) return error("a group that is not closed");
        return node;
      }
      case '[':
        return parse_class();
      case '.':
        ++at_;
        node.set = line_breaks().inverse();
        return node;
      case '*':
      case '+':
      case '?':
        return error("nothing to repeat");
      case '\\': {
        TRY_ASSIGN(node.set, parse_escape(false));
        return node;
      }
      default:
        ++at_;
        node.set = CharSet(c, c);
        return node;
    }
  }

  Status open_group() {
    ++at_;
    if (!skip('?')) return {};
    if (skip(':')) return {};
    if (peek() == '=' || peek() == '!' || (peek() == '<' && (peek(1) == '=' || peek(1) == '!')))
      return refuse("look-around");
    if (skip('P')) {
      if (peek() != '<') return refuse("a named back-reference");
    }
    if (!skip('<')) return refuse("flags or an unknown kind of group");
    while (more() && peek() != '>') ++at_;
    if (!skip('>')) return error("a group name that is not closed");
    return {};
  }

  Result<char32_t> parse_hex(int count) {
    char32_t value = 0;
    for (int i = 0; i < count; ++i, ++at_) {
      const char32_t c = peek();
      const char32_t lower = c | 0x20;
      if (c >= '0' && c <= '9')
        value = value * 16 + (c - '0');
      else if (lower >= 'a' && lower <= 'f')
        value = value * 16 + (lower - 'a' + 10);
      else
        return error("an escape with too few hexadecimal digits");
    }
    return value;
  }

  // Behind the backslash. Inside a class \b is the backspace.
  Result<CharSet> parse_escape(bool in_class) {
    ++at_;
    if (!more()) return error("a backslash at its end");
    const char32_t c = text_[at_++];
    const auto one = [](char32_t value) { return CharSet(value, value); };
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return digits().inverse();
      case 'w':
        return word_characters();
      case 'W':
        return word_characters().inverse();
      case 's':
        return spaces();
      case 'S':
        return spaces().inverse();
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'x': {
        TRY_ASSIGN(const char32_t value, parse_hex(2));
        return one(value);
      }
      case 'u':
        return parse_unicode_escape();
      case 'b':
        if (in_class) return one('\b');
        break;
      default:
        break;
    }
    --at_;
    if (c == 'b' || c == 'B' || c == 'A' || c == 'z' || c == 'Z') return refuse("a boundary (\\b and its kin)");
    if (c == 'p' || c == 'P') return refuse("a Unicode property (\\p)");
    if ((c >= '1' && c <= '9') || c == 'k') return refuse("a back-reference");
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return refuse("an unknown escape");
    ++at_;
    return one(c);
  }

  Result<CharSet> parse_unicode_escape() {
    char32_t value = 0;
    if (skip('{')) {
      int count = 0;
      while (count < 7 && more() && peek(count) != '}') ++count;
      TRY_ASSIGN(value, parse_hex(count));
      if (count == 0 || !skip('}')) return error("an escape that is not closed");
    } else {
      TRY_ASSIGN(value, parse_hex(4));
      if (value >= 0xD800 && value < 0xDC00 && peek() == '\\' && peek(1) == 'u') {
        at_ += 2;
        TRY_ASSIGN(const char32_t low, parse_hex(4));
        if (low < 0xDC00 || low > 0xDFFF) return error("half of a surrogate pair");
        value = ((value - 0xD7C0) << 10) + (low - 0xDC00);
      }
    }
    if (value > kLastCodePoint || (value >= 0xD800 && value <= 0xDFFF))
      return error("an escape that is no Unicode character");
    return CharSet(value, value);
  }

  Result<Node> parse_class() {
    ++at_;
    const bool negated = skip('^');
    Node node;
    bool first = true;
    while (true) {
      if (!more()) return error("a class that is not closed");
      if (peek() == ']' && !first) break;
      if (peek() == ']' && first) {
        ++at_;  // ECMAScript: [] is empty, [^] is everything
        node.set = negated ? CharSet::all() : CharSet();
        return node;
      }
      first = false;
      if (peek() == '[' && (peek(1) == ':' || peek(1) == '.' || peek(1) == '=')) return refuse("a POSIX class");
      TRY_ASSIGN(const CharSet low, parse_class_member());
      const bool is_one = low.ranges().size() == 1 && low.ranges()[0].first == low.ranges()[0].second;
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        TRY_ASSIGN(const CharSet high, parse_class_member());
        if (!is_one || high.ranges().size() != 1 || high.ranges()[0].first != high.ranges()[0].second)
          return error("a range between classes");
        if (high.ranges()[0].first < low.ranges()[0].first) return error("a range that runs backwards");
        node.set.add(low.ranges()[0].first, high.ranges()[0].first);
        continue;
      }
      node.set.add(low);
    }
    ++at_;
    if (negated) node.set = node.set.inverse();
    return node;
  }

  Result<CharSet> parse_class_member() {
    if (peek() == '\\') return parse_escape(true);
    const char32_t c = text_[at_++];
    return CharSet(c, c);
  }

  std::u32string text_;
  size_t at_ = 0;
};

class Writer {
 public:
  explicit Writer(RegexMode mode) : mode_(mode) {
    automaton_.start = automaton_.add_node();
    automaton_.end = automaton_.add_node();
  }

  Result<CharAutomaton> run(Node root) {
    TRY(add_alternative(std::move(root)));
    if (full_)
      return too_large("the regular expression needs more than " + std::to_string(kMaxNodes) +
                       " states; use smaller counts");
    return std::move(automaton_);
  }

 private:
  // Outer alternatives carry their own anchors.
  Status add_alternative(Node node) {
    if (node.kind == Node::Kind::kSequence && node.parts.size() == 1 &&
        (node.parts[0].kind == Node::Kind::kChoice || node.parts[0].kind == Node::Kind::kSequence)) {
      return add_alternative(Node(std::move(node.parts[0])));
    }
    if (node.kind == Node::Kind::kChoice) {
      for (Node& part : node.parts) TRY(add_alternative(std::move(part)));
      return {};
    }
    std::vector<Node> parts;
    if (node.kind == Node::Kind::kSequence)
      parts = std::move(node.parts);
    else
      parts.push_back(std::move(node));
    auto first = parts.begin();
    auto last = parts.end();
    while (first != last && first->kind == Node::Kind::kBegin) ++first;
    while (first != last && std::prev(last)->kind == Node::Kind::kEnd) --last;
    const bool begins = first != parts.begin();
    const bool ends = last != parts.end();
    int at = add_node();
    automaton_.nodes[automaton_.start].empties.push_back(at);
    const bool search = mode_ == RegexMode::kSearch;
    if (search && !begins) automaton_.nodes[at].edges.emplace_back(CharSet::all(), at);
    for (auto part = first; part != last; ++part) {
      TRY_ASSIGN(at, add(*part, at));
    }
    if (search && !ends) {
      const int tail = add_node();
      automaton_.nodes[at].empties.push_back(tail);
      automaton_.nodes[tail].edges.emplace_back(CharSet::all(), tail);
      at = tail;
    }
    automaton_.nodes[at].empties.push_back(automaton_.end);
    return {};
  }

  int add_node() {
    if (automaton_.nodes.size() >= kMaxNodes) {
      full_ = true;
      return automaton_.end;
    }
    return automaton_.add_node();
  }

  Result<int> add(const Node& node, int from) {
    if (full_) return from;
    switch (node.kind) {
      case Node::Kind::kSet: {
        const int to = add_node();
        if (!full_) automaton_.nodes[from].edges.emplace_back(node.set, to);
        return to;
      }
      case Node::Kind::kSequence:
        for (const Node& part : node.parts) {
          TRY_ASSIGN(from, add(part, from));
        }
        return from;
      case Node::Kind::kChoice: {
        const int to = add_node();
        for (const Node& part : node.parts) {
          const int begin = add_node();
          automaton_.nodes[from].empties.push_back(begin);
          TRY_ASSIGN(const int end, add(part, begin));
          automaton_.nodes[end].empties.push_back(to);
        }
        return to;
      }
      case Node::Kind::kRepeat:
        return add_repeat(node, from);
      case Node::Kind::kBegin:
      case Node::Kind::kEnd:
        break;
    }
    return invalid_argument(
        "the regular expression has ^ or $ in its middle, which is not supported; put them at its ends");
  }

  Result<int> add_repeat(const Node& node, int from) {
    const Node& part = node.parts[0];
    for (int64_t i = 0; i < node.min && !full_; ++i) {
      const int before = from;
      TRY_ASSIGN(from, add(part, from));
      if (from == before) break;  // the part reads nothing: more of it changes nothing
    }
    const int to = add_node();
    automaton_.nodes[from].empties.push_back(to);
    if (node.max < 0) {
      const int begin = add_node();
      automaton_.nodes[to].empties.push_back(begin);
      TRY_ASSIGN(const int end, add(part, begin));
      automaton_.nodes[end].empties.push_back(to);
      return to;
    }
    for (int64_t i = node.min; i < node.max && !full_; ++i) {
      const int before = from;
      TRY_ASSIGN(from, add(part, from));
      if (from == before) break;
      automaton_.nodes[from].empties.push_back(to);
    }
    return to;
  }

  RegexMode mode_;
  bool full_ = false;
  CharAutomaton automaton_;
};

}  // namespace

Result<CharAutomaton> parse_regex(std::string_view pattern, RegexMode mode) {
  if (static_cast<int64_t>(pattern.size()) > kMaxPatternBytes) {
    return too_large("the regular expression has more than " + std::to_string(kMaxPatternBytes) + " bytes");
  }
  if (!is_valid_utf8(pattern)) return invalid_argument("the regular expression is not valid UTF-8");
  TRY_ASSIGN(Node root, Parser(utf8_decode(pattern)).run());
  return Writer(mode).run(std::move(root));
}

}  // namespace loralei::schema

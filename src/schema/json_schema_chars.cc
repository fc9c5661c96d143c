// SPDX-License-Identifier: Apache-2.0
#include "schema/json_schema_chars.h"

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "base/utf8.h"

namespace loralei::schema {

void CharSet::add(char32_t low, char32_t high) {
  high = std::min(high, kLastCodePoint);
  if (low > high) return;
  // Surrogates are no characters: a range over them is two.
  if (low < 0xD800 && high > 0xDFFF) {
    add(low, 0xD7FF);
    add(0xE000, high);
    return;
  }
  if (low >= 0xD800 && low <= 0xDFFF) low = 0xE000;
  if (high >= 0xD800 && high <= 0xDFFF) high = 0xD7FF;
  if (low > high) return;
  if (ranges_ == nullptr || ranges_.use_count() > 1) ranges_ = std::make_shared<Ranges>(ranges());
  // What it touches becomes one with it.
  const auto begin =
      std::partition_point(ranges_->begin(), ranges_->end(), [&](const auto& range) { return range.second + 1 < low; });
  const auto end =
      std::partition_point(begin, ranges_->end(), [&](const auto& range) { return range.first <= high + 1; });
  if (begin == end) {
    ranges_->insert(begin, {low, high});
    return;
  }
  *begin = {std::min(low, begin->first), std::max(high, std::prev(end)->second)};
  ranges_->erase(std::next(begin), end);
}

const CharSet::Ranges& CharSet::ranges() const {
  static const Ranges none;
  return ranges_ == nullptr ? none : *ranges_;
}

void CharSet::add(const CharSet& other) {
  if (empty()) {
    ranges_ = other.ranges_;
    return;
  }
  const CharSet added = other;  // which may be this very set
  for (const auto& [low, high] : added.ranges()) add(low, high);
}

CharSet CharSet::inverse() const {
  CharSet out;
  char32_t next = 0;
  for (const auto& [low, high] : ranges()) {
    if (low > next) out.add(next, low - 1);
    next = high + 1;
  }
  if (next <= kLastCodePoint) out.add(next, kLastCodePoint);
  return out;
}

bool CharSet::contains(char32_t c) const {
  return std::any_of(ranges().begin(), ranges().end(),
                     [c](const auto& range) { return range.first <= c && c <= range.second; });
}

CharAutomaton with_length(const CharAutomaton& automaton, int64_t min, int64_t max, int64_t limit) {
  // Counting stops where it no longer matters: at min when there is no maximum.
  const int64_t top = max < 0 ? min : max;
  const auto size = static_cast<int64_t>(automaton.nodes.size());
  CharAutomaton out;
  if (top >= limit || size * (top + 1) > limit) return out;
  out.nodes.resize(size * (top + 1) + 1);
  const auto at = [&](int node, int64_t count) { return static_cast<int>(count * size + node); };
  out.end = static_cast<int>(out.nodes.size()) - 1;
  out.start = at(automaton.start, 0);
  for (int64_t count = 0; count <= top; ++count) {
    for (int node = 0; node < size; ++node) {
      auto& target = out.nodes[at(node, count)];
      for (const int empty : automaton.nodes[node].empties) target.empties.push_back(at(empty, count));
      if (node == automaton.end && count >= min) target.empties.push_back(out.end);
      if (count == top && max >= 0) continue;
      for (const auto& [set, next] : automaton.nodes[node].edges)
        target.edges.emplace_back(set, at(next, std::min(count + 1, top)));
    }
  }
  return out;
}

std::string json_char(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  if (c < 0x20) {
    char buffer[8];
    std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(c));
    return buffer;
  }
  std::string out;
  utf8_append(out, c);
  return out;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    // Only ASCII characters are ever escaped: the bytes of longer ones pass as they are.
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80)
      out += json_char(byte);
    else
      out += c;
  }
  return out + "\"";
}

namespace {

// Code points of one UTF-8 length whose encodings are the product of byte ranges are
// written as one path; others are split.
void add_same_length(GrammarBuilder& builder, GrammarStateId from, char32_t low, char32_t high, int bytes,
                     GrammarStateId to) {
  for (int i = bytes - 1; i >= 1; --i) {
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      add_same_length(builder, from, low, low | mask, bytes, to);
      add_same_length(builder, from, (low | mask) + 1, high, bytes, to);
      return;
    }
    if ((high & mask) != mask) {
      add_same_length(builder, from, low, (high & ~mask) - 1, bytes, to);
      add_same_length(builder, from, high & ~mask, high, bytes, to);
      return;
    }
  }
  std::string first;
  std::string last;
  utf8_append(first, low);
  utf8_append(last, high);
  for (int i = 0; i + 1 < bytes; ++i)
    from = builder.range(from, static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]));
  builder.add_range(from, static_cast<uint8_t>(first[bytes - 1]), static_cast<uint8_t>(last[bytes - 1]), to);
}

}  // namespace

void add_utf8_range(GrammarBuilder& builder, GrammarStateId from, char32_t low, char32_t high, GrammarStateId to) {
  static constexpr std::pair<char32_t, char32_t> kLengths[] = {
      {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, kLastCodePoint}};
  static constexpr int kBytes[] = {1, 2, 3, 3, 4};
  for (size_t i = 0; i < std::size(kLengths); ++i) {
    const char32_t first = std::max(low, kLengths[i].first);
    const char32_t last = std::min(high, kLengths[i].second);
    if (first <= last) add_same_length(builder, from, first, last, kBytes[i], to);
  }
}

GrammarRuleId CharWriter::any_json_char() {
  if (has_any_) return any_;
  has_any_ = true;
  any_ = builder_.add_rule();
  GrammarBuilder& b = builder_;
  const GrammarStateId start = b.start(any_);
  const GrammarStateId end = b.add_state();
  b.end_rule(end);
  add_utf8_range(b, start, 0x20, 0x21, end);
  add_utf8_range(b, start, 0x23, 0x5B, end);
  add_utf8_range(b, start, 0x5D, kLastCodePoint, end);
  const GrammarStateId escape = b.range(start, '\\', '\\');
  for (const char c : std::string_view("\"\\/bfnrt"))
    b.add_range(escape, static_cast<uint8_t>(c), static_cast<uint8_t>(c), end);
  const auto hex = [&](GrammarStateId from, GrammarStateId to) {
    b.add_range(from, '0', '9', to);
    b.add_range(from, 'a', 'f', to);
    b.add_range(from, 'A', 'F', to);
  };
  const GrammarStateId last_two = b.add_state();
  const GrammarStateId last_one = b.add_state();
  hex(last_two, last_one);
  hex(last_one, end);
  const GrammarStateId digits = b.range(escape, 'u', 'u');
  const GrammarStateId plain = b.add_state();  // the first digit is not D
  b.add_range(digits, '0', '9', plain);
  b.add_range(digits, 'a', 'c', plain);
  b.add_range(digits, 'A', 'C', plain);
  b.add_range(digits, 'e', 'f', plain);
  b.add_range(digits, 'E', 'F', plain);
  hex(plain, last_two);
  const GrammarStateId after_d = b.add_state();
  b.add_range(digits, 'd', 'd', after_d);
  b.add_range(digits, 'D', 'D', after_d);
  b.add_range(after_d, '0', '7', last_two);
  // A high surrogate is followed by a low one.
  const GrammarStateId high = b.add_state();
  b.add_range(after_d, '8', '9', high);
  b.add_range(after_d, 'a', 'b', high);
  b.add_range(after_d, 'A', 'B', high);
  const GrammarStateId high_last = b.add_state();
  const GrammarStateId high_done = b.add_state();
  hex(high, high_last);
  hex(high_last, high_done);
  const GrammarStateId low = b.literal(high_done, "\\u");
  const GrammarStateId low_d = b.add_state();
  b.add_range(low, 'd', 'd', low_d);
  b.add_range(low, 'D', 'D', low_d);
  b.add_range(low_d, 'c', 'f', last_two);
  b.add_range(low_d, 'C', 'F', last_two);
  return any_;
}

void CharWriter::write_set(GrammarStateId from, const CharSet& set, CharForm form, GrammarStateId to) {
  for (const auto& [low, high] : set.ranges()) {
    if (form == CharForm::kPlain) {
      add_utf8_range(builder_, from, low, high, to);
      continue;
    }
    for (char32_t c = low; c <= std::min<char32_t>(high, '\\'); ++c) {
      if (c >= 0x20 && c != '"' && c != '\\') continue;
      const std::string escaped = json_char(c);
      const GrammarStateId almost = builder_.literal(from, std::string_view(escaped).substr(0, escaped.size() - 1));
      builder_.add_range(almost, static_cast<uint8_t>(escaped.back()), static_cast<uint8_t>(escaped.back()), to);
    }
    static constexpr std::pair<char32_t, char32_t> kUnescaped[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kLastCodePoint}};
    for (const auto& [first, last] : kUnescaped) {
      if (std::max(first, low) <= std::min(last, high))
        add_utf8_range(builder_, from, std::max(first, low), std::min(last, high), to);
    }
  }
}

// Small sets are cheaper in place than as a call.
bool CharWriter::is_small(const CharSet& set) {
  return set.ranges().size() <= 4 && !set.empty() && set.ranges().back().second < 0x80;
}

GrammarRuleId CharWriter::set_rule(const CharSet& set, CharForm form) {
  static const CharSet kAll = CharSet::all();
  if (form == CharForm::kJsonString && set == kAll) return any_json_char();
  const auto [place, fresh] = set_rules_.emplace(std::make_pair(set, form), 0);
  if (fresh) {
    place->second = builder_.add_rule();
    const GrammarStateId end = builder_.add_state();
    builder_.end_rule(end);
    write_set(builder_.start(place->second), set, form, end);
  }
  return place->second;
}

GrammarStateId CharWriter::add_automaton(GrammarStateId from, const CharAutomaton& automaton, CharForm form) {
  std::vector<GrammarStateId> states;
  for (size_t i = 0; i < automaton.nodes.size(); ++i) states.push_back(builder_.add_state());
  std::unordered_map<const void*, GrammarRuleId> rules;  // sets are compared once, not at every repetition
  for (size_t i = 0; i < automaton.nodes.size() && !builder_.is_full(); ++i) {
    for (const int empty : automaton.nodes[i].empties) builder_.add_empty(states[i], states[empty]);
    for (const auto& [set, target] : automaton.nodes[i].edges) {
      if (is_small(set)) {
        write_set(states[i], set, form, states[target]);
        continue;
      }
      const auto [rule, fresh] = rules.emplace(set.shared_ranges(), 0);
      if (fresh) rule->second = set_rule(set, form);
      builder_.add_call(states[i], rule->second, states[target]);
    }
  }
  if (builder_.is_full()) return from;
  builder_.add_empty(from, states[automaton.start]);
  return states[automaton.end];
}

}  // namespace loralei::schema

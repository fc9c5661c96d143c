// SPDX-License-Identifier: Apache-2.0
// Sets of code points, automata over them, and how both are written as bytes: plain UTF-8
// or inside a JSON string.
//
// Thread: values and pure functions; a CharWriter belongs to one compilation.
// Failure: the builder runs full (is_full).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sampling/grammar.h"

namespace loralei::schema {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

// Sorted, disjoint, inclusive ranges without surrogates. Copies share them until one is
// added to: a pattern repeats its classes many times.
class CharSet {
 public:
  using Ranges = std::vector<std::pair<char32_t, char32_t>>;

  CharSet() = default;
  CharSet(char32_t low, char32_t high) { add(low, high); }
  static CharSet all() { return CharSet(0, kLastCodePoint); }
  void add(char32_t low, char32_t high);
  void add(const CharSet& other);
  CharSet inverse() const;
  bool contains(char32_t c) const;
  bool empty() const { return ranges_ == nullptr; }
  const Ranges& ranges() const;
  const void* shared_ranges() const { return ranges_.get(); }  // equal for copies; null: none
  bool shares_ranges_with(const CharSet& other) const { return ranges_ == other.ranges_; }
  bool operator<(const CharSet& other) const { return ranges_ != other.ranges_ && ranges() < other.ranges(); }
  bool operator==(const CharSet& other) const { return ranges_ == other.ranges_ || ranges() == other.ranges(); }

 private:
  std::shared_ptr<Ranges> ranges_;  // null: none
};

// A nondeterministic automaton over code points.
struct CharAutomaton {
  struct Node {
    std::vector<std::pair<CharSet, int>> edges;
    std::vector<int> empties;
  };
  std::vector<Node> nodes;
  int start = 0;
  int end = 0;

  int add_node() {
    nodes.emplace_back();
    return static_cast<int>(nodes.size()) - 1;
  }
};

// The words of `automaton` with min to max code points; max < 0: no limit. Empty nodes
// when it would need more than `limit`.
CharAutomaton with_length(const CharAutomaton& automaton, int64_t min, int64_t max, int64_t limit);

enum class CharForm : unsigned char { kPlain, kJsonString };

class CharWriter {
 public:
  explicit CharWriter(GrammarBuilder& builder) : builder_(builder) {}

  // One character of a JSON string in any form JSON allows (escapes, pairs
  // of surrogates).
  GrammarRuleId any_json_char();
  // Reads a word of the automaton, in JSON strings in plain form (escaped only where it
  // must be); returns the state behind it.
  GrammarStateId add_automaton(GrammarStateId from, const CharAutomaton& automaton, CharForm form);

 private:
  static bool is_small(const CharSet& set);
  void write_set(GrammarStateId from, const CharSet& set, CharForm form, GrammarStateId to);
  GrammarRuleId set_rule(const CharSet& set, CharForm form);

  GrammarBuilder& builder_;
  bool has_any_ = false;
  GrammarRuleId any_ = 0;
  std::map<std::pair<CharSet, CharForm>, GrammarRuleId> set_rules_;
};

// UTF-8 of every code point in [low, high], surrogates left out.
void add_utf8_range(GrammarBuilder& builder, GrammarStateId from, char32_t low, char32_t high, GrammarStateId to);
// The JSON form of one character inside quotes, escaped only where it must be.
std::string json_char(char32_t c);
// A whole JSON string in that form, with its quotes.
std::string json_string(std::string_view text);

}  // namespace loralei::schema

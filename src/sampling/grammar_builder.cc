// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/units.h"

#include "sampling/grammar.h"

namespace loralei {

int64_t GrammarProgram::bytes() const {
  const auto of = [](const auto& items) { return static_cast<int64_t>(items.capacity() * sizeof(items[0])); };
  return of(states) + of(edges) + of(empties) + of(calls) + of(rule_starts);
}

GrammarRuleId GrammarBuilder::add_rule() {
  rule_starts_.push_back(add_state());
  return static_cast<GrammarRuleId>(rule_starts_.size() - 1);
}

// Of building, with the lists that grow by doubling, what finish() makes of them,
// and the writer's own.
bool GrammarBuilder::has_memory() {
  constexpr int64_t kStateBytes = 3 * sizeof(State) + sizeof(GrammarProgram::State), kEdgeBytes = 64;
  constexpr int64_t kTakenAtOnce = kMiB;
  if (!take_) return true;
  const int64_t needed = static_cast<int64_t>(states_.size()) * kStateBytes + edges_ * kEdgeBytes;
  if (needed <= taken_bytes_ + kTakenAtOnce) return true;
  if (refusal_.ok()) refusal_ = take_(kTakenAtOnce);
  if (refusal_.ok()) taken_bytes_ += kTakenAtOnce;
  return refusal_.ok();
}

GrammarStateId GrammarBuilder::add_state() {
  if (static_cast<int64_t>(states_.size()) >= kMaxGrammarStates || !has_memory()) {
    full_ = true;
    return static_cast<GrammarStateId>(states_.size() - 1);
  }
  states_.emplace_back();
  return static_cast<GrammarStateId>(states_.size() - 1);
}

bool GrammarBuilder::take_edge() {
  if (!full_ && (edges_ == kMaxGrammarEdges || !has_memory())) full_ = true;
  edges_ += full_ ? 0 : 1;
  return !full_;
}

void GrammarBuilder::add_range(GrammarStateId from, uint8_t low, uint8_t high, GrammarStateId to) {
  if (take_edge()) states_[from].edges.push_back({low, high, to});
}

void GrammarBuilder::add_empty(GrammarStateId from, GrammarStateId to) {
  if (from != to && take_edge()) states_[from].empties.push_back(to);
}

void GrammarBuilder::add_call(GrammarStateId from, GrammarRuleId rule, GrammarStateId to) {
  if (take_edge()) states_[from].calls.push_back({rule, to});
}

GrammarStateId GrammarBuilder::range(GrammarStateId from, uint8_t low, uint8_t high) {
  const GrammarStateId to = add_state();
  add_range(from, low, high, to);
  return to;
}

GrammarStateId GrammarBuilder::literal(GrammarStateId from, std::string_view bytes) {
  for (const char c : bytes) from = range(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c));
  return from;
}

GrammarStateId GrammarBuilder::call(GrammarStateId from, GrammarRuleId rule) {
  const GrammarStateId to = add_state();
  add_call(from, rule, to);
  return to;
}

// The Knuth-Morris-Pratt automaton of the trigger: state k has read its first k bytes.
GrammarStateId GrammarBuilder::free_text_until(GrammarStateId from, std::string_view trigger, GrammarStateId free_end) {
  const size_t size = trigger.size();
  std::vector<size_t> border(size + 1, 0);  // the longest proper prefix that also ends the first k bytes
  for (size_t k = 1; k < size; ++k) {
    size_t b = border[k];
    while (b > 0 && trigger[b] != trigger[k]) b = border[b];
    border[k + 1] = trigger[b] == trigger[k] ? b + 1 : 0;
  }
  std::vector<GrammarStateId> states;
  for (size_t k = 0; k <= size; ++k) states.push_back(add_state());
  if (full_) return states.back();
  add_empty(from, states[0]);
  for (size_t k = 0; k < size; ++k) {
    mark_free_text(states[k]);
    add_empty(states[k], free_end);
    std::array<size_t, 256> next{};
    for (int byte = 0; byte < 256; ++byte) {
      size_t b = k;
      while (b > 0 && static_cast<uint8_t>(trigger[b]) != byte) b = border[b];
      next[byte] = static_cast<uint8_t>(trigger[b]) == byte ? b + 1 : 0;
    }
    for (int low = 0; low < 256;) {
      int high = low;
      while (high < 255 && next[high + 1] == next[low]) ++high;
      add_range(states[k], static_cast<uint8_t>(low), static_cast<uint8_t>(high), states[next[low]]);
      low = high + 1;
    }
  }
  return states[size];
}

// Whether each state can reach the end of its rule: without reading a byte,
// or (`reading`) at all. Backwards from the ends, every edge is looked at
// once, a call twice.
std::vector<bool> GrammarBuilder::find_ending(bool reading) const {
  constexpr GrammarStateId kNone = UINT32_MAX;
  // `state` ends when what it is filed under does and, of a call, the other of rule and
  // state behind does too.
  struct Use {
    GrammarStateId state;
    GrammarStateId other;
  };
  const auto for_each_use = [&](auto&& use) {
    for (GrammarStateId i = 0; i < states_.size(); ++i) {
      for (const GrammarStateId target : states_[i].empties) use(target, Use{i, kNone});
      for (const auto& call : states_[i].calls) {
        use(call.after, Use{i, rule_starts_[call.rule]});
        use(rule_starts_[call.rule], Use{i, call.after});
      }
      if (!reading) continue;
      for (const auto& edge : states_[i].edges) use(edge.target, Use{i, kNone});
    }
  };
  std::vector<uint32_t> begin(states_.size() + 1, 0);  // uses[begin[state] .. begin[state + 1])
  for_each_use([&](GrammarStateId target, Use) { ++begin[target]; });
  uint32_t sum = 0;
  for (uint32_t& place : begin) place = sum += place;
  std::vector<Use> uses(sum);
  for_each_use([&](GrammarStateId target, Use use) { uses[--begin[target]] = use; });

  std::vector<bool> ending(states_.size(), false);
  std::vector<GrammarStateId> work;
  const auto end = [&](GrammarStateId state) {
    if (ending[state]) return;
    ending[state] = true;
    work.push_back(state);
  };
  for (GrammarStateId i = 0; i < states_.size(); ++i) {
    if (states_[i].ends_rule) end(i);
  }
  while (!work.empty()) {
    const GrammarStateId done = work.back();
    work.pop_back();
    for (uint32_t i = begin[done]; i < begin[done + 1]; ++i) {
      if (uses[i].other == kNone || ending[uses[i].other]) end(uses[i].state);
    }
  }
  return ending;
}

// Takes away every way into a state from which the rule can never end, so that generation
// cannot be led there.
void GrammarBuilder::remove_dead_ends(const std::vector<bool>& ending) {
  for (State& state : states_) {
    std::erase_if(state.edges, [&](const auto& edge) { return !ending[edge.target]; });
    std::erase_if(state.empties, [&](GrammarStateId target) { return !ending[target]; });
    std::erase_if(state.calls,
                  [&](const auto& call) { return !ending[call.after] || !ending[rule_starts_[call.rule]]; });
  }
}

// Whether a state can come back to itself without reading a byte on a way that enters a
// rule: its stack would grow for ever. Tarjan's strongly connected components over empty
// edges, entries into called rules, and steps past calls of rules that can read nothing;
// a component that holds an entry is such a circle.
bool GrammarBuilder::is_left_recursive() const {
  const std::vector<bool> nullable = find_ending(false);
  constexpr uint32_t kNone = UINT32_MAX;
  struct Visit {
    uint32_t state;
    uint32_t next;
  };
  std::vector<uint32_t> number(states_.size(), kNone);
  std::vector<uint32_t> low(states_.size(), 0);
  std::vector<uint32_t> component(states_.size(), kNone);
  std::vector<uint32_t> open;
  std::vector<Visit> path;
  uint32_t count = 0;
  const auto enter = [&](uint32_t state) {
    number[state] = low[state] = count++;
    open.push_back(state);
    path.push_back({state, 0});
  };
  for (const GrammarStateId root : rule_starts_) {
    if (number[root] != kNone) continue;
    enter(root);
    while (!path.empty()) {
      const uint32_t at = path.back().state;
      const State& state = states_[at];
      const auto empties = static_cast<uint32_t>(state.empties.size());
      if (path.back().next < empties + 2 * state.calls.size()) {
        const uint32_t edge = path.back().next++;
        GrammarStateId target = 0;
        if (edge < empties) {
          target = state.empties[edge];
        } else {
          const auto& call = state.calls[(edge - empties) / 2];
          const bool into = (edge - empties) % 2 == 0;
          if (!into && !nullable[rule_starts_[call.rule]]) continue;
          target = into ? rule_starts_[call.rule] : call.after;
        }
        if (number[target] == kNone)
          enter(target);
        else if (component[target] == kNone)
          low[at] = std::min(low[at], number[target]);
        continue;
      }
      path.pop_back();
      if (!path.empty()) low[path.back().state] = std::min(low[path.back().state], low[at]);
      if (low[at] != number[at]) continue;
      uint32_t member = kNone;
      do {
        member = open.back();
        open.pop_back();
        component[member] = at;
      } while (member != at);
    }
  }
  for (uint32_t i = 0; i < states_.size(); ++i) {
    for (const auto& call : states_[i].calls) {
      if (component[i] != kNone && component[i] == component[rule_starts_[call.rule]]) return true;
    }
  }
  return false;
}

Result<std::shared_ptr<const GrammarProgram>> GrammarBuilder::finish(GrammarRuleId root) && {
  if (!refusal_.ok()) return std::move(refusal_).error();
  if (full_) {
    return too_large("the grammar needs more than " + std::to_string(kMaxGrammarStates) + " states or " +
                     std::to_string(kMaxGrammarEdges) + " edges; use smaller repetition counts or a smaller schema");
  }
  if (is_left_recursive()) {
    return invalid_argument(
        "the grammar refers to itself without reading anything in between, so it would never begin; mend the "
        "reference");
  }
  const std::vector<bool> ending = find_ending(true);
  if (!ending[rule_starts_[root]]) {
    return invalid_argument("the grammar allows no text at all: what it asks for contradicts itself");
  }
  remove_dead_ends(ending);
  auto program = std::make_shared<GrammarProgram>();
  program->root = root;
  program->rule_starts = std::move(rule_starts_);
  size_t edges = 0, empties = 0, calls = 0;
  for (const State& state : states_) {
    edges += state.edges.size();
    empties += state.empties.size();
    calls += state.calls.size();
  }
  program->states.reserve(states_.size() + 1);
  program->edges.reserve(edges);
  program->empties.reserve(empties);
  program->calls.reserve(calls);
  for (State& state : states_) {
    program->states.push_back({static_cast<uint32_t>(program->edges.size()),
                               static_cast<uint32_t>(program->empties.size()),
                               static_cast<uint32_t>(program->calls.size()), state.ends_rule, state.is_free_text});
    program->edges.insert(program->edges.end(), state.edges.begin(), state.edges.end());
    program->empties.insert(program->empties.end(), state.empties.begin(), state.empties.end());
    program->calls.insert(program->calls.end(), state.calls.begin(), state.calls.end());
  }
  program->states.push_back({static_cast<uint32_t>(program->edges.size()),
                             static_cast<uint32_t>(program->empties.size()),
                             static_cast<uint32_t>(program->calls.size()), false, false});
  return std::shared_ptr<const GrammarProgram>(std::move(program));
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// Grammars that hold generation to a form: the program (data), the vocabulary as a byte
// trie, and the state of one sequence.
//
//   schema/ builds    GrammarProgram  rules of byte automata that call each other
//   serve/ builds     VocabTrie       token bytes, once for all requests of a tokenizer
//   the engine runs   GrammarState    one per sequence: prepare, mask, advance, rollback
//
// A rule is an automaton over bytes whose edges are byte ranges, empty edges and calls
// of other rules (with the state to return to). A state of the whole is a set of stacks
// of such states. Sets met while running are numbered and their steps remembered, so that
// walking the trie costs one table look-up per node.
//
// Thread: GrammarProgram and VocabTrie are immutable and shared; a GrammarState belongs
// to one sequence and one thread at a time.
// Ownership: a state shares its program and trie by pointer; copying a state copies
// its remembered steps.
// Invariants: only tokens whose bytes the grammar can read are ever allowed;
// end-of-sequence tokens only where the grammar is complete. From every allowed
// prefix the grammar can be completed (the vocabulary permitting). A stack deeper
// than kMaxGrammarDepth or a set larger than kMaxGrammarStacks is cut: then some valid
// continuations are refused, but never an invalid one allowed.
// Failure: building fails with invalid_argument (left recursion, nothing allowed) or
// too_large (kMaxGrammarStates, kMaxGrammarEdges); its time and memory are linear in
// both. Running, a mask that takes more than kMaxMaskWork is given up: whoever asked ends
// the sequence. advance answers false and leaves the state as it was.
//
// Cost: making a mask is the dear part, so it is made in slices (prepare), whose size
// changes nothing of the result. Once it is there, advance() looks up what it remembers.
// What is remembered beyond a mask is bounded (about 2 MiB).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_budget.h"
#include "base/result.h"
#include "sampling/hashed_numbers.h"

namespace loralei {

// Of one program, which then takes up to 20 MB, and a few times that while it is built.
// A schema of hundreds of properties has tens of thousands of states.
inline constexpr int64_t kMaxGrammarStates = 1 << 19;
inline constexpr int64_t kMaxGrammarEdges = 1 << 20;  // bytes, empty edges and calls together
inline constexpr int kMaxGrammarDepth = 256;
inline constexpr int kMaxGrammarStacks = 512;
// Of one mask, in stacks met; a tenth of a second. Usual forms take up to 0.1
// million in a vocabulary of 128,000 tokens, those with many ways to read the same
// text without bound.
inline constexpr int64_t kMaxMaskWork = int64_t{2} << 20;
// A mask that takes more is begun anew without what earlier masks left, so that its work,
// and whether it is given up, follows from the text alone, and memory from one mask.
inline constexpr int64_t kDearMaskWork = int64_t{1} << 16;
inline constexpr int kGrammarRollbackTokens = 64;  // how far back rollback reaches: drafts are shorter

using GrammarStateId = uint32_t;
using GrammarRuleId = uint32_t;

struct GrammarProgram {
  struct Edge {
    uint8_t low = 0;
    uint8_t high = 0;  // inclusive
    GrammarStateId target = 0;
  };
  struct Call {
    GrammarRuleId rule = 0;
    GrammarStateId after = 0;
  };
  struct State {
    uint32_t edges_begin = 0;  // edges[edges_begin .. next state's edges_begin)
    uint32_t empties_begin = 0;
    uint32_t calls_begin = 0;
    bool ends_rule = false;
    bool is_free_text = false;  // special tokens may stand here
  };
  std::vector<State> states;  // one more than there are states: the last holds the ends
  std::vector<Edge> edges;
  std::vector<GrammarStateId> empties;
  std::vector<Call> calls;
  std::vector<GrammarStateId> rule_starts;
  GrammarRuleId root = 0;

  size_t state_count() const { return states.size() - 1; }
  int64_t bytes() const;  // of memory
};

// Writes programs. Rules are made first and filled in any order; every method that reads
// bytes returns the state behind them.
class GrammarBuilder {
 public:
  // `take`: the memory of building, asked for as it grows beyond the first kilobytes.
  // Refused, the builder is full.
  explicit GrammarBuilder(TakeMemory take = {}) : take_(std::move(take)) {}
  GrammarRuleId add_rule();
  GrammarStateId start(GrammarRuleId rule) const { return rule_starts_[rule]; }
  GrammarStateId add_state();
  void end_rule(GrammarStateId state) { states_[state].ends_rule = true; }

  void add_range(GrammarStateId from, uint8_t low, uint8_t high, GrammarStateId to);
  void add_empty(GrammarStateId from, GrammarStateId to);
  void add_call(GrammarStateId from, GrammarRuleId rule, GrammarStateId to);
  void mark_free_text(GrammarStateId state) { states_[state].is_free_text = true; }

  GrammarStateId range(GrammarStateId from, uint8_t low, uint8_t high);
  GrammarStateId literal(GrammarStateId from, std::string_view bytes);
  GrammarStateId call(GrammarStateId from, GrammarRuleId rule);
  // Any text without `trigger` in it, then the trigger: returns the state behind it.
  // The text may also end anywhere before (then `free_end` is set: the states of the free
  // text get an empty edge to it). The trigger is not empty.
  GrammarStateId free_text_until(GrammarStateId from, std::string_view trigger, GrammarStateId free_end);

  // True once more than kMaxGrammarStates or kMaxGrammarEdges, or memory that
  // is not there, were asked for: further states are all one, no edge is added,
  // and finish fails.
  bool is_full() const { return full_; }
  const Status& refusal() const { return refusal_; }  // of memory, which finish() answers as well
  Result<std::shared_ptr<const GrammarProgram>> finish(GrammarRuleId root) &&;

 private:
  struct State {
    std::vector<GrammarProgram::Edge> edges;
    std::vector<GrammarStateId> empties;
    std::vector<GrammarProgram::Call> calls;
    bool ends_rule = false;
    bool is_free_text = false;
  };
  bool take_edge();
  bool has_memory();
  std::vector<bool> find_ending(bool reading) const;
  void remove_dead_ends(const std::vector<bool>& ending);
  bool is_left_recursive() const;

  std::vector<State> states_;
  std::vector<GrammarStateId> rule_starts_;
  int64_t edges_ = 0;
  bool full_ = false;
  const TakeMemory take_;
  int64_t taken_bytes_ = 0;
  Status refusal_;
};

struct GrammarToken {
  enum class Kind : uint8_t { kText, kSpecial, kEnd };
  int32_t id = 0;
  std::string bytes;  // what the token adds to the text; for kSpecial its written form; kEnd needs none
  Kind kind = Kind::kText;
};

// Thread: immutable. Nodes stand in depth-first order, so that leaving a branch
// out is one jump.
class VocabTrie {
 public:
  // Ids must lie in [0, vocab_size) and differ; vocab_size counts the model's logits.
  // Tokens without bytes are never allowed.
  static Result<std::shared_ptr<const VocabTrie>> build(std::vector<GrammarToken> tokens, int64_t vocab_size);

  int64_t vocab_size() const { return vocab_size_; }
  size_t mask_words() const { return static_cast<size_t>((vocab_size_ + 31) / 32); }
  bool is_end(int32_t id) const { return kind_of(id) == GrammarToken::Kind::kEnd; }

 private:
  friend class GrammarState;
  struct Node {
    uint32_t subtree_end = 0;   // the next node that is not below this one
    uint32_t tokens_begin = 0;  // tokens_[tokens_begin .. next node's tokens_begin)
    uint16_t depth = 0;
    uint8_t byte = 0;
  };
  GrammarToken::Kind kind_of(int32_t id) const;
  std::string_view bytes_of(int32_t id) const;

  int64_t vocab_size_ = 0;
  int max_depth_ = 0;
  std::vector<Node> nodes_;  // without the root; one more at the end
  std::vector<int32_t> tokens_;
  std::vector<int32_t> specials_;
  std::vector<int32_t> ends_;
  std::vector<uint8_t> kinds_;        // [vocab_size]; 255: no such token
  std::vector<uint32_t> byte_begin_;  // [vocab_size + 1]
  std::string bytes_;
};

class GrammarState {
 public:
  GrammarState(std::shared_ptr<const GrammarProgram> program, std::shared_ptr<const VocabTrie> vocab);

  // Goes on with the mask of what may come next, for about `work` (in the unit of
  // kMaxMaskWork; a look-up is the 16th part of one), and says how much it took. The
  // least step may meet tens of thousands of stacks.
  int64_t prepare(int64_t work);
  // The mask is there, or was given up. From then on until the state changes:
  bool ready() const { return ready_; }
  // Bit i of word i / 32 is set for every token i that may come next.
  // [vocab->mask_words()]
  std::span<const uint32_t> mask() const { return mask_; }
  // False when no token at all may come: the vocabulary cannot spell what the grammar
  // wants, or too_ambiguous().
  bool any_may_come() const { return any_may_come_; }
  // The mask was given up: the sets of stacks that the vocabulary leads to cost more
  // than kMaxMaskWork.
  bool too_ambiguous() const { return too_ambiguous_; }
  // All of this at once. mask: [vocab->mask_words()]; answers any_may_come().
  bool fill_mask(std::span<uint32_t> mask);
  // Gives the mask up, as one that is too ambiguous: no token may come.
  void give_up();
  int64_t work() const { return work_; }  // stacks met so far; those and sets that were new count more
  int64_t bytes() const;                  // of memory; an upper bound
  bool allows(int32_t token);

  // Goes on with the token. False, and nothing changes, when the token is not allowed.
  bool advance(int32_t token);
  // Goes on with text that no token stands for (a prompt's part of the form). No
  // rollback across it.
  bool advance_bytes(std::string_view bytes);
  // Takes the last `count` tokens back. False, and nothing changes, when fewer (or fewer
  // than that of the last kGrammarRollbackTokens) are remembered; of forms with many
  // readings it may be fewer than these.
  bool rollback(int count);
  void reset();

  bool accepting() const { return ended_ || configs_[current_].accepting; }
  // Nothing but an end-of-sequence token can follow: generation may stop at once.
  bool complete() const { return ended_ || (configs_[current_].accepting && configs_[current_].stacks.empty()); }
  bool ended() const { return ended_; }  // an end-of-sequence token was taken

 private:
  // A stack: its top state and the stack that is left when the top's rule ends.
  struct Stack {
    GrammarStateId state = 0;
    uint32_t below = 0;  // index into stacks_, or kNoStack
    uint32_t depth = 0;
    bool operator==(const Stack& other) const { return state == other.state && below == other.below; }
  };
  // A set of stacks, each with byte edges at its top, and the remembered steps.
  struct Config {
    std::vector<uint32_t> stacks;
    std::array<uint32_t, 256> next{};  // kUnknown until asked for; kDead
    bool accepting = false;
    bool free_text = false;
  };
  struct Mask {
    uint32_t config = 0;
    std::vector<uint32_t> words;
  };
  // Through the trie: how far the mask is.
  struct Walk {
    bool under_way = false;
    bool anew = false;
    uint32_t node = 0;             // the next one
    int64_t begun_work = 0;        // work_ when it began
    std::vector<uint32_t> branch;  // configs along the current branch
  };
  struct Step {
    uint32_t config = 0;
    bool ended = false;
  };

  static constexpr uint32_t kNoStack = UINT32_MAX;
  static constexpr uint32_t kUnknown = UINT32_MAX;
  static constexpr uint32_t kDead = 0;

  uint32_t intern_stack(GrammarStateId state, uint32_t below, uint32_t depth);
  // Follows empty edges, calls and ends of rules from `seeds` until only stacks that
  // read bytes are left.
  uint32_t close(const std::vector<uint32_t>& seeds);
  uint32_t intern_config(Config config);
  uint32_t step(uint32_t config, uint8_t byte) {
    const uint32_t known = configs_[config].next[byte];
    return known != kUnknown ? known : compute_step(config, byte);
  }
  uint32_t compute_step(uint32_t config, uint8_t byte);
  uint32_t step_bytes(uint32_t config, std::string_view bytes);
  void start();
  void forget();  // all sets
  // Forgets all sets but those that the history needs, when many have been met.
  void tidy();
  void tidy_all();
  void change_to(uint32_t config);  // looks for its mask among the kept ones
  void begin_walk(bool anew);
  bool walk(int64_t work, int64_t& looked_up);  // false: not yet through
  void end_walk();

  std::shared_ptr<const GrammarProgram> program_;
  std::shared_ptr<const VocabTrie> vocab_;
  std::vector<Stack> stacks_;
  HashedNumbers stack_index_;
  std::deque<Config> configs_;
  HashedNumbers config_index_;
  std::vector<Mask> masks_;  // few, the latest last
  Walk walk_;
  std::vector<uint32_t> mask_;  // of current_, complete when ready_
  bool ready_ = false;
  bool any_may_come_ = false;
  std::vector<uint64_t> seen_;  // per stack: the number of the closure that met it
  uint64_t closure_ = 0;
  int64_t work_ = 0;
  int64_t set_bytes_ = 0;  // of the stacks in configs_
  bool too_ambiguous_ = false;
  std::vector<Step> history_;  // before each remembered token
  uint32_t current_ = 0;
  bool ended_ = false;
};

}  // namespace loralei

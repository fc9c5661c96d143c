// SPDX-License-Identifier: Apache-2.0
#include "sampling/grammar.h"

#include <algorithm>

#include "base/limits.h"

namespace loralei {

namespace {

constexpr uint8_t kNoToken = 255;
constexpr int64_t kConfigWork = 64;    // of a set that is new, beside its stacks: a table of 256 steps
constexpr int64_t kStackWork = 8;      // of a stack that is new: it is kept
constexpr size_t kKeptMasks = 8;       // the sets that a generation comes back to: inside a string, free text ...
constexpr size_t kManyConfigs = 1024;  // 1 KiB each
constexpr size_t kManyStacks = 1 << 14;
constexpr int64_t kLookUpsPerWork = 16;
constexpr uint32_t kMaxTokenBytes = 4096;
constexpr int64_t kBlockBytes = 32;  // the least that malloc hands out, and its header

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  return hash;
}

}  // namespace

// --- vocabulary

Result<std::shared_ptr<const VocabTrie>> VocabTrie::build(std::vector<GrammarToken> tokens, int64_t vocab_size) {
  if (vocab_size < 1 || vocab_size > kMaxVocab) {
    return invalid_argument("a vocabulary of " + std::to_string(vocab_size) + " tokens is outside 1 to " +
                            std::to_string(kMaxVocab));
  }
  auto trie = std::make_shared<VocabTrie>();
  trie->vocab_size_ = vocab_size;
  trie->kinds_.assign(vocab_size, kNoToken);
  std::vector<const GrammarToken*> by_id(vocab_size, nullptr);
  for (const GrammarToken& token : tokens) {
    if (token.id < 0 || token.id >= vocab_size || by_id[token.id] != nullptr) {
      return invalid_argument("token " + std::to_string(token.id) + " is doubled or outside the vocabulary of " +
                              std::to_string(vocab_size));
    }
    if (token.bytes.size() > kMaxTokenBytes) {
      return invalid_argument("token " + std::to_string(token.id) + " has more than " + std::to_string(kMaxTokenBytes) +
                              " bytes");
    }
    by_id[token.id] = &token;
    trie->kinds_[token.id] = static_cast<uint8_t>(token.kind);
    if (token.kind == GrammarToken::Kind::kSpecial) trie->specials_.push_back(token.id);
    if (token.kind == GrammarToken::Kind::kEnd) trie->ends_.push_back(token.id);
  }
  for (const GrammarToken* token : by_id) {
    trie->byte_begin_.push_back(static_cast<uint32_t>(trie->bytes_.size()));
    if (token != nullptr) trie->bytes_ += token->bytes;
  }
  trie->byte_begin_.push_back(static_cast<uint32_t>(trie->bytes_.size()));

  std::vector<const GrammarToken*> sorted;
  for (const GrammarToken& token : tokens) {
    if (token.kind == GrammarToken::Kind::kText && !token.bytes.empty()) sorted.push_back(&token);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return a->bytes < b->bytes || (a->bytes == b->bytes && a->id < b->id);
  });
  std::vector<uint32_t> branch;  // the nodes from the root to the last one added
  std::string_view previous;
  for (const GrammarToken* token : sorted) {
    const std::string_view bytes = token->bytes;
    size_t shared = 0;
    while (shared < previous.size() && shared < bytes.size() && previous[shared] == bytes[shared]) ++shared;
    for (size_t depth = shared; depth < branch.size(); ++depth)
      trie->nodes_[branch[depth]].subtree_end = static_cast<uint32_t>(trie->nodes_.size());
    branch.resize(shared);
    for (size_t depth = shared; depth < bytes.size(); ++depth) {
      branch.push_back(static_cast<uint32_t>(trie->nodes_.size()));
      trie->nodes_.push_back({0, static_cast<uint32_t>(trie->tokens_.size()), static_cast<uint16_t>(depth),
                              static_cast<uint8_t>(bytes[depth])});
    }
    trie->max_depth_ = std::max(trie->max_depth_, static_cast<int>(bytes.size()));
    trie->tokens_.push_back(token->id);
    previous = bytes;
  }
  for (const uint32_t node : branch) trie->nodes_[node].subtree_end = static_cast<uint32_t>(trie->nodes_.size());
  trie->nodes_.push_back(
      {static_cast<uint32_t>(trie->nodes_.size()), static_cast<uint32_t>(trie->tokens_.size()), 0, 0});
  return std::shared_ptr<const VocabTrie>(std::move(trie));
}

GrammarToken::Kind VocabTrie::kind_of(int32_t id) const {
  if (id < 0 || id >= vocab_size_ || kinds_[id] == kNoToken) return GrammarToken::Kind::kText;
  return static_cast<GrammarToken::Kind>(kinds_[id]);
}

std::string_view VocabTrie::bytes_of(int32_t id) const {
  if (id < 0 || id >= vocab_size_) return {};
  return std::string_view(bytes_).substr(byte_begin_[id], byte_begin_[id + 1] - byte_begin_[id]);
}

// --- sets of stacks

GrammarState::GrammarState(std::shared_ptr<const GrammarProgram> program, std::shared_ptr<const VocabTrie> vocab)
    : program_(std::move(program)), vocab_(std::move(vocab)) {
  start();
}

void GrammarState::start() {
  forget();
  masks_.clear();
  history_.clear();
  ended_ = false;
  change_to(close({intern_stack(program_->rule_starts[program_->root], kNoStack, 1)}));
}

void GrammarState::forget() {
  stacks_ = {};
  stack_index_.clear();
  configs_.clear();
  set_bytes_ = 0;
  config_index_.clear();
  seen_ = {};
  Config dead;
  dead.next.fill(kDead);
  configs_.push_back(std::move(dead));
}

void GrammarState::reset() { start(); }

uint32_t GrammarState::intern_stack(GrammarStateId state, uint32_t below, uint32_t depth) {
  const Stack stack{state, below, depth};
  const uint64_t hash = mix(state, below);
  const uint32_t known = stack_index_.find(hash, [&](uint32_t number) { return stacks_[number] == stack; });
  if (known != HashedNumbers::kNone) return known;
  work_ += kStackWork;
  const auto number = static_cast<uint32_t>(stacks_.size());
  stack_index_.add(hash, number);
  stacks_.push_back(stack);
  seen_.push_back(0);
  return number;
}

uint32_t GrammarState::close(const std::vector<uint32_t>& seeds) {
  const GrammarProgram& program = *program_;
  ++closure_;
  Config config;
  std::vector<uint32_t> work;
  const auto meet = [&](uint32_t stack) {
    if (seen_[stack] == closure_ || stacks_[stack].depth > kMaxGrammarDepth) return;
    seen_[stack] = closure_;
    work.push_back(stack);
  };
  // A circle of rules that read nothing can meet many stacks; what is met in one closure
  // is bounded like the set itself.
  size_t met = 0;
  for (const uint32_t seed : seeds) meet(seed);
  while (!work.empty() && met++ < 32 * static_cast<size_t>(kMaxGrammarStacks)) {
    const uint32_t at = work.back();
    work.pop_back();
    const Stack stack = stacks_[at];
    const auto& state = program.states[stack.state];
    const auto& following = program.states[stack.state + 1];
    if (state.edges_begin != following.edges_begin && config.stacks.size() < static_cast<size_t>(kMaxGrammarStacks)) {
      config.stacks.push_back(at);
      config.free_text |= state.is_free_text;
    }
    for (uint32_t i = state.empties_begin; i < following.empties_begin; ++i)
      meet(intern_stack(program.empties[i], stack.below, stack.depth));
    for (uint32_t i = state.calls_begin; i < following.calls_begin; ++i) {
      const auto& call = program.calls[i];
      const auto& after = program.states[call.after];
      const auto& after_next = program.states[call.after + 1];
      // Nothing comes after the call but the end of the rule: the callee can return to
      // our caller (stacks stay small).
      const bool is_last = after.ends_rule && after.edges_begin == after_next.edges_begin &&
                           after.empties_begin == after_next.empties_begin &&
                           after.calls_begin == after_next.calls_begin;
      const uint32_t below = is_last ? stack.below : intern_stack(call.after, stack.below, stack.depth);
      meet(intern_stack(program.rule_starts[call.rule], below, is_last ? stack.depth : stack.depth + 1));
    }
    if (!state.ends_rule) continue;
    if (stack.below == kNoStack)
      config.accepting = true;
    else
      meet(stack.below);
  }
  work_ += static_cast<int64_t>(met);
  return intern_config(std::move(config));
}

uint32_t GrammarState::intern_config(Config config) {
  if (config.stacks.empty() && !config.accepting) return kDead;
  std::sort(config.stacks.begin(), config.stacks.end());
  uint64_t hash = config.accepting ? 1 : 2;
  for (const uint32_t stack : config.stacks) hash = mix(hash, stack);
  const uint32_t known = config_index_.find(hash, [&](uint32_t number) {
    return configs_[number].stacks == config.stacks && configs_[number].accepting == config.accepting;
  });
  if (known != HashedNumbers::kNone) return known;
  work_ += kConfigWork;
  config.next.fill(kUnknown);
  const auto number = static_cast<uint32_t>(configs_.size());
  config_index_.add(hash, number);
  set_bytes_ += kBlockBytes + static_cast<int64_t>(config.stacks.capacity() * sizeof(uint32_t));
  configs_.push_back(std::move(config));
  return number;
}

uint32_t GrammarState::compute_step(uint32_t config, uint8_t byte) {
  const GrammarProgram& program = *program_;
  work_ += static_cast<int64_t>(configs_[config].stacks.size());
  std::vector<uint32_t> seeds;
  for (size_t s = 0; s < configs_[config].stacks.size(); ++s) {
    const Stack stack = stacks_[configs_[config].stacks[s]];
    const uint32_t end = program.states[stack.state + 1].edges_begin;
    for (uint32_t i = program.states[stack.state].edges_begin; i < end; ++i) {
      const auto& edge = program.edges[i];
      if (edge.low <= byte && byte <= edge.high) seeds.push_back(intern_stack(edge.target, stack.below, stack.depth));
    }
  }
  const uint32_t next = seeds.empty() ? kDead : close(std::move(seeds));
  configs_[config].next[byte] = next;
  return next;
}

uint32_t GrammarState::step_bytes(uint32_t config, std::string_view bytes) {
  for (const char c : bytes) {
    config = step(config, static_cast<uint8_t>(c));
    if (config == kDead) break;
  }
  return config;
}

void GrammarState::tidy() {
  if (configs_.size() >= kManyConfigs || stacks_.size() >= kManyStacks) tidy_all();
}

void GrammarState::tidy_all() {
  const std::vector<Stack> old_stacks = std::move(stacks_);
  const std::deque<Config> old_configs = std::move(configs_);
  forget();
  std::vector<uint32_t> stack_numbers(old_stacks.size(), kNoStack);
  const auto move_stack = [&](uint32_t top) {
    std::vector<uint32_t> chain;  // from the top down to a stack that was moved before
    while (top != kNoStack && stack_numbers[top] == kNoStack) {
      chain.push_back(top);
      top = old_stacks[top].below;
    }
    uint32_t below = top == kNoStack ? kNoStack : stack_numbers[top];
    for (size_t i = chain.size(); i-- > 0;) {
      below = intern_stack(old_stacks[chain[i]].state, below, old_stacks[chain[i]].depth);
      stack_numbers[chain[i]] = below;
    }
    return below;
  };
  const auto move_config = [&](uint32_t number) {
    const Config& old = old_configs[number];
    Config config;
    for (const uint32_t stack : old.stacks) config.stacks.push_back(move_stack(stack));
    config.accepting = old.accepting;
    config.free_text = old.free_text;
    return intern_config(std::move(config));
  };
  const auto has_room = [&] { return configs_.size() < kManyConfigs / 2 && stacks_.size() < kManyStacks / 2; };
  current_ = move_config(current_);
  // The latest first: what has no room is forgotten.
  size_t kept = masks_.size();
  while (kept > 0 && has_room()) {
    --kept;
    masks_[kept].config = move_config(masks_[kept].config);
  }
  masks_.erase(masks_.begin(), masks_.begin() + static_cast<int64_t>(kept));
  kept = history_.size();
  while (kept > 0 && has_room()) {
    --kept;
    history_[kept].config = move_config(history_[kept].config);
  }
  history_.erase(history_.begin(), history_.begin() + static_cast<int64_t>(kept));
}

// --- masks

void GrammarState::change_to(uint32_t config) {
  current_ = config;
  walk_.under_way = ready_ = too_ambiguous_ = false;
  const auto known =
      std::find_if(masks_.begin(), masks_.end(), [&](const Mask& m) { return !ended_ && m.config == current_; });
  if (known == masks_.end()) return;
  std::rotate(known, known + 1, masks_.end());
  mask_ = masks_.back().words;
  ready_ = any_may_come_ = true;
}

int64_t GrammarState::prepare(int64_t work) {
  if (ready_) return 0;
  const int64_t before = work_;
  if (!walk_.under_way) begin_walk(false);
  int64_t looked_up = 0;
  if (walk(work, looked_up)) end_walk();
  return work_ - before + looked_up / kLookUpsPerWork;
}

void GrammarState::begin_walk(bool anew) {
  if (anew) tidy_all();
  mask_.assign(vocab_->mask_words(), 0u);
  walk_.under_way = true;
  walk_.anew = anew;
  walk_.node = 0;
  walk_.begun_work = work_;
  walk_.branch.assign(static_cast<size_t>(vocab_->max_depth_) + 1, kDead);
  walk_.branch[0] = current_;
}

bool GrammarState::walk(int64_t work, int64_t& looked_up) {
  if (ended_) return true;
  const int64_t before = work_;
  const auto& nodes = vocab_->nodes_;
  const auto count = static_cast<uint32_t>(nodes.size() - 1);
  uint32_t i = walk_.node;
  while (i < count) {
    if (looked_up > 0 && work_ - before + looked_up / kLookUpsPerWork >= work) {
      walk_.node = i;
      return false;
    }
    ++looked_up;
    const VocabTrie::Node& node = nodes[i];
    const uint32_t next = step(walk_.branch[node.depth], node.byte);
    if (work_ - walk_.begun_work > kMaxMaskWork) {
      too_ambiguous_ = true;
      return true;
    }
    if (work_ - walk_.begun_work > kDearMaskWork && !walk_.anew) {
      begin_walk(true);
      i = walk_.node;
      continue;
    }
    if (next == kDead) {
      i = node.subtree_end;
      continue;
    }
    walk_.branch[node.depth + 1] = next;
    for (uint32_t t = node.tokens_begin; t < nodes[i + 1].tokens_begin; ++t) {
      const auto id = static_cast<uint32_t>(vocab_->tokens_[t]);
      mask_[id / 32] |= 1u << (id % 32);
    }
    ++i;
  }
  for (const int32_t id : vocab_->specials_) {
    const bool allowed = configs_[current_].free_text && step_bytes(current_, vocab_->bytes_of(id)) != kDead;
    if (allowed) mask_[id / 32] |= 1u << (id % 32);
  }
  return true;
}

void GrammarState::give_up() {
  too_ambiguous_ = true;
  end_walk();
}

// Tables grow by doubling and are copied: three times what they hold. The index of either
// has four places of 8 bytes for each entry at most, and twice as much while it grows.
int64_t GrammarState::bytes() const {
  constexpr int64_t kIndexBytes = 3 * 4 * 8;
  constexpr int64_t kStackBytes = 3 * (sizeof(Stack) + sizeof(uint64_t)) + kIndexBytes;
  constexpr int64_t kSetBytes = sizeof(Config) + kIndexBytes;
  constexpr int64_t kOtherBytes = 16 << 10;
  const auto masks = static_cast<int64_t>((masks_.size() + 2) * vocab_->mask_words() * sizeof(uint32_t));
  return kOtherBytes + static_cast<int64_t>(stacks_.size()) * kStackBytes +
         static_cast<int64_t>(configs_.size()) * kSetBytes + set_bytes_ + masks;
}

void GrammarState::end_walk() {
  walk_.under_way = false;
  ready_ = true;
  if (too_ambiguous_) {
    std::fill(mask_.begin(), mask_.end(), 0u);
  } else if (accepting()) {
    for (const int32_t id : vocab_->ends_) mask_[id / 32] |= 1u << (id % 32);
  }
  any_may_come_ = std::any_of(mask_.begin(), mask_.end(), [](uint32_t word) { return word != 0; });
  if (any_may_come_ && !ended_) {
    if (masks_.size() >= kKeptMasks) masks_.erase(masks_.begin());
    masks_.push_back({current_, mask_});
  }
  tidy();
}

bool GrammarState::fill_mask(std::span<uint32_t> mask) {
  CHECK(mask.size() == vocab_->mask_words());
  while (!ready_) prepare(kMaxMaskWork);
  std::copy(mask_.begin(), mask_.end(), mask.begin());
  return any_may_come_;
}

// --- tokens

bool GrammarState::allows(int32_t token) {
  if (token < 0 || token >= vocab_->vocab_size_ || vocab_->kinds_[token] == kNoToken) return false;
  switch (vocab_->kind_of(token)) {
    case GrammarToken::Kind::kEnd:
      return accepting();
    case GrammarToken::Kind::kSpecial:
      return !ended_ && configs_[current_].free_text && step_bytes(current_, vocab_->bytes_of(token)) != kDead;
    case GrammarToken::Kind::kText:
      break;
  }
  const std::string_view bytes = vocab_->bytes_of(token);
  return !ended_ && !bytes.empty() && step_bytes(current_, bytes) != kDead;
}

bool GrammarState::advance(int32_t token) {
  if (!allows(token)) return false;
  if (history_.size() >= 2 * static_cast<size_t>(kGrammarRollbackTokens)) {
    history_.erase(history_.begin(), history_.begin() + kGrammarRollbackTokens);
  }
  history_.push_back({current_, ended_});
  ended_ |= vocab_->is_end(token);
  change_to(vocab_->is_end(token) ? current_ : step_bytes(current_, vocab_->bytes_of(token)));
  tidy();
  return true;
}

bool GrammarState::advance_bytes(std::string_view bytes) {
  if (ended_) return false;
  const uint32_t next = step_bytes(current_, bytes);
  if (next == kDead) return false;
  change_to(next);
  history_.clear();
  tidy();
  return true;
}

bool GrammarState::rollback(int count) {
  if (count < 0 || count > static_cast<int>(history_.size())) return false;
  if (count == 0) return true;
  const Step step = history_[history_.size() - count];
  history_.resize(history_.size() - count);
  ended_ = step.ended;
  change_to(step.config);
  return true;
}

}  // namespace loralei

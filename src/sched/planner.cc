// SPDX-License-Identifier: Apache-2.0
#include "sched/planner.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/limits.h"

namespace loralei {
namespace {

using Entry = PlanScratch::Entry;

int32_t blocks_for(int32_t tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

// Positions in [begin, end) of this sequence that want logits.
int32_t logits_wanted(const SeqState& seq, int32_t begin, int32_t end) {
  const int32_t extra_begin = std::max(begin, seq.logits_begin), extra_end = std::min(end, seq.logits_end);
  int32_t count = std::max(0, extra_end - extra_begin);
  const int32_t last = seq.known - 1;
  if (seq.sample && begin <= last && last < end && (last < seq.logits_begin || last >= seq.logits_end)) ++count;
  return count;
}

int32_t segments_of(const SeqState& seq) { return static_cast<int32_t>(seq.adapters.size()); }

bool wants_logits(const SeqState& seq, int32_t position) {
  return (seq.sample && position >= seq.known - 1) || (position >= seq.logits_begin && position < seq.logits_end);
}

// The plan under construction: what is left of tokens, logits rows and blocks.
class Planning {
 public:
  Planning(const PlanInput& input, const PlanOptions& options, PlanScratch& scratch, PlanOutput& output)
      : input_(input), options_(options), scratch_(scratch), output_(output) {
    tokens_left_ = options.step_tokens;
    logits_left_ = options.logits_rows;
    segments_left_ = options.segments;
    blocks_left_ = input.blocks_available;
    scratch_.running.clear();
    scratch_.admitted.clear();
    for (const SeqState& seq : input.running) {
      CHECK(seq.computed < seq.known);
      CHECK(seq.draft.empty() || (seq.sample && seq.known - seq.computed == 1));
      scratch_.running.push_back({.seq = &seq});
    }
    alive_ = static_cast<int32_t>(input.running.size());
  }

  void decode() {
    for (Entry& entry : scratch_.running) {
      if (entry.seq->known - entry.seq->computed == 1) schedule(entry, true);
    }
  }
  void prefill() {
    for (Entry& entry : scratch_.running) {
      if (entry.seq->known - entry.seq->computed > 1) schedule(entry, false);
    }
  }
  void admit();
  void speculate();
  void emit();

 private:
  // Rows that tokens and logits budgets allow from `computed` on.
  int32_t rows_within_budget(const SeqState& seq) const {
    if (segments_of(seq) > segments_left_) return 0;
    int32_t rows = std::min(seq.known - seq.computed, tokens_left_);
    const int32_t excess = logits_wanted(seq, seq.computed, seq.computed + rows) - logits_left_;
    // Rows that want logits are a run that ends the chunk or (prompt logprobs) fills it: dropping the last rows drops
    // their logits first.
    for (int32_t dropped = 0; dropped < excess && rows > 0; --rows) {
      if (wants_logits(seq, seq.computed + rows - 1)) ++dropped;
    }
    return rows;
  }

  void give(Entry& entry, int32_t rows, int32_t blocks) {
    entry.rows = rows;
    entry.blocks = blocks;
    entry.logits = logits_wanted(*entry.seq, entry.seq->computed, entry.seq->computed + rows);
    tokens_left_ -= rows;
    logits_left_ -= entry.logits;
    segments_left_ -= segments_of(*entry.seq);
    blocks_left_ -= blocks;
  }

  void schedule(Entry& entry, bool decode);
  bool preempt_youngest(const Entry& needy);

  const PlanInput& input_;
  const PlanOptions& options_;
  PlanScratch& scratch_;
  PlanOutput& output_;
  int32_t tokens_left_ = 0, logits_left_ = 0, segments_left_ = 0, blocks_left_ = 0;
  int32_t alive_ = 0;     // running and not preempted
  int32_t promised_ = 0;  // blocks that sequences will still ask for
};

void Planning::schedule(Entry& entry, bool decode) {
  if (entry.preempted || entry.seq->waits) return;
  const SeqState& seq = *entry.seq;
  int32_t rows = rows_within_budget(seq);
  while (rows > 0) {
    const int32_t blocks = std::max(0, blocks_for(seq.computed + rows) - seq.blocks);
    if (blocks <= blocks_left_) {
      give(entry, rows, blocks);
      return;
    }
    if (preempt_youngest(entry)) continue;
    if (decode && alive_ > 1) {  // itself the youngest
      entry.preempted = true;
      --alive_;
      blocks_left_ += seq.blocks_exclusive;
      output_.preempted.push_back(seq.id);
      return;
    }
    // The youngest prefill takes what is left.
    rows = std::min(rows, (seq.blocks + std::max(0, blocks_left_)) * kKvBlockTokens - seq.computed);
    if (blocks_for(seq.computed + rows) - seq.blocks > blocks_left_) return;
  }
}

// Preempts the youngest running sequence that is younger than `needy`. False when there is none.
bool Planning::preempt_youngest(const Entry& needy) {
  for (size_t index = scratch_.running.size(); index-- > 0;) {
    Entry& victim = scratch_.running[index];
    if (victim.preempted) continue;
    if (&victim == &needy) return false;
    victim.preempted = true;
    --alive_;
    blocks_left_ += victim.blocks + victim.seq->blocks_exclusive;
    tokens_left_ += victim.rows;
    logits_left_ += victim.logits;
    if (victim.rows > 0) segments_left_ += segments_of(*victim.seq);
    victim.rows = victim.blocks = victim.logits = 0;
    // Blocks that several victims share count for none of them; alone, everything but the sequence's own blocks can be
    // had.
    if (alive_ == 1) blocks_left_ = input_.blocks_total - needy.seq->blocks;
    output_.preempted.push_back(victim.seq->id);
    return true;
  }
  return false;
}

void Planning::admit() {
  if (!output_.preempted.empty()) {  // KV is short: whoever was sent away must not be let in again in the same step
    output_.deferred = true;
    return;
  }
  for (const Entry& entry : scratch_.running) {
    promised_ += std::max(0, blocks_for(entry.seq->known + 1) - entry.seq->blocks - entry.blocks);
  }
  options_.admission(input_.waiting, scratch_.order);
  for (const int32_t index : scratch_.order) {
    const SeqState& seq = input_.waiting[static_cast<size_t>(index)];
    if (blocks_for(seq.known) > input_.blocks_total) {
      output_.impossible.push_back(seq.id);
      continue;
    }
    if (alive_ >= options_.max_sequences || tokens_left_ < 1) return;
    const int32_t whole = std::max(0, blocks_for(seq.known + 1) - seq.blocks);
    const int32_t spare = alive_;  // one block for each running sequence to grow into
    const int32_t left = blocks_left_ - seq.blocks_exclusive;
    const bool alone = alive_ == 0;
    const int32_t first = std::max(0, blocks_for(seq.known) - seq.blocks);
    if (alone ? first > left : whole + spare + promised_ > left) {
      output_.deferred = true;
      return;
    }
    Entry entry{.seq = &seq};
    const int32_t rows = rows_within_budget(seq);
    if (rows < 1) return;
    blocks_left_ -= seq.blocks_exclusive;
    give(entry, rows, std::max(0, blocks_for(seq.computed + rows) - seq.blocks));
    promised_ += whole - std::min(whole, entry.blocks);
    ++alive_;
    scratch_.admitted.push_back(entry);
    output_.admitted.push_back(seq.id);
  }
}

void Planning::speculate() {
  for (Entry& entry : scratch_.running) {
    const SeqState& seq = *entry.seq;
    if (entry.rows == 0 || seq.draft.empty()) continue;
    const int32_t held = std::max(seq.blocks + entry.blocks, blocks_for(seq.computed + entry.rows));
    const int32_t spare = output_.deferred ? 0 : std::max(0, blocks_left_ - promised_ - alive_);
    const int32_t room = (held + spare) * kKvBlockTokens - seq.computed - entry.rows;
    const int32_t rows = std::min({static_cast<int32_t>(seq.draft.size()), tokens_left_, logits_left_, room});
    if (rows < 1) continue;
    const int32_t blocks = std::max(0, blocks_for(seq.computed + entry.rows + rows) - held);
    entry.rows += rows;
    entry.logits += rows;
    entry.blocks += blocks;
    tokens_left_ -= rows;
    logits_left_ -= rows;
    blocks_left_ -= blocks;
  }
}

// Rows without adapter first, then by the list of (version, scale), then by age.
bool before(const Entry* a, const Entry* b) {
  const auto x = a->seq->adapters, y = b->seq->adapters;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (x[i].version != y[i].version) return x[i].version < y[i].version;
    const auto p = std::bit_cast<uint32_t>(x[i].scale), q = std::bit_cast<uint32_t>(y[i].scale);
    if (p != q) return p < q;
  }
  if (x.size() != y.size()) return x.size() < y.size();
  return a->seq->order < b->seq->order;
}

void Planning::emit() {
  auto& rows = scratch_.rows;
  rows.clear();
  for (const Entry& entry : scratch_.running) {
    if (entry.rows > 0) rows.push_back(&entry);
  }
  for (const Entry& entry : scratch_.admitted) rows.push_back(&entry);
  std::sort(rows.begin(), rows.end(), before);
  StepPlan& plan = output_.plan;
  for (const Entry* entry : rows) {
    const SeqState& seq = *entry->seq;
    PlanGroup group;
    group.seq = seq.id;
    group.position = seq.computed;
    group.row_begin = static_cast<int32_t>(plan.tokens.size());
    group.row_count = entry->rows;
    group.logits_begin = static_cast<int32_t>(plan.logits_rows.size());
    const int32_t end = seq.computed + entry->rows, known_end = std::min(end, seq.known);
    group.provisional = end > seq.known;
    group.want_hidden = seq.hidden == HiddenRows::kAll || (seq.hidden == HiddenRows::kLast && end == seq.known);
    plan.tokens.insert(plan.tokens.end(), seq.tokens + seq.computed, seq.tokens + known_end);
    plan.tokens.insert(plan.tokens.end(), seq.draft.begin(), seq.draft.begin() + (end - known_end));
    for (int32_t position = seq.computed; position < end; ++position) {
      if (wants_logits(seq, position)) plan.logits_rows.push_back(group.row_begin + position - seq.computed);
    }
    group.logits_count = static_cast<int32_t>(plan.logits_rows.size()) - group.logits_begin;
    for (const SeqAdapter& adapter : seq.adapters) {
      const int32_t skipped = std::max(0, adapter.first_position - seq.computed);
      if (skipped >= entry->rows) break;  // nor do those behind it begin here
      plan.segments.push_back({group.row_begin + skipped, entry->rows - skipped, adapter.version, adapter.scale});
    }
    plan.groups.push_back(group);
  }
}

// Of a step that has as many to give, at least: the last row may find no logits, and of a prompt's log-probabilities
// that all want some any number.
int32_t least_rows(const SeqState& seq) {
  if (seq.waits) return 0;
  if (seq.logits_begin < seq.logits_end) return 0;
  const int32_t rows = seq.known - seq.computed;
  return rows > 1 ? rows - 1 : rows;
}

}  // namespace

int32_t rows_to_admit(std::span<const SeqState> running, const PlanOptions& options) {
  int64_t rows = 0, segments = 0;
  for (const SeqState& seq : running) {
    rows += least_rows(seq);
    segments += segments_of(seq);
  }
  if (segments > options.segments) rows = 0;  // some of them wait
  return static_cast<int32_t>(std::max<int64_t>(0, options.step_tokens - rows));
}

int32_t rows_if_admitted(const SeqState& waiting, int32_t blocks_total) {
  if (blocks_for(waiting.known) > blocks_total) return 0;  // it never is
  return std::max(1, least_rows(waiting));
}

void fifo_order(std::span<const SeqState> waiting, std::vector<int32_t>& order) {
  order.clear();
  for (size_t index = 0; index < waiting.size(); ++index) order.push_back(static_cast<int32_t>(index));
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return waiting[static_cast<size_t>(a)].order < waiting[static_cast<size_t>(b)].order;
  });
}

void plan_step(const PlanInput& input, const PlanOptions& options, PlanScratch& scratch, PlanOutput& output) {
  output.plan.clear();
  output.plan.step = input.step;
  output.admitted.clear();
  output.preempted.clear();
  output.impossible.clear();
  output.deferred = false;
  Planning planning(input, options, scratch, output);
  planning.decode();
  planning.prefill();
  planning.admit();
  planning.speculate();
  planning.emit();
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "sched/step_planner.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/limits.h"
#include "kv/block_count.h"

namespace loralei {
namespace {

constexpr int32_t kOldestShare = 4;  // the oldest prompt gets one part of so many

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

bool fewer_left(const SeqState& a, const SeqState& b) {
  return a.remaining() != b.remaining() ? a.remaining() < b.remaining() : a.order < b.order;
}

}  // namespace

// Of the pool.
int32_t StepPlanner::held_by(const SeqState& seq) const {
  return input_.tables.has_windows() ? seq.blocks_held : seq.blocks;
}

// That so many more blocks of text take of the pool in a step.
int32_t StepPlanner::pool_blocks(int32_t more) const { return std::max(0, more) * input_.tables.count(); }

// Blocks of the pool that the whole known text and one token more need beside those held,
// at most.
int32_t StepPlanner::whole_need(const SeqState& seq) const {
  const KvTables& tables = input_.tables;
  const int64_t more = std::max(0, kv_blocks_for(seq.known + 1) - seq.blocks);
  if (!tables.has_windows() || more == 0) return static_cast<int32_t>(more);
  const int64_t sliding = (seq.blocks_held - int64_t{tables.full} * seq.blocks) / tables.sliding;
  return static_cast<int32_t>(tables.blocks(more, std::max<int64_t>(1, tables.places_most() - sliding)));
}

// And of the known text alone where nobody else runs: steps may be as small as they must.
int32_t StepPlanner::alone_need(const SeqState& seq) const {
  const KvTables& tables = input_.tables;
  const int64_t more = std::max(0, kv_blocks_for(seq.known) - seq.blocks);
  if (!tables.has_windows() || more == 0) return static_cast<int32_t>(more);
  const int64_t sliding = (seq.blocks_held - int64_t{tables.full} * seq.blocks) / tables.sliding;
  return static_cast<int32_t>(tables.blocks(more, std::max<int64_t>(1, tables.places_least() - sliding)));
}

void StepPlanner::begin(const PlanInput& input) {
  input_ = input;
  CHECK(input.blocks_available >= 0 && input.blocks_available <= input.blocks_total);
  CHECK(static_cast<int32_t>(input.running.size()) <= options_.max_sequences);
  tokens_left_ = options_.step_tokens;
  logits_left_ = options_.logits_rows;
  segments_left_ = options_.segments;
  blocks_left_ = input.blocks_available;
  left_for_new_ = input.blocks_for_new;
  promised_ = prompt_rows_ = 0;
  deferred_ = false;
  entries_.clear();
  preempted_.clear();
  admitted_.clear();
  const auto most = static_cast<size_t>(options_.max_sequences);
  admitted_.reserve(most);
  entries_.reserve(most);
  for (const SeqState& seq : input.running) {
    CHECK(seq.computed < seq.known);
    CHECK(seq.draft.empty() || (seq.sample && seq.remaining() == 1));
    CHECK(entries_.empty() || entries_.back().seq->order < seq.order);
    entries_.push_back({.seq = &seq});
  }
  alive_ = static_cast<int32_t>(entries_.size());
  for (Entry& entry : entries_) {
    if (entry.seq->remaining() > 1 || entry.preempted || entry.seq->waits) continue;
    schedule(entry, 1);
  }
  for (const Entry& entry : entries_) {
    if (!entry.preempted) promised_ += std::max(0, whole_need(*entry.seq) - entry.blocks);
  }
}

// A sequence that has more than one row left, or joins now, gets its rows under rule 2.
bool StepPlanner::is_prompt(const Entry& entry) const {
  return !entry.preempted && !entry.seq->waits && (entry.admitted || entry.seq->remaining() > 1);
}

// Rows beside the decode rows, as far as the step's time allows: of prompts, then of
// drafts.
int32_t StepPlanner::rows_in_time() const { return alive_ <= 1 ? input_.rows.alone : input_.rows.shared; }

// Those that it would get, and no more than a few of them, in a step of those that are
// there now: of its queue's share, or of what is left when all others have theirs.
int32_t StepPlanner::rows_for(const SeqState& candidate) const {
  const int32_t total = std::min(tokens_left_, alive_ == 0 ? input_.rows.alone : input_.rows.shared);
  const int32_t own = rows_among(candidate, rows_of_queue(candidate.queue, total));
  if (own > 0 || input_.row_shares.size() <= 1) return own;
  int32_t spare = total;
  for (const Entry& entry : entries_) {
    if (is_prompt(entry)) spare -= entry.seq->remaining();
    if (spare <= 0) return 0;
  }
  return std::min(spare, candidate.remaining());
}

int32_t StepPlanner::rows_of_queue(int32_t queue, int32_t total) const {
  if (input_.row_shares.empty()) return total;
  return std::min(total, static_cast<int32_t>(std::ceil(total * input_.row_shares[static_cast<size_t>(queue)])));
}

// Of so many rows for its queue.
int32_t StepPlanner::rows_among(const SeqState& candidate, int32_t total) const {
  const auto beside = [&](const Entry& entry) { return is_prompt(entry) && entry.seq->queue == candidate.queue; };
  const SeqState* oldest = &candidate;
  for (const Entry& entry : entries_)
    if (beside(entry) && entry.seq->order < oldest->order) oldest = entry.seq;
  const int32_t share = std::min(oldest->remaining(), (total + kOldestShare - 1) / kOldestShare);
  if (oldest == &candidate) return share;
  total -= share;
  for (const Entry& entry : entries_) {
    if (!beside(entry) || !fewer_left(*entry.seq, candidate)) continue;
    total -= entry.seq->remaining() - (entry.seq == oldest ? share : 0);
    if (total <= 0) return 0;
  }
  return std::min(total, candidate.remaining());
}

// Rows from `computed` on that logits and segments allow.
int32_t StepPlanner::rows_within_budget(const SeqState& seq, int32_t rows_max) const {
  if (segments_of(seq) > segments_left_) return 0;
  int32_t rows = std::min({seq.remaining(), rows_max, tokens_left_, seq.rows_most});
  if (seq.computed < seq.borrowed) rows = std::min(rows, seq.borrowed - seq.computed);
  if (seq.computed < seq.rows_end) rows = std::min(rows, seq.rows_end - seq.computed);
  const int32_t excess = logits_wanted(seq, seq.computed, seq.computed + rows) - logits_left_;
  // Rows that want logits are a run that ends the chunk or (prompt logprobs) fills it:
  // dropping the last rows drops their logits first.
  for (int32_t dropped = 0; dropped < excess && rows > 0; --rows) {
    if (wants_logits(seq, seq.computed + rows - 1)) ++dropped;
  }
  return rows;
}

void StepPlanner::give(Entry& entry, int32_t rows, int32_t blocks) {
  CHECK(entry.rows == 0 && rows > 0 && blocks >= 0 && blocks <= blocks_left_);
  entry.rows = rows;
  entry.blocks = blocks;
  entry.logits = logits_wanted(*entry.seq, entry.seq->computed, entry.seq->computed + rows);
  tokens_left_ -= rows;
  logits_left_ -= entry.logits;
  segments_left_ -= segments_of(*entry.seq);
  blocks_left_ -= blocks;
}

void StepPlanner::schedule(Entry& entry, int32_t rows_max) {
  const SeqState& seq = *entry.seq;
  int32_t rows = rows_within_budget(seq, rows_max);
  while (rows > 0) {
    const int32_t blocks = pool_blocks(kv_blocks_for(seq.computed + rows) - seq.blocks);
    if (blocks <= blocks_left_) return give(entry, rows, blocks);
    if (!entry.admitted && preempt_youngest(entry)) continue;
    if (seq.remaining() == 1 && !entry.admitted && alive_ > 1) {  // itself the youngest
      entry.preempted = true;
      --alive_;
      blocks_left_ += seq.blocks_exclusive;
      preempted_.push_back(seq.id);
      return;
    }
    // The youngest prompt takes what is left.
    const int32_t more = std::max(0, blocks_left_) / input_.tables.count();
    rows = std::min(rows, (seq.blocks + more) * kKvBlockTokens - seq.computed);
    if (kv_blocks_for(seq.computed + rows) - seq.blocks > more) return;
  }
}

// Preempts the youngest running sequence that is younger than `needy`. False when there
// is none.
bool StepPlanner::preempt_youngest(const Entry& needy) {
  for (size_t index = input_.running.size(); index-- > 0;) {
    Entry& victim = entries_[index];
    if (victim.preempted) continue;
    if (&victim == &needy) return false;
    victim.preempted = true;
    --alive_;
    blocks_left_ += victim.blocks + victim.seq->blocks_exclusive;
    tokens_left_ += victim.rows;
    logits_left_ += victim.logits;
    if (victim.rows > 0) segments_left_ += segments_of(*victim.seq);
    victim.rows = victim.blocks = victim.logits = 0;
    // Blocks that several victims share count for none of them; alone, everything but the
    // sequence's own blocks can be had.
    if (alive_ == 1) blocks_left_ = input_.blocks_total - held_by(*needy.seq);
    preempted_.push_back(victim.seq->id);
    return true;
  }
  return false;
}

Fit StepPlanner::offer(const SeqState& candidate) {
  CHECK(candidate.computed < candidate.known && candidate.draft.empty());
  if (input_.tables.blocks_least(candidate.known) > input_.blocks_total) return Fit::kImpossible;
  // KV is short: whoever was sent away must not be let in again in the same step.
  deferred_ = deferred_ || !preempted_.empty();
  if (deferred_) return Fit::kNoBlocks;
  if (alive_ >= options_.max_sequences) return Fit::kNoSlots;
  const int32_t left = blocks_left_ - candidate.blocks_exclusive;
  const int32_t spare = pool_blocks(alive_);  // one block for each running sequence to grow into
  const bool fits = alive_ == 0 ? alone_need(candidate) <= left : whole_need(candidate) + spare + promised_ <= left;
  if (!fits || (alive_ > 0 && whole_need(candidate) > left_for_new_)) {
    deferred_ = true;
    return Fit::kNoBlocks;
  }
  // Its own rows alone; those of others may leave it fewer logits, and then it begins in
  // a later step.
  if (rows_for(candidate) < 1 || rows_within_budget(candidate, 1) < 1) return Fit::kNoRows;
  CHECK(admitted_.size() < admitted_.capacity() && entries_.size() < entries_.capacity());
  blocks_left_ = left;
  promised_ += whole_need(candidate);
  left_for_new_ -= whole_need(candidate);
  ++alive_;
  admitted_.push_back(candidate);
  entries_.push_back({.seq = &admitted_.back(), .admitted = true});
  return Fit::kAdmitted;
}

// To each of them in turn as many rows more as it can have; how many that were.
int32_t StepPlanner::give_shortest(std::span<Entry*> shortest_first, int32_t rows) {
  int32_t given = 0;
  for (Entry* entry : shortest_first) {
    const int32_t more = rows_within_budget(*entry->seq, entry->quota + rows - given) - entry->quota;
    if (more <= 0) continue;
    entry->quota += more;
    given += more;
  }
  return given;
}

// Rule 2. By age, so that who finds no block takes those of the youngest.
void StepPlanner::share_prompt_rows() {
  prompts_.clear();
  for (Entry& entry : entries_)
    if (is_prompt(entry)) prompts_.push_back(&entry);
  if (prompts_.empty()) return;
  const auto older = [](const Entry* a, const Entry* b) { return a->seq->order < b->seq->order; };
  const auto shorter = [](const Entry* a, const Entry* b) { return fewer_left(*a->seq, *b->seq); };
  const auto of_queues = [&](const Entry* a, const Entry* b) {
    return a->seq->queue != b->seq->queue ? a->seq->queue < b->seq->queue : shorter(a, b);
  };
  const int32_t total = std::min(tokens_left_, rows_in_time());
  int32_t left = total;
  std::sort(prompts_.begin(), prompts_.end(), of_queues);
  for (auto begin = prompts_.begin(); begin != prompts_.end();) {
    const int32_t queue = (*begin)->seq->queue;
    const auto end = std::find_if(begin, prompts_.end(), [&](const Entry* one) { return one->seq->queue != queue; });
    const int32_t rows = std::min(left, rows_of_queue(queue, total));
    Entry& oldest = **std::min_element(begin, end, older);
    oldest.quota = rows_within_budget(*oldest.seq, (rows + kOldestShare - 1) / kOldestShare);
    left -= oldest.quota + give_shortest({begin, end}, rows - oldest.quota);
    begin = end;
  }
  std::sort(prompts_.begin(), prompts_.end(), shorter);
  if (input_.row_shares.size() > 1) give_shortest(prompts_, left);
  std::sort(prompts_.begin(), prompts_.end(), older);
  for (Entry* entry : prompts_) {
    if (entry->preempted || entry->quota == 0) continue;
    schedule(*entry, entry->quota);
    prompt_rows_ += entry->rows;
    promised_ -= std::min(promised_, entry->blocks);
  }
}

void StepPlanner::speculate() {
  int32_t rows_left = std::min(tokens_left_, std::max(0, rows_in_time() - prompt_rows_));
  for (Entry& entry : entries_) {
    const SeqState& seq = *entry.seq;
    if (entry.rows == 0 || seq.draft.empty()) continue;
    const int32_t tables = input_.tables.count();
    const int32_t held = std::max(seq.blocks + entry.blocks / tables, kv_blocks_for(seq.computed + entry.rows));
    const int32_t spare = deferred_ ? 0 : std::max(0, blocks_left_ - promised_ - pool_blocks(alive_));
    const int32_t room = (held + spare / tables) * kKvBlockTokens - seq.computed - entry.rows;
    const int32_t rows = std::min({static_cast<int32_t>(seq.draft.size()), rows_left, logits_left_, room});
    if (rows < 1) continue;
    const int32_t blocks = pool_blocks(kv_blocks_for(seq.computed + entry.rows + rows) - held);
    entry.rows += rows;
    entry.logits += rows;
    entry.blocks += blocks;
    rows_left -= rows;
    logits_left_ -= rows;
    blocks_left_ -= blocks;
  }
}

// Rows of lower layers first, then those without adapter, then by the list of (version,
// scale), then by age.
static bool before(const SeqState& a, const SeqState& b) {
  if (a.begins_at() != b.begins_at()) return a.begins_at() < b.begins_at();
  const auto x = a.adapters, y = b.adapters;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (x[i].version != y[i].version) return x[i].version < y[i].version;
    const auto p = std::bit_cast<uint32_t>(x[i].scale), q = std::bit_cast<uint32_t>(y[i].scale);
    if (p != q) return p < q;
  }
  if (x.size() != y.size()) return x.size() < y.size();
  return a.order < b.order;
}

void StepPlanner::emit(StepPlan& plan) {
  rows_.clear();
  for (Entry& entry : entries_)
    if (entry.rows > 0) rows_.push_back(&entry);
  std::sort(rows_.begin(), rows_.end(), [](const Entry* a, const Entry* b) { return before(*a->seq, *b->seq); });
  for (const Entry* entry : rows_) {
    const SeqState& seq = *entry->seq;
    PlanGroup group;
    group.seq = seq.id;
    group.position = seq.computed;
    group.row_begin = static_cast<int32_t>(plan.tokens.size());
    group.row_count = entry->rows;
    group.begin_layer = seq.begins_at();
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
      const int32_t rows = std::min(entry->rows, adapter.end_position - seq.computed) - skipped;
      if (rows > 0)
        plan.segments.push_back({group.row_begin + skipped, rows, adapter.version, adapter.scale, adapter.first_layer});
    }
    plan.groups.push_back(group);
  }
}

void StepPlanner::finish(PlanOutput& output) {
  share_prompt_rows();
  speculate();
  output.plan.clear();
  output.plan.step = input_.step;
  output.admitted.clear();
  for (const SeqState& seq : admitted_) output.admitted.push_back(seq.id);
  output.preempted.assign(preempted_.begin(), preempted_.end());
  emit(output.plan);
}

void StepPlanner::check() const {
  int32_t alive = 0, rows = 0, logits = 0, segments = 0;
  for (const Entry& entry : entries_) {
    CHECK(entry.rows >= 0 && entry.blocks >= 0 && entry.logits >= 0 && entry.logits <= entry.rows);
    CHECK(entry.rows == 0 || (!entry.preempted && !entry.seq->waits));
    CHECK(entry.rows <= entry.seq->remaining() + static_cast<int32_t>(entry.seq->draft.size()));
    CHECK(!entry.admitted || !entry.preempted);
    alive += entry.preempted ? 0 : 1;
    rows += entry.rows;
    logits += entry.logits;
    if (entry.rows > 0) segments += segments_of(*entry.seq);
  }
  CHECK(alive == alive_ && alive <= options_.max_sequences);
  CHECK(static_cast<size_t>(alive) + preempted_.size() == entries_.size());
  CHECK(rows <= options_.step_tokens && tokens_left_ >= 0);
  CHECK(logits == options_.logits_rows - logits_left_ && logits_left_ >= 0);
  CHECK(segments == options_.segments - segments_left_ && segments_left_ >= 0);
  CHECK(blocks_left_ >= 0 && promised_ >= 0 && prompt_rows_ >= 0);
}

}  // namespace loralei

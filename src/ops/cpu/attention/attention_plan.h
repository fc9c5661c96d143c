// SPDX-License-Identifier: Apache-2.0
// How an attention call is cut into work: an item is some key/value heads of a batch of
// consecutive rows of one group.
// Thread: built by the calling thread, then read by the pool. No ownership.
// Pure arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/limits.h"
#include "ops/cpu/scratch.h"

namespace loralei {

// The positions a row attends to: [first, last].
struct Span {
  int32_t first = 0, last = 0;
};
inline Span attended(const AttentionArgs& args, const RowGroup& group, int32_t i) {
  const int32_t last = group.position + i;
  return {args.window > 0 ? std::max(0, last - args.window + 1) : 0, last};
}

struct AttentionItem {
  const RowGroup* group = nullptr;
  int32_t kv_head = 0;   // the first
  int32_t kv_heads = 0;  // each with `rows` * `heads` queries
  int32_t row = 0;       // inside the group
  int32_t rows = 0;
  int32_t heads = 0;                                // query heads that share a key/value head
  Span span;                                        // of all its rows together
  int32_t queries() const { return rows * heads; }  // of one key/value head
  int32_t first_range() const { return span.first / kSplitTokens; }
  int32_t last_range() const { return span.last / kSplitTokens; }
};

// Items are made so that threads can share them evenly and memory is read in long runs:
// a decode row takes several key/value heads, whose slices lie side by side, as long as
// enough items are left; a group whose items would still be long beside all the rest is
// split further, into ranges of positions.
class AttentionPlan {
 public:
  // `memory` [2 * groups + 1] lies in the scratch.
  AttentionPlan(const AttentionArgs& args, const AttentionSizes& sizes, int threads, int32_t* memory)
      : args_(args),
        sizes_(sizes),
        batch_rows_(batch_rows(threads)),
        starts_(memory),
        bundles_(memory + args.groups.size() + 1) {
    int64_t work = 0;  // ranges of one key/value head
    for (const RowGroup& group : args.groups) {
      if (group.row_count > 0) work += int64_t{ranges(group)} * batches(group) * args.kv.kv_heads;
    }
    starts_[0] = 0;
    for (size_t g = 0; g < args.groups.size(); ++g) {
      bundles_[g] = args.groups[g].row_count > 0 ? bundle(args.groups[g], work, threads) : 1;
      starts_[g + 1] = starts_[g] + (is_split(g) ? 0 : group_items(g));
    }
  }
  bool empty() const {
    for (const RowGroup& group : args_.groups) {
      if (group.row_count > 0) return false;
    }
    return true;
  }
  // Items to be handled whole.
  int64_t count() const { return starts_[args_.groups.size()]; }
  AttentionItem item(int64_t index) const {
    const int32_t* starts = starts_;
    const int32_t* end = starts + args_.groups.size() + 1;
    const auto g = static_cast<size_t>(std::upper_bound(starts, end, static_cast<int32_t>(index)) - starts - 1);
    return group_item(g, static_cast<int32_t>(index) - starts_[g]);
  }

  bool is_split(size_t g) const { return bundles_[g] < 0; }
  int32_t group_items(size_t g) const {
    const RowGroup& group = args_.groups[g];
    if (group.row_count <= 0) return 0;
    const int32_t kv_heads = args_.kv.kv_heads, rest = last_bundle(g);
    return (batches(group) - 1) * kv_heads + (kv_heads + rest - 1) / rest;
  }
  AttentionItem group_item(size_t g, int32_t index) const {
    const int32_t kv_heads = args_.kv.kv_heads;
    AttentionItem item;
    item.group = &args_.groups[g];
    const int32_t batch = std::min(index / kv_heads, batches(*item.group) - 1);
    const int32_t bundle = batch + 1 < batches(*item.group) ? 1 : last_bundle(g);
    item.kv_head = (index - batch * kv_heads) * bundle;
    item.kv_heads = std::min(bundle, kv_heads - item.kv_head);
    item.row = batch * batch_rows_;
    item.rows = std::min(batch_rows_, item.group->row_count - item.row);
    item.heads = args_.heads / kv_heads;
    item.span = {attended(args_, *item.group, item.row).first,
                 attended(args_, *item.group, item.row + item.rows - 1).last};
    return item;
  }
  // Of all rows of a group: the first range and how many there are.
  int32_t first_range(const RowGroup& group) const { return attended(args_, group, 0).first / kSplitTokens; }
  int32_t ranges(const RowGroup& group) const {
    return attended(args_, group, group.row_count - 1).last / kSplitTokens - first_range(group) + 1;
  }

 private:
  int32_t batches(const RowGroup& group) const { return (group.row_count + batch_rows_ - 1) / batch_rows_; }
  // Rows of a full batch: many, since each batch reads the whole context, but few enough
  // for some items a thread, and within what the scratch holds. No result depends on it.
  int32_t batch_rows(int threads) const {
    int64_t rows = 0;
    for (const RowGroup& group : args_.groups) rows += group.row_count;
    const int64_t least = std::max(1, kQueryBatchLeast * args_.kv.kv_heads / args_.heads);
    const int64_t shared = rows * args_.kv.kv_heads / (int64_t{4} * threads);
    return static_cast<int32_t>(std::min(std::max(least, shared), sizes_.rows));
  }
  // Key/value heads an item of the group's last batch takes; the batches before it are
  // full and take one.
  int32_t last_bundle(size_t g) const { return bundles_[g] < 0 ? -bundles_[g] : bundles_[g]; }

  // Key/value heads an item may take; negative: the items are split into ranges.
  int32_t bundle(const RowGroup& group, int64_t work, int threads) const {
    const int64_t heads = args_.heads / args_.kv.kv_heads;
    const int64_t queries = (group.row_count - int64_t{batches(group) - 1} * batch_rows_) * heads;
    const int64_t largest =
        queries <= kDirectQueries ? std::clamp<int64_t>(sizes_.queries / queries, 1, args_.kv.kv_heads) : 1;
    if (threads == 1) return static_cast<int32_t>(largest);
    const int64_t length = ranges(group), shares = int64_t{4} * threads;
    const int64_t whole = std::min(largest, work / (shares * length));
    if (length < 2 || (whole >= 1 && (whole == largest || length < 2 * shares)))
      return static_cast<int32_t>(std::max<int64_t>(1, whole));
    return -static_cast<int32_t>(std::clamp<int64_t>(args_.kv.kv_heads * length / shares, 1, largest));
  }

  const AttentionArgs& args_;
  const AttentionSizes& sizes_;
  int32_t batch_rows_;
  int32_t* starts_;   // [groups + 1] of the items handled whole
  int32_t* bundles_;  // [groups]
};

}  // namespace loralei

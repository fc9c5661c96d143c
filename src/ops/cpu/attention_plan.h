// SPDX-License-Identifier: Apache-2.0
// How an attention call is cut into work: an item is one key/value head of a batch of consecutive rows of one group.
// Thread: built by the calling thread, then read by the pool. No ownership. Pure arithmetic.
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
  int32_t kv_head = 0;
  int32_t row = 0;  // inside the group
  int32_t rows = 0;
  int32_t heads = 0;  // query heads that share the key/value head
  Span span;          // of all its rows together
  int32_t first_range() const { return span.first / kSplitTokens; }
  int32_t last_range() const { return span.last / kSplitTokens; }
};

class AttentionPlan {
 public:
  // `starts` [groups + 1] lies in the scratch.
  AttentionPlan(const AttentionArgs& args, const AttentionSizes& sizes, int32_t* starts)
      : args_(args), sizes_(sizes), starts_(starts) {
    starts_[0] = 0;
    for (size_t g = 0; g < args.groups.size(); ++g) {
      const int32_t batches = static_cast<int32_t>((args.groups[g].row_count + sizes.rows - 1) / sizes.rows);
      starts_[g + 1] = starts_[g] + std::max(0, batches);
    }
  }
  int64_t count() const { return int64_t{starts_[args_.groups.size()]} * args_.kv.kv_heads; }

  AttentionItem item(int64_t index) const {
    const auto batch = static_cast<int32_t>(index / args_.kv.kv_heads);
    const int32_t* starts = starts_;
    const auto g = static_cast<size_t>(std::upper_bound(starts, starts + args_.groups.size() + 1, batch) - starts - 1);
    AttentionItem item;
    item.group = &args_.groups[g];
    item.kv_head = static_cast<int32_t>(index % args_.kv.kv_heads);
    item.row = (batch - starts_[g]) * static_cast<int32_t>(sizes_.rows);
    item.rows = std::min(static_cast<int32_t>(sizes_.rows), item.group->row_count - item.row);
    item.heads = args_.heads / args_.kv.kv_heads;
    item.span = {attended(args_, *item.group, item.row).first,
                 attended(args_, *item.group, item.row + item.rows - 1).last};
    return item;
  }

  // Few items with long contexts: worth handing out ranges of positions instead of whole items.
  bool split_ranges(int threads) const {
    if (threads == 1 || count() >= 2 * int64_t{threads}) return false;
    for (int64_t index = 0; index < count(); index += args_.kv.kv_heads) {
      if (item(index).last_range() - item(index).first_range() >= 2) return true;
    }
    return false;
  }

 private:
  const AttentionArgs& args_;
  const AttentionSizes& sizes_;
  int32_t* starts_;
};

}  // namespace loralei

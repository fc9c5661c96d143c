// SPDX-License-Identifier: Apache-2.0
// How the ranks of a model pass on their rows of the vocabulary: each has rows of logits
// as wide as the widest part of any of them, and gives so many rows at a time that a
// chunk of all ranks stays within a megabyte. Pure functions, any thread, no failure.
#pragma once

#include <cstdint>

#include "parallel/shard.h"

namespace loralei {

// From row to row of what a rank passes on, in floats.
int64_t part_stride_of(const Shard& shard, int32_t vocab);
// Rows passed on together, of at most `rows`.
int32_t part_rows_of(const Shard& shard, int32_t vocab, int32_t rows);
// Floats in which a rank passes its logits on, of so many rows; none where there is one
// rank. Rank 0: a chunk of all ranks; others: all of their rows.
int64_t part_logits_of(const Shard& shard, int32_t vocab, int32_t rows);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// The low-rank products: shrink (A x, register tiles of ranks and rows) and expand (B
// over contiguous outputs). No include guard: see target.h.
//
// The number for (row, rank) is one lane accumulator over the input in ascending
// steps of kLanes, then reduce4's fixed order. The number for (row, output) is sum
// over r ascending of value[r] * B[r, output] (int8: (value[r] * scale) * q), then
// y += factor * (sum + b_bias) and y += bias_delta. How rows, ranks and outputs are
// grouped does not enter.

// Factors come from memory, at the rate it gives where rows are few, for which the
// hardware's own prefetching starts too late in every page: they are asked for, each some
// bytes behind `at`, for the level of cache that TileTuning says.
constexpr int kShrinkAheadBytes = 512, kExpandAheadBytes = 256;
template <int kRanks, class Factor>
LORALEI_INLINE void ask_for_factors(const Factor* factors, int64_t at, bool second_level) {
  if (second_level) {
    LORALEI_UNROLL
    for (int r = 0; r < kRanks; ++r) __builtin_prefetch(factors[r].data + at, 0, 2);
  } else {
    LORALEI_UNROLL
    for (int r = 0; r < kRanks; ++r) __builtin_prefetch(factors[r].data + at, 0, 3);
  }
}

// Vectors whose numbers a cache line of a factor holds.
template <class Factor>
constexpr int vectors_of_line() {
  return 64 / (Factor::kBytes * kLanes);
}

// Some rows of the layer input.
struct ShrinkIn {
  const float* const* rows = nullptr;
  int64_t cols = 0;
  bool second_level = false;  // where factors are asked for

  ShrinkIn from(int row) const { return {rows + row, cols, second_level}; }
};

// sums[t, o] += kLanes numbers of row t of x times factor o, from the k-th on. Of both,
// the fewer are held beside the sums: registers are just enough for that.
template <class Factor, int kRanks, int kTokens>
LORALEI_INLINE void add_products(const Factor* a, const float* const* x, int64_t k, F (&sums)[kTokens * kRanks]) {
  if constexpr (kTokens < kRanks) {
    F values[kTokens];
    LORALEI_UNROLL
    for (int t = 0; t < kTokens; ++t) values[t] = load(x[t] + k);
    LORALEI_UNROLL
    for (int o = 0; o < kRanks; ++o) {
      const F w = a[o].at(k);
      LORALEI_UNROLL
      for (int t = 0; t < kTokens; ++t) sums[t * kRanks + o] = fma(values[t], w, sums[t * kRanks + o]);
    }
  } else {
    F w[kRanks];
    LORALEI_UNROLL
    for (int o = 0; o < kRanks; ++o) w[o] = a[o].at(k);
    LORALEI_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const F value = load(x[t] + k);
      LORALEI_UNROLL
      for (int o = 0; o < kRanks; ++o) sums[t * kRanks + o] = fma(value, w[o], sums[t * kRanks + o]);
    }
  }
}

// The same for one row as far as whole cache lines go; answers how far. A line is used
// up before the next factor's is touched: factors of many models lie a multiple of 4 KiB
// apart, where all their lines have the same few places in the first-level cache.
template <class Factor, int kRanks>
LORALEI_INLINE int64_t add_lines(const Factor* a, const float* x, const ShrinkIn& in, F (&sums)[kRanks]) {
  constexpr int kLineVectors = vectors_of_line<Factor>(), kVectors = kLineVectors < 4 ? kLineVectors : 4;
  int64_t k = 0;
  for (; k + kVectors * kLanes <= in.cols; k += kVectors * kLanes) {
    if (k % (64 / Factor::kBytes) == 0)
      ask_for_factors<kRanks>(a, k * Factor::kBytes + kShrinkAheadBytes, in.second_level);
    F values[kVectors];
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) values[v] = load(x + k + v * kLanes);
    LORALEI_UNROLL
    for (int o = 0; o < kRanks; ++o) {
      LORALEI_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[o] = fma(values[v], a[o].at(k + v * kLanes), sums[o]);
    }
  }
  return k;
}

// sums[t, o] = row t of x times factor o.
template <class Factor, int kRanks, int kTokens>
LORALEI_INLINE void shrink_sums(const Factor* a, const float* const* x, const ShrinkIn& in,
                                F (&sums)[kTokens * kRanks]) {
  LORALEI_UNROLL
  for (int i = 0; i < kTokens * kRanks; ++i) sums[i] = zero();
  int64_t k = 0;
  if constexpr (kTokens == 1) k = add_lines<Factor, kRanks>(a, x[0], in, sums);
  for (; k + kLanes <= in.cols; k += kLanes) {
    if (k % (64 / Factor::kBytes) == 0)
      ask_for_factors<kRanks>(a, k * Factor::kBytes + kShrinkAheadBytes, in.second_level);
    add_products<Factor, kRanks, kTokens>(a, x, k, sums);
  }
  if (k == in.cols) return;
  const int rest = static_cast<int>(in.cols - k);
  LORALEI_UNROLL
  for (int o = 0; o < kRanks; ++o) {
    const F w = a[o].at_n(k, rest);
    LORALEI_UNROLL
    for (int t = 0; t < kTokens; ++t) sums[t * kRanks + o] = fma(load_n(x[t] + k, rest), w, sums[t * kRanks + o]);
  }
}

// `ranks` of the kRanks factors are real; the rest repeat the last one and
// are not stored.
template <class Factor, int kRanks, int kTokens>
void shrink_block(const Factor* factors, const ShrinkIn& in, int ranks, float* values, int64_t stride) {
  static_assert(kRanks * kTokens % 4 == 0);
  Factor a[kRanks];
  for (int o = 0; o < kRanks; ++o) a[o] = factors[o < ranks ? o : ranks - 1];
  const float* x[kTokens];
  for (int t = 0; t < kTokens; ++t) x[t] = in.rows[t];
  F sums[kTokens * kRanks];
  shrink_sums<Factor, kRanks, kTokens>(a, x, in, sums);
  alignas(16) float out[kTokens * kRanks];
  LORALEI_UNROLL
  for (int i = 0; i < kTokens * kRanks; i += 4)
    store4(out + i, reduce4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
  for (int t = 0; t < kTokens; ++t) {
    for (int o = 0; o < ranks && o < kRanks; ++o) values[t * stride + o] = out[t * kRanks + o];
  }
}

template <class Factor, int kRanks, int kTokens>
LORALEI_INLINE void shrink_ranks(const Factor* a, const ShrinkIn& in, int ranks, float* values, int64_t stride) {
  for (int o = 0; o < ranks; o += kRanks)
    shrink_block<Factor, kRanks, kTokens>(a + o, in, ranks - o, values + o, stride);
}

// The shape of the register tile for what is left of the rows. With few rows the factors
// stream from memory, so more of them are in flight. Returns the rows it did.
template <class Factor>
LORALEI_INLINE int shrink_step(const Factor* a, const ShrinkIn& in, int rows, int ranks, float* values,
                               int64_t stride) {
  if (rows == 1) return shrink_ranks<Factor, 8, 1>(a, in, ranks, values, stride), 1;
  if constexpr (kManyRegisters) {
    if (rows == 2) return shrink_ranks<Factor, 8, 2>(a, in, ranks, values, stride), 2;
    if (rows == 3) return shrink_ranks<Factor, 4, 3>(a, in, ranks, values, stride), 3;
    if (rows == 4 || rows == 7 || rows == 8) return shrink_ranks<Factor, 4, 4>(a, in, ranks, values, stride), 4;
    if (rows == 5) return shrink_ranks<Factor, 4, 5>(a, in, ranks, values, stride), 5;
    return shrink_ranks<Factor, 4, 6>(a, in, ranks, values, stride), 6;
  } else {
    if (rows == 2 || rows == 4) return shrink_ranks<Factor, 4, 2>(a, in, ranks, values, stride), 2;
    return shrink_ranks<Factor, 4, 3>(a, in, ranks, values, stride), 3;
  }
}

template <class Factor>
void shrink_tile(const ShrinkTile& tile, const ShrinkIn& in, int rows, float* values, int64_t stride) {
  Factor a[8];
  for (int o = 0; o < tile.count; ++o) a[o] = Factor::of_a(*tile.pairs[o], tile.ranks[o]);
  for (int row = 0; row < rows;)
    row += shrink_step(a, in.from(row), rows - row, tile.count, values + row * stride, stride);
}

// One tile of ranks for up to kShrinkRows rows of one group.
void shrink_item(const LoraBatch& batch, const LoraGroup& group, std::span<const LoraTarget> targets, int64_t item,
                 const float* x_rows, int64_t x_stride, bool second_level) {
  const ShrinkTile tile =
      shrink_tile_at(group, targets, batch.tile_ranks, static_cast<int32_t>(item / group.row_blocks));
  const int32_t begin = static_cast<int32_t>(item % group.row_blocks) * kShrinkRows;
  const int rows = group.rows - begin < kShrinkRows ? group.rows - begin : kShrinkRows;
  const float* x[kShrinkRows];
  for (int i = 0; i < rows; ++i) x[i] = x_rows + batch.rows[group.rows_begin + begin + i].row * x_stride;
  const ShrinkIn in{x, tile.pairs[0]->in, second_level};
  float* values = group.values + int64_t{begin} * group.ranks + tile.first;
  if (tile.pairs[0]->a_scale != nullptr) return shrink_tile<Int8A>(tile, in, rows, values, group.ranks);
  switch (tile.pairs[0]->dtype) {
    case DType::kF16:
      return shrink_tile<PlainFactor<RowsF16>>(tile, in, rows, values, group.ranks);
    case DType::kBF16:
      return shrink_tile<PlainFactor<RowsBF16>>(tile, in, rows, values, group.ranks);
    default:
      return shrink_tile<PlainFactor<RowsF32>>(tile, in, rows, values, group.ranks);
  }
}

// Outputs [output, output + count) of one pair for up to kExpandTokens rows. count is at
// most kExpandOutputs.
struct ExpandTask {
  const LoraPair* pair = nullptr;
  int32_t output = 0, count = 0;
  int tokens = 0;
  const float* values[kExpandTokens];  // [rank]
  float* y[kExpandTokens];             // from `output` on
  float factor[kExpandTokens];
  float* sums = nullptr;      // [kExpandTokens, kExpandStride]: between two passes over ranks
  bool second_level = false;  // where factors are asked for
};

// y += factor * (sum + b_bias) + bias_delta, each term rounded on its own. No scale
// touches bias_delta: it is a replacement.
LORALEI_INLINE void add_expanded(const ExpandTask& task, int t, int32_t i, int lanes, F sum) {
  const LoraPair& pair = *task.pair;
  float* y = task.y[t] + i;
  if (lanes == kLanes && pair.b_bias == nullptr && pair.bias_delta == nullptr)
    return store(y, fma(set1(task.factor[t]), sum, load(y)));
  F value = load_n(y, lanes);
  if (pair.rank > 0) {
    if (pair.b_bias != nullptr) sum = add(sum, load_n(pair.b_bias + task.output + i, lanes));
    value = fma(set1(task.factor[t]), sum, value);
  }
  if (pair.bias_delta != nullptr) value = add(value, load_n(pair.bias_delta + task.output + i, lanes));
  store_n(y, value, lanes);
}

// One pass: kRanks ranks from rank_begin on. The sums start from zero in the first pass
// and go to y in the last.
template <class Factor, int kRanks>
void expand_pass(const ExpandTask& task, int32_t rank_begin) {
  const LoraPair& pair = *task.pair;
  const bool first = rank_begin == 0, last = rank_begin + kRanks == pair.rank;
  Factor b[kRanks];
  for (int r = 0; r < kRanks; ++r) b[r] = Factor::of_b(pair, rank_begin + r, task.output);
  const float* v[kExpandTokens];
  for (int t = 0; t < task.tokens; ++t) v[t] = task.values[t] + rank_begin;
  [[maybe_unused]] float scaled[kExpandTokens][kRanks];
  for (int32_t i = 0; i < task.count; i += kLanes) {
    if constexpr (Factor::kScaledRanks) {
      if (i % kLoraQuantGroup == 0) {
        const float* scales = pair.b_scale + int64_t{task.output + i} / kLoraQuantGroup * pair.rank + rank_begin;
        for (int t = 0; t < task.tokens; ++t) {
          for (int r = 0; r < kRanks; ++r) scaled[t][r] = task.values[t][rank_begin + r] * scales[r];
          v[t] = scaled[t];
        }
      }
    }
    const int lanes = task.count - i < kLanes ? task.count - i : kLanes;
    if (i % (64 / Factor::kBytes) == 0)
      ask_for_factors<kRanks>(b, i * Factor::kBytes + kExpandAheadBytes, task.second_level);
    F rows[kRanks];
    LORALEI_UNROLL
    for (int r = 0; r < kRanks; ++r) rows[r] = lanes == kLanes ? b[r].at(i) : b[r].at_n(i, lanes);
    for (int t = 0; t < task.tokens; ++t) {
      F sum = first ? zero() : load(task.sums + t * kExpandStride + i);
      LORALEI_UNROLL
      for (int r = 0; r < kRanks; ++r) sum = fma(set1(v[t][r]), rows[r], sum);
      if (last) {
        add_expanded(task, t, i, lanes, sum);
      } else {
        store(task.sums + t * kExpandStride + i, sum);
      }
    }
  }
}

// Ranks [begin, end) of one pass over a row's outputs, and their factors.
template <class Factor>
struct RankRun {
  int32_t begin = 0, end = 0;
  Factor first;        // of rank `begin`, from the task's first output on
  int64_t stride = 0;  // bytes from factor to factor
};

// Outputs [i, i + kVectors * kLanes) of the task's only row, or `lanes` of one vector.
template <class Factor, int kVectors>
LORALEI_INLINE void expand_outputs(const ExpandTask& task, const RankRun<Factor>& ranks, int32_t i, int lanes) {
  const LoraPair& pair = *task.pair;
  const float* scales = nullptr;
  if constexpr (Factor::kScaledRanks) scales = pair.b_scale + int64_t{task.output + i} / kLoraQuantGroup * pair.rank;
  F sums[kVectors];
  LORALEI_UNROLL
  for (int v = 0; v < kVectors; ++v) sums[v] = ranks.begin == 0 ? zero() : load(task.sums + i + v * kLanes);
  Factor b = ranks.first;
  for (int32_t r = ranks.begin; r < ranks.end; ++r, b.data += ranks.stride) {
    if (kVectors > 1) ask_for_factors<1>(&b, i * Factor::kBytes + kExpandAheadBytes, task.second_level);
    const F value = set1(Factor::kScaledRanks ? task.values[0][r] * scales[r] : task.values[0][r]);
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const F numbers = kVectors > 1 || lanes == kLanes ? b.at(i + v * kLanes) : b.at_n(i, lanes);
      sums[v] = fma(value, numbers, sums[v]);
    }
  }
  LORALEI_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    if (ranks.end == pair.rank) {
      add_expanded(task, 0, i + v * kLanes, lanes, sums[v]);
    } else {
      store(task.sums + i + v * kLanes, sums[v]);
    }
  }
}

// One row: a cache line of each factor at a time (add_lines), and not all ranks of a
// large adapter in one pass, since what is asked for ahead of so many factors would have
// no place in the first-level cache.
constexpr int32_t kRowRanks = 16;
template <class Factor>
void expand_row(const ExpandTask& task) {
  constexpr int kLineVectors = vectors_of_line<Factor>(), kVectors = kLineVectors < 4 ? 4 : kLineVectors;
  const LoraPair& pair = *task.pair;
  RankRun<Factor> ranks;
  ranks.stride = lora_b_stride_bytes(pair);
  for (; ranks.begin < pair.rank; ranks.begin = ranks.end) {
    ranks.end = pair.rank - ranks.begin < kRowRanks ? pair.rank : ranks.begin + kRowRanks;
    ranks.first = Factor::of_b(pair, ranks.begin, task.output);
    int32_t i = 0;
    for (; i + kVectors * kLanes <= task.count; i += kVectors * kLanes)
      expand_outputs<Factor, kVectors>(task, ranks, i, kLanes);
    for (; i < task.count; i += kLanes)
      expand_outputs<Factor, 1>(task, ranks, i, task.count - i < kLanes ? task.count - i : kLanes);
  }
}

template <class Factor>
void expand_task(const ExpandTask& task) {
  if (task.tokens == 1) return expand_row<Factor>(task);
  const int32_t rank = task.pair->rank;
  int32_t r = 0;
  if constexpr (kManyRegisters)  // else sixteen decoded rows would not fit
    for (; r + 16 <= rank; r += 16) expand_pass<Factor, 16>(task, r);
  for (; r + 8 <= rank; r += 8) expand_pass<Factor, 8>(task, r);
  if (r + 4 <= rank) expand_pass<Factor, 4>(task, r), r += 4;
  if (r + 2 <= rank) expand_pass<Factor, 2>(task, r), r += 2;
  if (r < rank) expand_pass<Factor, 1>(task, r);
}

void expand_task_of(const ExpandTask& task) {
  if (task.pair->rank == 0) {
    for (int t = 0; t < task.tokens; ++t) {
      for (int32_t i = 0; i < task.count; i += kLanes)
        add_expanded(task, t, i, task.count - i < kLanes ? task.count - i : kLanes, zero());
    }
    return;
  }
  if (task.pair->b_scale != nullptr) return expand_task<Int8B>(task);
  switch (task.pair->dtype) {
    case DType::kF16:
      return expand_task<PlainFactor<RowsF16>>(task);
    case DType::kBF16:
      return expand_task<PlainFactor<RowsBF16>>(task);
    default:
      return expand_task<PlainFactor<RowsF32>>(task);
  }
}

// Outputs [output, output + count) of one part for all rows of its group.
void expand_part(const LoraBatch& batch, const LoraGroup& group, const LoraPart& part, const LoraTarget& target,
                 int32_t output, int32_t count, float* sums, bool second_level) {
  const LoraRow* rows = batch.rows + group.rows_begin;
  ExpandTask task;
  task.pair = part.pair;
  task.sums = sums;
  task.second_level = second_level;
  for (int32_t end = output + count; output < end; output += kExpandOutputs) {
    task.output = output;
    task.count = end - output < kExpandOutputs ? end - output : kExpandOutputs;
    for (int32_t row = 0; row < group.rows; row += kExpandTokens) {
      task.tokens = group.rows - row < kExpandTokens ? group.rows - row : kExpandTokens;
      for (int t = 0; t < task.tokens; ++t) {
        task.values[t] = group.values + int64_t{row + t} * group.ranks + part.first;
        task.y[t] = target.y + rows[row + t].row * target.y_stride + output;
        task.factor[t] = rows[row + t].scale * part.pair->scaling;
      }
      expand_task_of(task);
    }
  }
}

// No row stands twice in a batch, so that items may run in any order.
void expand_item(const LoraBatch& batch, const LoraGroup& group, std::span<const LoraTarget> targets, int64_t index,
                 float* sums, bool second_level) {
  size_t t = 0;
  for (; index >= group.parts[t].chunks; ++t) index -= group.parts[t].chunks;
  const LoraPart& part = group.parts[t];
  const int32_t out = part.pair->out;
  const int32_t output = static_cast<int32_t>(index) * part.chunk;
  const int32_t count = out - output < part.chunk ? out - output : part.chunk;
  expand_part(batch, group, part, targets[t], output, count, sums, second_level);
}

// One parallel region for both phases: the pool hands items out in ascending order,
// so that an expansion waits only for shrinks that are being computed, and with several
// adapters for none at all.
void run_batch(OpContext& ctx, const LoraBatch& batch, int64_t shrink_items, const float* x, int64_t x_stride,
               std::span<const LoraTarget> targets) {
  const bool second_level = ctx.tuning.factors_to_second_level;
  ctx.pool->parallel_for(shrink_items + batch.expand_items, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t item = begin; item < end; ++item) {
      if (item < shrink_items) {
        LoraGroup& group = group_of_item(batch, &LoraGroup::shrink_end, item);
        const int64_t index = item - first_item(batch, group, &LoraGroup::shrink_end);
        shrink_item(batch, group, targets, index, x, x_stride, second_level);
        mark_shrunk(group);
      } else {
        const int64_t index = item - shrink_items;
        LoraGroup& group = group_of_item(batch, &LoraGroup::expand_end, index);
        if (shrink_items > 0) wait_shrunk(group);
        expand_item(batch, group, targets, index - first_item(batch, group, &LoraGroup::expand_end),
                    lora_accumulators(ctx, worker), second_level);
      }
    }
  });
}

void lora(OpContext& ctx, const LoraArgs& args) {
  if (args.segments.empty()) return;
  LoraPlanner planner(args.segments, args.targets, ctx.pool->threads(), lora_shared(ctx));
  LoraBatch batch;
  bool worked = false;
  while (planner.next(batch)) {
    worked = true;
    run_batch(ctx, batch, batch.shrink_items, args.x, args.x_stride, args.targets);
  }
  if (worked) ++ctx.op_count;
}

void lora_embed(OpContext& ctx, const LoraEmbedArgs& args) {
  if (args.segments.empty()) return;
  const std::span<const LoraTarget> targets(&args.target, 1);
  LoraPlanner planner(args.segments, targets, ctx.pool->threads(), lora_shared(ctx));
  LoraBatch batch;
  bool worked = false;
  while (planner.next(batch)) {
    worked = true;
    for (int32_t g = 0; g < batch.group_count; ++g) {  // looking rows up is too little work to share
      const LoraGroup& group = batch.groups[g];
      const LoraPair* pair = group.parts[0].pair;
      if (pair == nullptr) continue;
      for (int32_t i = 0; i < group.rows; ++i) {
        const int64_t token = args.tokens[batch.rows[group.rows_begin + i].row];
        decode_to_f32(pair->dtype, pair->a + token * row_bytes(pair->dtype, pair->rank),
                      group.values + int64_t{i} * pair->rank, pair->rank);
      }
    }
    run_batch(ctx, batch, 0, nullptr, 0, targets);
  }
  if (worked) ++ctx.op_count;
}

// The end of a product whose sums, with b_bias, are there already.
void lora_add(OpContext& ctx, const LoraSumArgs& args) {
  if (args.rows <= 0 || (args.pair->rank == 0 && args.pair->bias_delta == nullptr)) return;
  ++ctx.op_count;
  LoraPair pair = *args.pair;
  pair.b_bias = nullptr;
  ctx.pool->parallel_for(args.rows, row_grain(int64_t{pair.out} * 2), [&](int64_t begin, int64_t end, int) {
    ExpandTask task;
    task.pair = &pair;
    task.factor[0] = args.scale * pair.scaling;
    for (int64_t row = begin; row < end; ++row) {
      task.y[0] = args.y + row * args.y_stride;
      const float* sums = args.sums + row * args.sums_stride;
      for (int32_t i = 0; i < pair.out; i += kLanes) {
        const int lanes = pair.out - i < kLanes ? pair.out - i : kLanes;
        add_expanded(task, 0, i, lanes, pair.rank > 0 ? load_n(sums + i, lanes) : zero());
      }
    }
  });
}

// SPDX-License-Identifier: Apache-2.0
// Online-softmax attention over the paged cache. No include guard: see target.h.
//
// For each query vector: positions in tiles of kTileTokens, tiles in ranges of
// kSplitTokens, both at absolute positions. Within a range the running maximum m, sum
// l and output o are updated tile by tile ("Online normalizer calculation for softmax",
// Milakov and Gimelshein 2018; tiled as FlashAttention, Dao et al. 2022); ranges
// start from nothing and are merged in ascending order. Whether ranges ran one after
// the other or on several threads is not visible in the result, nor are the other
// rows of the batch.
//
// Scores carry a factor log2 e from the start, so that weights are powers of two.
// Few queries read the cache directly, many share a tile decoded to f32: the numbers
// are the same. int8 and fp8 scales are factors of a position: K's multiplies the
// score, V's the weight.
//
// Where scores are capped, what the products give is score / cap, and the factors come
// behind the cap. A sink is one weight more, added when all ranges are merged.

struct SoftmaxState {  // of `queries` vectors
  float* o = nullptr;  // [queries, dim] sum of 2^(score - m) * value
  float* l = nullptr;  // [queries, kSumLanes] sum of 2^(score - m), lane by lane
  float* m = nullptr;  // [queries] running maximum
};

LORALEI_INLINE SoftmaxState state_at(float* memory, const AttentionSizes& sizes) {
  return {memory, memory + sizes.queries * sizes.dim, memory + sizes.queries * (sizes.dim + kSumLanes)};
}

struct AttentionWork {
  const AttentionArgs& args;
  const AttentionItem& item;
  const AttentionSizes& sizes;
  int32_t dim = 0;            // padded head_dim
  float* queries = nullptr;   // [queries, dim], times scale * log2 e, or scale / cap
  float* keys = nullptr;      // [kTileBlocks, head_dim, kKvBlockTokens]
  float* values = nullptr;    // [kTileTokens, dim]
  float* scores = nullptr;    // [queries, kTileTokens], then weights
  TilePart* parts = nullptr;  // [queries] of the current tile
  float* maxima = nullptr;    // [queries] of the current tile
};

// Queries are held key/value head by key/value head, then row by row. `h` counts the
// item's query heads.
LORALEI_INLINE int32_t query_of(const AttentionItem& item, int32_t i, int32_t h) {
  return h / item.heads * item.queries() + i * item.heads + h % item.heads;
}

constexpr float kLog2E = 1.44269504f;

LORALEI_INLINE float head_sink(const AttentionArgs& args, const AttentionItem& item, int32_t h) {
  return args.sinks[item.kv_head * item.heads + h] * kLog2E;
}

void load_queries(const AttentionWork& work) {
  const AttentionArgs& args = work.args;
  const AttentionItem& item = work.item;
  const int32_t head_dim = args.kv.head_dim;
  const F scale = set1(args.cap > 0 ? args.scale / args.cap : args.scale * kLog2E);
  for (int32_t i = 0; i < item.rows; ++i) {
    for (int32_t h = 0; h < item.kv_heads * item.heads; ++h) {
      const float* q = args.q + (item.group->row_begin + item.row + i) * args.q_stride +
                       int64_t{item.kv_head * item.heads + h} * head_dim;
      float* out = work.queries + int64_t{query_of(item, i, h)} * work.dim;
      for (int32_t d = 0; d < head_dim; d += kLanes) {
        const int n = head_dim - d < kLanes ? head_dim - d : kLanes;
        store_n(out + d, mul(scale, load_n(q + d, n)), n);
      }
    }
  }
}

// Values of a block to f32, each position padded with zeros to `dim`.
void decode_values(const AttentionWork& work, const std::byte* source, float* out) {
  const KvView& kv = work.args.kv;
  if (kv.head_dim == work.dim) return decode_to_f32(kv.dtype, source, out, int64_t{kKvBlockTokens} * work.dim);
  const int64_t bytes = row_bytes(kv.dtype, kv.head_dim);
  for (int j = 0; j < kKvBlockTokens; ++j) {
    float* row = out + int64_t{j} * work.dim;
    decode_to_f32(kv.dtype, source + j * bytes, row, kv.head_dim);
    for (int32_t d = kv.head_dim; d < work.dim; ++d) row[d] = 0;
  }
}

// The blocks of a tile that the item's positions touch, where its queries will read them.
TileSource load_tile(const AttentionWork& work, int32_t tile, int32_t kv_head) {
  const KvView& kv = work.args.kv;
  const AttentionItem& item = work.item;
  const int32_t first = tile * kTileBlocks, item_end = item.span.last / kKvBlockTokens + 1;
  const bool many = item.queries() > kDirectQueries;
  const bool decode_keys = many && kv.dtype != DType::kF32;
  const bool decode_all_values = decode_keys || kv.head_dim != work.dim;
  TileSource source;
  source.first_block = std::max(0, item.span.first / kKvBlockTokens - first);
  source.end_block = std::min(kTileBlocks, item_end - first);
  source.key_dtype = decode_keys ? DType::kF32 : kv.dtype;
  source.value_dtype = decode_all_values ? DType::kF32 : kv.dtype;
  source.value_bytes = row_bytes(source.value_dtype, work.dim);
  for (int b = source.first_block; b < source.end_block; ++b) {
    const int32_t block = item.group->blocks[first + b];
    const std::byte* keys = kv.head(block, work.args.layer, 0, kv_head);
    const std::byte* values = kv.head(block, work.args.layer, 1, kv_head);
    if (has_vector_scale(kv.dtype)) {
      source.scales[0][b] = kv.scales(keys);
      source.scales[1][b] = kv.scales(values);
    }
    if (decode_keys) {
      float* out = work.keys + int64_t{b} * kKvBlockTokens * kv.head_dim;
      decode_to_f32(kv.dtype, keys, out, int64_t{kKvBlockTokens} * kv.head_dim);
      keys = reinterpret_cast<const std::byte*>(out);
    }
    if (decode_all_values) {
      float* out = work.values + int64_t{b} * kKvBlockTokens * work.dim;
      decode_values(work, values, out);
      values = reinterpret_cast<const std::byte*>(out);
    }
    source.keys[b] = keys;
    source.values[b] = values;
    if (kv_head + 1 < item.kv_head + item.kv_heads) {
      source.next_keys[b] = kv.head(block, work.args.layer, 0, kv_head + 1);
    } else if (first + kTileBlocks + b < item_end) {
      source.next_keys[b] = kv.head(item.group->blocks[first + kTileBlocks + b], work.args.layer, 0, item.kv_head);
    }
  }
  return source;
}

// What `tile` of the item's only head is read from, for fetching in `steps` calls.
TileAhead tile_ahead(const AttentionWork& work, int32_t tile, int steps) {
  const KvView& kv = work.args.kv;
  const AttentionItem& item = work.item;
  TileAhead ahead(kKvBlockTokens * row_bytes(kv.dtype, kv.head_dim));
  const int32_t end = std::min((tile + 1) * kTileBlocks, item.span.last / kKvBlockTokens + 1);
  for (int32_t b = tile * kTileBlocks; b < end; ++b) {
    for (int v = 0; v < 2; ++v) ahead.add(kv.head(item.group->blocks[b], work.args.layer, v, item.kv_head));
  }
  ahead.spread(steps);
  return ahead;
}

// Each score of a loaded block times the factor of its position.
LORALEI_INLINE void scale_tile(const TileSource& tile, int v, float* scores) {
  for (int b = tile.first_block; b < tile.end_block; ++b) {
    for (int j = 0; j < kKvBlockTokens; j += kLanes) {
      float* at = scores + b * kKvBlockTokens + j;
      store(at, mul(load(at), load(tile.scales[v][b] + j)));
    }
  }
}

// What is outside `part` of a query's scores becomes -infinity (it may hold anything).
// Answers the largest.
LORALEI_INLINE float mask_and_max(float* scores, TilePart part) {
  for (int j = 0; j < part.begin; ++j) scores[j] = -INFINITY;
  for (int j = part.end; j < kTileTokens; ++j) scores[j] = -INFINITY;
  F largest = load(scores);
  LORALEI_UNROLL
  for (int v = 1; v < kTileTokens / kLanes; ++v) largest = max(largest, load(scores + v * kLanes));
  return reduce_max(largest);
}

// A query's sums so far, relative to a new maximum.
LORALEI_INLINE void rescale(const SoftmaxState& state, int query, int32_t dim, float factor) {
  const F correction = set1(factor);
  float* l = state.l + query * kSumLanes;
  for (int v = 0; v < kSumLanes; v += kLanes) store(l + v, mul(load(l + v), correction));
  float* o = state.o + int64_t{query} * dim;
  for (int32_t d = 0; d < dim; d += kLanes) store(o + d, mul(load(o + d), correction));
}

// Scores become weights relative to the maximum, and are summed up.
LORALEI_INLINE void weigh(float* scores, float maximum, float* l) {
  constexpr int kSums = kSumLanes / kLanes;
  F sums[kSums];
  LORALEI_UNROLL
  for (int v = 0; v < kSums; ++v) sums[v] = load(l + v * kLanes);
  LORALEI_UNROLL
  for (int v = 0; v < kTileTokens / kLanes; ++v) {
    const F weight = exp2_not_positive(sub(load(scores + v * kLanes), set1(maximum)));
    store(scores + v * kLanes, weight);
    sums[v % kSums] = add(sums[v % kSums], weight);
  }
  LORALEI_UNROLL
  for (int v = 0; v < kSums; ++v) store(l + v * kLanes, sums[v]);
}

// Scores / cap of queries [first, first + count) become capped scores times log2 e. Not a
// part of its caller, so that scores without a cap pay nothing.
__attribute__((noinline)) void cap_scores(const AttentionWork& work, const TileSource& tile, int first, int count) {
  const float cap = work.args.cap;
  const bool scaled = tile.scales[0][tile.first_block] != nullptr;
  for (int i = 0; i < count; ++i) {
    float* scores = work.scores + (first + i) * kTileTokens;
    if (scaled) scale_tile(tile, 0, scores);
    for (int j = tile.first_block * kKvBlockTokens; j < tile.end_block * kKvBlockTokens; j += kLanes)
      store(scores + j, mul(set1(cap * kLog2E), tanh_f32(load(scores + j))));
  }
}

// The scores of queries [first, first + count) become weights. One step at a time for all
// of them: nothing then waits for one query's maximum.
void softmax_tile(const AttentionWork& work, const TileSource& tile, int first, int count, const SoftmaxState& state) {
  const bool scaled = tile.scales[0][tile.first_block] != nullptr;
  const bool capped = work.args.cap > 0;
  if (capped) cap_scores(work, tile, first, count);
  for (int i = 0; i < count; ++i) {
    float* scores = work.scores + (first + i) * kTileTokens;
    if (scaled && !capped) scale_tile(tile, 0, scores);
    work.maxima[i] = mask_and_max(scores, work.parts[i]);
  }
  for (int i = 0; i < count; ++i) {
    const int query = first + i;
    if (!(work.maxima[i] > state.m[query])) continue;  // else the factor is one
    alignas(64) float factor[kLanes];
    store(factor, exp2_not_positive(set1(state.m[query] - work.maxima[i])));
    rescale(state, query, work.dim, factor[0]);
    state.m[query] = work.maxima[i];
  }
  for (int i = 0; i < count; ++i) {
    const int query = first + i;
    float* scores = work.scores + query * kTileTokens;
    weigh(scores, state.m[query], state.l + query * kSumLanes);
    if (scaled) scale_tile(tile, 1, scores);
  }
}

// One key/value head of one tile. Of the item's rows, consecutive ones see anything of
// a tile, because both ends of what a row attends to only grow.
void attend_tile(const AttentionWork& work, int32_t tile, int32_t head, const SoftmaxState& state) {
  const AttentionItem& item = work.item;
  const int32_t position = tile * kTileTokens;
  int first = 0, count = 0;  // queries
  for (int32_t i = 0; i < item.rows; ++i) {
    const Span span = attended(work.args, *item.group, item.row + i);
    const TilePart part = {std::max(0, span.first - position), std::min(kTileTokens, span.last + 1 - position)};
    if (part.begin >= part.end) continue;
    if (count == 0) first = head * item.queries() + i * item.heads;
    for (int h = 0; h < item.heads; ++h) work.parts[count++] = part;
  }
  if (count == 0) return;
  TileSource source = load_tile(work, tile, item.kv_head + head);
  TileAhead ahead;
  if (item.queries() > kDirectQueries) {                         // such an item has one head
    ahead = tile_ahead(work, tile + 1, 2 * query_steps(count));  // scores, then values
    source.ahead = &ahead;
  }
  float* scores = work.scores + first * kTileTokens;
  tile_scores(work.queries + int64_t{first} * work.dim, work.dim, work.args.kv.head_dim, source, count, scores);
  softmax_tile(work, source, first, count, state);
  add_tile_values(scores, source, work.parts, count, state.o + int64_t{first} * work.dim, work.dim);
}

// All queries of the item against the positions of one range, from an empty state.
void attend_range(const AttentionWork& work, int32_t range, const SoftmaxState& state) {
  const AttentionItem& item = work.item;
  const int64_t queries = int64_t{item.kv_heads} * item.queries();
  for (int64_t q = 0; q < queries; ++q) state.m[q] = -INFINITY;
  for (int64_t i = 0; i < queries * kSumLanes; i += kLanes) store(state.l + i, zero());
  for (int64_t i = 0; i < queries * work.dim; i += kLanes) store(state.o + i, zero());
  constexpr int32_t kRangeTiles = kSplitTokens / kTileTokens;
  const int32_t first = std::max(range * kRangeTiles, item.span.first / kTileTokens);
  const int32_t last = std::min((range + 1) * kRangeTiles - 1, item.span.last / kTileTokens);
  for (int32_t tile = first; tile <= last; ++tile) {
    for (int32_t head = 0; head < item.kv_heads; ++head) attend_tile(work, tile, head, state);
  }
}

// Adds a range to the total. A row's first range is copied, so that nothing depends on
// what the total held.
void merge_range(const AttentionWork& work, int32_t range, const SoftmaxState& part, const SoftmaxState& total) {
  const AttentionItem& item = work.item;
  for (int32_t i = 0; i < item.rows; ++i) {
    const Span span = attended(work.args, *item.group, item.row + i);
    if (range < span.first / kSplitTokens || range > span.last / kSplitTokens) continue;
    const bool first = range == span.first / kSplitTokens;
    for (int32_t h = 0; h < item.kv_heads * item.heads; ++h) {
      const int32_t q = query_of(item, i, h);
      const float* o = part.o + int64_t{q} * work.dim;
      float* sum = total.o + int64_t{q} * work.dim;
      if (first) {
        total.m[q] = part.m[q];
        for (int v = 0; v < kSumLanes; v += kLanes)
          store(total.l + q * kSumLanes + v, load(part.l + q * kSumLanes + v));
        for (int32_t d = 0; d < work.dim; d += kLanes) store(sum + d, load(o + d));
        continue;
      }
      const float new_max = part.m[q] > total.m[q] ? part.m[q] : total.m[q];
      const F old_factor = exp2_not_positive(set1(total.m[q] - new_max));
      const F part_factor = exp2_not_positive(set1(part.m[q] - new_max));
      total.m[q] = new_max;
      for (int v = 0; v < kSumLanes; v += kLanes) {
        float* l = total.l + q * kSumLanes + v;
        store(l, fma(load(part.l + q * kSumLanes + v), part_factor, mul(load(l), old_factor)));
      }
      for (int32_t d = 0; d < work.dim; d += kLanes)
        store(sum + d, fma(load(o + d), part_factor, mul(load(sum + d), old_factor)));
    }
  }
}

LORALEI_INLINE float sum_of_weights(const float* l) {
  F lanes = load(l);
  for (int v = kLanes; v < kSumLanes; v += kLanes) lanes = add(lanes, load(l + v));
  return reduce_add(lanes);
}

// The weights' sum with that of a sink, behind all others; where the sink's score is the
// largest, relative to it. Not a part of its caller, so that heads without pay nothing.
__attribute__((noinline)) float sum_with_sink(const SoftmaxState& total, int32_t q, int32_t dim, float sink) {
  alignas(64) float factor[kLanes];
  if (sink > total.m[q]) {
    store(factor, exp2_not_positive(set1(total.m[q] - sink)));
    rescale(total, q, dim, factor[0]);
    return sum_of_weights(total.l + q * kSumLanes) + 1.0f;
  }
  store(factor, exp2_not_positive(set1(sink - total.m[q])));
  return sum_of_weights(total.l + q * kSumLanes) + factor[0];
}

void write_outputs(const AttentionWork& work, const SoftmaxState& total) {
  const AttentionArgs& args = work.args;
  const AttentionItem& item = work.item;
  const int32_t head_dim = args.kv.head_dim;
  for (int32_t i = 0; i < item.rows; ++i) {
    for (int32_t h = 0; h < item.kv_heads * item.heads; ++h) {
      const int32_t q = query_of(item, i, h);
      float* out = args.out + (item.group->row_begin + item.row + i) * args.out_stride +
                   int64_t{item.kv_head * item.heads + h} * head_dim;
      const F sum = set1(args.sinks == nullptr ? sum_of_weights(total.l + q * kSumLanes)
                                               : sum_with_sink(total, q, work.dim, head_sink(args, item, h)));
      for (int32_t d = 0; d < head_dim; d += kLanes) {
        const int n = head_dim - d < kLanes ? head_dim - d : kLanes;
        store_n(out + d, div(load(total.o + int64_t{q} * work.dim + d), sum), n);
      }
    }
  }
}

// A worker's memory: queries, tile of K, tile of V, scores, their parts and maxima, state
// of a range, state of the total.
LORALEI_INLINE AttentionWork work_in(const AttentionArgs& args, const AttentionItem& item, const AttentionSizes& sizes,
                                     float* memory) {
  AttentionWork work{args, item, sizes};
  work.dim = static_cast<int32_t>(sizes.dim);
  work.queries = memory;
  work.keys = work.queries + sizes.queries * sizes.dim;
  work.values = work.keys + kTileTokens * sizes.dim;
  work.scores = work.values + kTileTokens * sizes.dim;
  work.parts = reinterpret_cast<TilePart*>(work.scores + sizes.queries * kTileTokens);
  work.maxima = reinterpret_cast<float*>(work.parts + sizes.queries);
  return work;
}
LORALEI_INLINE float* states_of(const AttentionWork& work) {
  return reinterpret_cast<float*>(work.parts) + work.sizes.parts_bytes / 4;
}

void attend_item(const AttentionArgs& args, const AttentionItem& item, const AttentionSizes& sizes, float* memory) {
  const AttentionWork work = work_in(args, item, sizes, memory);
  const SoftmaxState part = state_at(states_of(work), sizes);
  const SoftmaxState total = state_at(states_of(work) + sizes.slot_bytes / 4, sizes);
  load_queries(work);
  for (int32_t range = item.first_range(); range <= item.last_range(); ++range) {
    attend_range(work, range, part);
    merge_range(work, range, part, total);
  }
  write_outputs(work, total);
}

void attend_one_range(const AttentionArgs& args, const AttentionItem& item, const AttentionSizes& sizes, int32_t range,
                      float* memory, float* slot) {
  const AttentionWork work = work_in(args, item, sizes, memory);
  load_queries(work);
  attend_range(work, range, state_at(slot, sizes));
}

// The items of one group range by range on all threads, a few at a time; merged in
// order by the caller.
void attend_split(OpContext& ctx, const AttentionArgs& args, const AttentionPlan& plan, size_t group,
                  const AttentionSizes& sizes, const Scratch& scratch, float* slots) {
  const int64_t slot_floats = sizes.slot_bytes / 4, slot_count = attention_split_slots(ctx.pool->threads());
  const SoftmaxState total = state_at(slots + slot_count * slot_floats, sizes);
  const int32_t first_range = plan.first_range(args.groups[group]), ranges = plan.ranges(args.groups[group]);
  const int64_t tasks = int64_t{plan.group_items(group)} * ranges;
  for (int64_t start = 0; start < tasks; start += slot_count) {
    const int64_t count = std::min(slot_count, tasks - start);
    ctx.pool->parallel_for(count, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        const AttentionItem item = plan.group_item(group, static_cast<int32_t>((start + i) / ranges));
        const int32_t range = first_range + static_cast<int32_t>((start + i) % ranges);
        if (range < item.first_range() || range > item.last_range()) continue;
        attend_one_range(args, item, sizes, range, scratch.worker<float>(worker), slots + i * slot_floats);
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      const AttentionItem item = plan.group_item(group, static_cast<int32_t>((start + i) / ranges));
      const int32_t range = first_range + static_cast<int32_t>((start + i) % ranges);
      const AttentionWork work = work_in(args, item, sizes, scratch.worker<float>(0));
      if (range >= item.first_range() && range <= item.last_range())
        merge_range(work, range, state_at(slots + i * slot_floats, sizes), total);
      if (range == item.last_range()) write_outputs(work, total);
    }
  }
}

void attention(OpContext& ctx, const AttentionArgs& args) {
  const AttentionSizes sizes = attention_sizes(args.heads, args.kv.kv_heads, args.kv.head_dim);
  const int64_t plan_bytes = attention_plan_bytes(static_cast<int64_t>(args.groups.size()));
  const int64_t slots_bytes = sizes.slot_bytes * (attention_split_slots(ctx.pool->threads()) + 1);
  const Scratch scratch(ctx, plan_bytes + slots_bytes, sizes.worker_bytes);
  const AttentionPlan plan(args, sizes, ctx.pool->threads(), scratch.shared<int32_t>());
  if (plan.empty()) return;
  ++ctx.op_count;
  float* slots = reinterpret_cast<float*>(scratch.shared<std::byte>() + plan_bytes);
  for (size_t group = 0; group < args.groups.size(); ++group) {
    if (plan.is_split(group)) attend_split(ctx, args, plan, group, sizes, scratch, slots);
  }
  ctx.pool->parallel_for(plan.count(), 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t index = begin; index < end; ++index)
      attend_item(args, plan.item(index), sizes, scratch.worker<float>(worker));
  });
}

// SPDX-License-Identifier: Apache-2.0
// Online-softmax attention over the paged cache. No include guard: see target.h.
//
// For each query vector: positions in tiles of kKvBlockTokens, tiles in ranges of kSplitTokens, both at absolute
// positions. Within a range the running maximum m, sum l and output o are updated tile by tile ("Online normalizer
// calculation for softmax", Milakov and Gimelshein 2018; tiled as FlashAttention, Dao et al. 2022); ranges start from
// nothing and are merged in ascending order. Whether ranges ran one after the other or on several threads is not
// visible in the result, nor are the other rows of the batch.

struct SoftmaxState {  // of `queries` vectors
  float* m = nullptr;  // [queries] running maximum
  float* l = nullptr;  // [queries] sum of exp(score - m)
  float* o = nullptr;  // [queries, dim] sum of exp(score - m) * value
};

LORALEI_INLINE SoftmaxState state_at(float* memory, const AttentionSizes& sizes) {
  return {memory, memory + sizes.queries, memory + 2 * sizes.queries};
}

struct AttentionWork {
  const AttentionArgs& args;
  const AttentionItem& item;
  const AttentionSizes& sizes;
  int32_t dim = 0;           // padded head_dim
  float* queries = nullptr;  // [queries, dim], times scale
  float* keys = nullptr;     // [kKvBlockTokens, dim]
  float* values = nullptr;   // [kKvBlockTokens, dim]
};

void load_queries(const AttentionWork& work) {
  const AttentionArgs& args = work.args;
  const AttentionItem& item = work.item;
  const int32_t head_dim = args.kv.head_dim;
  const F scale = set1(args.scale);
  for (int32_t i = 0; i < item.rows; ++i) {
    for (int32_t h = 0; h < item.heads; ++h) {
      const float* q = args.q + (item.group->row_begin + item.row + i) * args.q_stride +
                       int64_t{item.kv_head * item.heads + h} * head_dim;
      float* out = work.queries + int64_t{i * item.heads + h} * work.dim;
      for (int32_t d = 0; d < work.dim; d += kLanes) {
        const int n = head_dim - d < kLanes ? (head_dim > d ? head_dim - d : 0) : kLanes;
        store(out + d, mul(scale, load_n(q + d, n)));
      }
    }
  }
}

// One tile of K or V, padded with zeros to `dim`.
void load_tile(const AttentionWork& work, int32_t tile, int32_t v, float* out) {
  const KvView& kv = work.args.kv;
  const std::byte* source =
      kv.slice(work.item.group->blocks[tile], work.args.layer, v) + work.item.kv_head * kv.head_stride_bytes;
  if (kv.head_dim == work.dim) {
    decode_to_f32(kv.dtype, source, out, int64_t{kKvBlockTokens} * work.dim);
    return;
  }
  const int64_t head_bytes = row_bytes(kv.dtype, kv.head_dim);
  for (int j = 0; j < kKvBlockTokens; ++j) {
    float* row = out + int64_t{j} * work.dim;
    decode_to_f32(kv.dtype, source + j * head_bytes, row, kv.head_dim);
    for (int32_t d = kv.head_dim; d < work.dim; ++d) row[d] = 0;
  }
}

LORALEI_INLINE void tile_scores(const float* q, const float* keys, int32_t dim, float* scores) {
  for (int j = 0; j < kKvBlockTokens; j += 8) {
    const float* k = keys + int64_t{j} * dim;
    F sums[8];
    LORALEI_UNROLL
    for (int i = 0; i < 8; ++i) sums[i] = zero();
    for (int32_t d = 0; d < dim; d += kLanes) {
      const F value = load(q + d);
      LORALEI_UNROLL
      for (int i = 0; i < 8; ++i) sums[i] = fma(value, load(k + int64_t{i} * dim + d), sums[i]);
    }
    _mm_storeu_ps(scores + j, reduce4(sums[0], sums[1], sums[2], sums[3]));
    _mm_storeu_ps(scores + j + 4, reduce4(sums[4], sums[5], sums[6], sums[7]));
  }
}

// o = o * correction + sum over j in [begin, end) of weights[j] * values[j].
template <int kVectors>
LORALEI_INLINE void add_values(const float* weights, int begin, int end, const float* values, int32_t dim, F correction,
                               float* o) {
  F sums[kVectors];
  LORALEI_UNROLL
  for (int v = 0; v < kVectors; ++v) sums[v] = mul(load(o + v * kLanes), correction);
  for (int j = begin; j < end; ++j) {
    const F weight = set1(weights[j]);
    const float* row = values + int64_t{j} * dim;
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[v] = fma(weight, load(row + v * kLanes), sums[v]);
  }
  LORALEI_UNROLL
  for (int v = 0; v < kVectors; ++v) store(o + v * kLanes, sums[v]);
}

// One query vector against positions [begin, end) of the loaded tile; the rest of the tile may hold anything and is not
// read as a value.
void attend_tile(const AttentionWork& work, int query, int begin, int end, const SoftmaxState& state) {
  const int32_t dim = work.dim;
  alignas(64) float scores[kKvBlockTokens];
  tile_scores(work.queries + int64_t{query} * dim, work.keys, dim, scores);
  for (int j = 0; j < begin; ++j) scores[j] = -INFINITY;
  for (int j = end; j < kKvBlockTokens; ++j) scores[j] = -INFINITY;
  F largest = load(scores);
  for (int j = kLanes; j < kKvBlockTokens; j += kLanes) largest = max(largest, load(scores + j));
  const float tile_max = reduce_max(largest);
  const float old_max = state.m[query];
  const float new_max = tile_max > old_max ? tile_max : old_max;
  F sum = zero();
  for (int j = 0; j < kKvBlockTokens; j += kLanes) {
    const F weight = exp_f32(sub(load(scores + j), set1(new_max)));
    store(scores + j, weight);
    sum = add(sum, weight);
  }
  const F correction = exp_f32(set1(old_max - new_max));
  alignas(64) float factor[kLanes];
  store(factor, correction);
  state.m[query] = new_max;
  state.l[query] = state.l[query] * factor[0] + reduce_add(sum);
  float* o = state.o + int64_t{query} * dim;
  int32_t d = 0;
  for (; d + 4 * kLanes <= dim; d += 4 * kLanes)
    add_values<4>(scores, begin, end, work.values + d, dim, correction, o + d);
  for (; d < dim; d += kLanes) add_values<1>(scores, begin, end, work.values + d, dim, correction, o + d);
}

// All queries of the item against the positions of one range, from an empty state.
void attend_range(const AttentionWork& work, int32_t range, const SoftmaxState& state) {
  const AttentionItem& item = work.item;
  const int queries = item.rows * item.heads;
  for (int q = 0; q < queries; ++q) {
    state.m[q] = -INFINITY;
    state.l[q] = 0;
  }
  for (int64_t i = 0; i < int64_t{queries} * work.dim; i += kLanes) store(state.o + i, zero());
  constexpr int32_t kRangeTiles = kSplitTokens / kKvBlockTokens;
  const int32_t first = std::max(range * kRangeTiles, item.span.first / kKvBlockTokens);
  const int32_t last = std::min((range + 1) * kRangeTiles - 1, item.span.last / kKvBlockTokens);
  for (int32_t tile = first; tile <= last; ++tile) {
    load_tile(work, tile, 0, work.keys);
    load_tile(work, tile, 1, work.values);
    const int32_t position = tile * kKvBlockTokens;
    for (int32_t i = 0; i < item.rows; ++i) {
      const Span span = attended(work.args, *item.group, item.row + i);
      const int begin = std::max(0, span.first - position);
      const int end = std::min(kKvBlockTokens, span.last + 1 - position);
      if (begin >= end) continue;
      for (int h = 0; h < item.heads; ++h) attend_tile(work, i * item.heads + h, begin, end, state);
    }
  }
}

// Adds a range to the total. A row's first range is copied, so that nothing depends on what the total held.
void merge_range(const AttentionWork& work, int32_t range, const SoftmaxState& part, const SoftmaxState& total) {
  const AttentionItem& item = work.item;
  for (int32_t i = 0; i < item.rows; ++i) {
    const Span span = attended(work.args, *item.group, item.row + i);
    if (range < span.first / kSplitTokens || range > span.last / kSplitTokens) continue;
    const bool first = range == span.first / kSplitTokens;
    for (int q = i * item.heads; q < (i + 1) * item.heads; ++q) {
      const float* o = part.o + int64_t{q} * work.dim;
      float* sum = total.o + int64_t{q} * work.dim;
      if (first) {
        total.m[q] = part.m[q];
        total.l[q] = part.l[q];
        for (int32_t d = 0; d < work.dim; d += kLanes) store(sum + d, load(o + d));
        continue;
      }
      const float new_max = part.m[q] > total.m[q] ? part.m[q] : total.m[q];
      const F old_factor = exp_f32(set1(total.m[q] - new_max));
      const F part_factor = exp_f32(set1(part.m[q] - new_max));
      alignas(64) float factors[2][kLanes];
      store(factors[0], old_factor);
      store(factors[1], part_factor);
      total.m[q] = new_max;
      total.l[q] = total.l[q] * factors[0][0] + part.l[q] * factors[1][0];
      for (int32_t d = 0; d < work.dim; d += kLanes)
        store(sum + d, fma(load(o + d), part_factor, mul(load(sum + d), old_factor)));
    }
  }
}

void write_outputs(const AttentionWork& work, const SoftmaxState& total) {
  const AttentionArgs& args = work.args;
  const AttentionItem& item = work.item;
  const int32_t head_dim = args.kv.head_dim;
  for (int32_t i = 0; i < item.rows; ++i) {
    for (int32_t h = 0; h < item.heads; ++h) {
      const int q = i * item.heads + h;
      float* out = args.out + (item.group->row_begin + item.row + i) * args.out_stride +
                   int64_t{item.kv_head * item.heads + h} * head_dim;
      const F sum = set1(total.l[q]);
      for (int32_t d = 0; d < head_dim; d += kLanes) {
        const int n = head_dim - d < kLanes ? head_dim - d : kLanes;
        store_n(out + d, div(load(total.o + int64_t{q} * work.dim + d), sum), n);
      }
    }
  }
}

// A worker's memory: queries, tile of K, tile of V, state of a range, state of the total.
LORALEI_INLINE AttentionWork work_in(const AttentionArgs& args, const AttentionItem& item, const AttentionSizes& sizes,
                                     float* memory) {
  AttentionWork work{args, item, sizes};
  work.dim = static_cast<int32_t>(padded_dim(args.kv.head_dim));
  work.queries = memory;
  work.keys = work.queries + sizes.queries * work.dim;
  work.values = work.keys + int64_t{kKvBlockTokens} * work.dim;
  return work;
}
LORALEI_INLINE float* states_of(const AttentionWork& work) { return work.values + int64_t{kKvBlockTokens} * work.dim; }

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

// The ranges of one item on all threads, a few at a time; merged in order by the caller.
void attend_split(OpContext& ctx, const AttentionArgs& args, const AttentionItem& item, const AttentionSizes& sizes,
                  const Scratch& scratch, float* slots) {
  const int64_t slot_floats = sizes.slot_bytes / 4;
  const int64_t slot_count = attention_split_slots(ctx.pool->threads());
  const AttentionWork work = work_in(args, item, sizes, scratch.worker<float>(0));
  const SoftmaxState total = state_at(slots + slot_count * slot_floats, sizes);
  for (int64_t start = item.first_range(); start <= item.last_range(); start += slot_count) {
    const int64_t count = std::min<int64_t>(slot_count, item.last_range() - start + 1);
    ctx.pool->parallel_for(count, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        attend_one_range(args, item, sizes, static_cast<int32_t>(start + i), scratch.worker<float>(worker),
                         slots + i * slot_floats);
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      merge_range(work, static_cast<int32_t>(start + i), state_at(slots + i * slot_floats, sizes), total);
    }
  }
  write_outputs(work, total);
}

void attention(OpContext& ctx, const AttentionArgs& args) {
  const AttentionSizes sizes = attention_sizes(args.heads, args.kv.kv_heads, args.kv.head_dim);
  const int64_t starts_bytes = round_up64((static_cast<int64_t>(args.groups.size()) + 1) * 4);
  const int64_t slots_bytes = sizes.slot_bytes * (attention_split_slots(ctx.pool->threads()) + 1);
  const Scratch scratch(ctx, starts_bytes + slots_bytes, sizes.worker_bytes);
  const AttentionPlan plan(args, sizes, scratch.shared<int32_t>());
  if (plan.count() == 0) return;
  ++ctx.op_count;
  if (plan.split_ranges(ctx.pool->threads())) {
    float* slots = reinterpret_cast<float*>(scratch.shared<std::byte>() + starts_bytes);
    for (int64_t index = 0; index < plan.count(); ++index)
      attend_split(ctx, args, plan.item(index), sizes, scratch, slots);
    return;
  }
  ctx.pool->parallel_for(plan.count(), 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t index = begin; index < end; ++index)
      attend_item(args, plan.item(index), sizes, scratch.worker<float>(worker));
  });
}

// SPDX-License-Identifier: Apache-2.0
// The low-rank products: shrink (A x, the same register tiles as matmul) and expand (B over contiguous outputs). No
// include guard: see target.h.
//
// The number for (row, output) is sum over r ascending of value[r] * B[r, output], then y += factor * (sum + b_bias)
// and y += bias_delta; pieces, chunks and threads do not enter.

void shrink_work(const LoraPiece& piece, const LoraWork& work, int32_t rank_begin, const float* x, int64_t x_stride) {
  const LoraPair& pair = *work.pair;
  const int64_t stride = row_bytes(pair.dtype, pair.in);
  const int outputs = pair.rank - rank_begin < kRowTile ? pair.rank - rank_begin : kRowTile;
  const ProductOut out{work.values + rank_begin, pair.rank, nullptr, false};
  product_rows_of(pair.dtype, pair.a + rank_begin * stride, stride, outputs, x + piece.row_begin * x_stride, x_stride,
                  0, piece.row_count, pair.in, out);
}

// sums[t][0..count) += values[t][rank_begin..rank_begin + kRanks) * B; the sums start from zero at rank 0.
template <class Rows, int kRanks>
LORALEI_INLINE void expand_ranks(const LoraPair& pair, int32_t rank_begin, const float* values, int tokens,
                                 int32_t output, int32_t count, float* sums) {
  const std::byte* b[kRanks];
  for (int r = 0; r < kRanks; ++r) b[r] = pair.b_t + (int64_t{rank_begin + r} * pair.out + output) * Rows::kBytes;
  for (int32_t i = 0; i < count; i += kLanes) {
    const int lanes = count - i < kLanes ? count - i : kLanes;
    F rows[kRanks];
    LORALEI_UNROLL
    for (int r = 0; r < kRanks; ++r)
      rows[r] = lanes == kLanes ? Rows::at(b[r] + i * Rows::kBytes) : Rows::at_n(b[r] + i * Rows::kBytes, lanes);
    for (int t = 0; t < tokens; ++t) {
      const float* v = values + int64_t{t} * pair.rank + rank_begin;
      F sum = rank_begin == 0 ? zero() : load(sums + t * kExpandOutputs + i);
      LORALEI_UNROLL
      for (int r = 0; r < kRanks; ++r) sum = fma(set1(v[r]), rows[r], sum);
      store(sums + t * kExpandOutputs + i, sum);
    }
  }
}

template <class Rows>
void expand_sums(const LoraPair& pair, const float* values, int tokens, int32_t output, int32_t count, float* sums) {
  int32_t r = 0;
  for (; r + 8 <= pair.rank; r += 8) expand_ranks<Rows, 8>(pair, r, values, tokens, output, count, sums);
  for (; r + 2 <= pair.rank; r += 2) expand_ranks<Rows, 2>(pair, r, values, tokens, output, count, sums);
  if (r < pair.rank) expand_ranks<Rows, 1>(pair, r, values, tokens, output, count, sums);
}

void expand_sums_of(const LoraPair& pair, const float* values, int tokens, int32_t output, int32_t count, float* sums) {
  switch (pair.dtype) {
    case DType::kF16:
      return expand_sums<RowsF16>(pair, values, tokens, output, count, sums);
    case DType::kBF16:
      return expand_sums<RowsBF16>(pair, values, tokens, output, count, sums);
    default:
      return expand_sums<RowsF32>(pair, values, tokens, output, count, sums);
  }
}

// y[0..count) += factor * (sums + b_bias) + bias_delta, each term rounded on its own. No scale touches bias_delta: it
// is a replacement.
void add_expanded(const LoraPair& pair, float scale, const float* sums, int32_t output, int32_t count, float* y) {
  const F factor = set1(scale * pair.scaling);
  for (int32_t i = 0; i < count; i += kLanes) {
    const int lanes = count - i < kLanes ? count - i : kLanes;
    F value = load_n(y + i, lanes);
    if (pair.rank > 0) {
      F sum = load_n(sums + i, lanes);
      if (pair.b_bias != nullptr) sum = add(sum, load_n(pair.b_bias + output + i, lanes));
      value = fma(factor, sum, value);
    }
    if (pair.bias_delta != nullptr) value = add(value, load_n(pair.bias_delta + output + i, lanes));
    store_n(y + i, value, lanes);
  }
}

// Outputs [output, output + count) of one target for all rows of one piece.
void expand_piece(const LoraPiece& piece, const LoraWork& work, const LoraTarget& target, int32_t output, int32_t count,
                  float* sums) {
  if (work.delta != nullptr) {
    for (int32_t i = 0; i < piece.row_count; ++i) {
      add_floats(work.delta + int64_t{i} * target.out + output,
                 target.y + (piece.row_begin + i) * target.y_stride + output, count);
    }
  }
  if (work.pair == nullptr || output >= work.pair->out) return;
  const LoraPair& pair = *work.pair;
  count = pair.out - output < count ? pair.out - output : count;
  for (int32_t row = 0; row < piece.row_count; row += kExpandTokens) {
    const int tokens = piece.row_count - row < kExpandTokens ? piece.row_count - row : kExpandTokens;
    if (pair.rank > 0) expand_sums_of(pair, work.values + int64_t{row} * pair.rank, tokens, output, count, sums);
    for (int t = 0; t < tokens; ++t) {
      float* y = target.y + (piece.row_begin + row + t) * target.y_stride + output;
      add_expanded(pair, piece.scale, sums + t * kExpandOutputs, output, count, y);
    }
  }
}

// The second phase: an item is (target, chunk of outputs) and goes through the pieces in order, so that rows in several
// segments are safe.
void expand_batch(OpContext& ctx, const LoraBatch& batch, std::span<const LoraTarget> targets) {
  const int32_t chunk = expand_outputs(targets, ctx.pool->threads());
  int32_t out_max = 0;
  for (const LoraTarget& target : targets) out_max = target.out > out_max ? target.out : out_max;
  const int64_t chunks = (out_max + chunk - 1) / chunk;
  ctx.pool->parallel_for(chunks * static_cast<int64_t>(targets.size()), 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t item = begin; item < end; ++item) {
      const size_t t = static_cast<size_t>(item / chunks);
      const int32_t output = static_cast<int32_t>(item % chunks) * chunk;
      if (output >= targets[t].out) continue;
      const int32_t count = targets[t].out - output < chunk ? targets[t].out - output : chunk;
      for (int p = 0; p < batch.count; ++p) {
        expand_piece(batch.pieces[p], batch.pieces[p].works[t], targets[t], output, count,
                     lora_accumulators(ctx, worker));
      }
    }
  });
}

void lora(OpContext& ctx, const LoraArgs& args) {
  if (args.segments.empty()) return;
  LoraPlanner planner(args.segments, args.targets, lora_shared(ctx));
  LoraBatch batch;
  bool worked = false;
  while (planner.next(batch)) {
    worked = true;
    const auto targets = static_cast<int64_t>(args.targets.size());
    const int64_t blocks = (batch.rank_max + kRowTile - 1) / kRowTile;
    ctx.pool->parallel_for(batch.count * targets * blocks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t item = begin; item < end; ++item) {
        const LoraPiece& piece = batch.pieces[item / (targets * blocks)];
        const LoraWork& work = piece.works[item / blocks % targets];
        const int32_t rank_begin = static_cast<int32_t>(item % blocks) * kRowTile;
        if (work.pair != nullptr && rank_begin < work.pair->rank)
          shrink_work(piece, work, rank_begin, args.x, args.x_stride);
      }
    });
    expand_batch(ctx, batch, args.targets);
  }
  if (worked) ++ctx.op_count;
}

void lora_embed(OpContext& ctx, const LoraEmbedArgs& args) {
  if (args.segments.empty()) return;
  const std::span<const LoraTarget> targets(&args.target, 1);
  LoraPlanner planner(args.segments, targets, lora_shared(ctx));
  LoraBatch batch;
  bool worked = false;
  while (planner.next(batch)) {
    worked = true;
    for (int p = 0; p < batch.count; ++p) {  // looking rows up is too little work to share
      const LoraPiece& piece = batch.pieces[p];
      const LoraPair* pair = piece.works[0].pair;
      if (pair == nullptr) continue;
      for (int32_t i = 0; i < piece.row_count; ++i) {
        const std::byte* row = pair->a + int64_t{args.tokens[piece.row_begin + i]} * row_bytes(pair->dtype, pair->rank);
        decode_to_f32(pair->dtype, row, piece.works[0].values + int64_t{i} * pair->rank, pair->rank);
      }
    }
    expand_batch(ctx, batch, targets);
  }
  if (worked) ++ctx.op_count;
}

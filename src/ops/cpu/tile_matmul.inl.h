// SPDX-License-Identifier: Apache-2.0
// The integer product of a layer input with all its projections: round once, then hand tiles out. No include guard: see
// target.h.

// Up to this many inputs the caller rounds them alone: waking the pool would take longer.
constexpr int64_t kRoundAlone = 4096;

// Weights handed to a thread at a time: long enough a run that memory streams, short enough that every thread gets
// several.
constexpr int64_t kGrainBytes = 160 << 10;
constexpr int64_t kItemsPerThread = 8;

int64_t tile_grain(const TileMatmulArgs& args, int64_t tiles, int threads) {
  const WeightView& w = args.products[0].w;
  const int64_t by_bytes = kGrainBytes / tile_bytes(w.dtype, w.cols);
  const int64_t by_share = tiles / (kItemsPerThread * threads);
  const int64_t grain = by_bytes < by_share ? by_bytes : by_share;
  return grain < 1 ? 1 : grain;
}

RowGroups make_groups(OpContext& ctx, const TileMatmulArgs& args, int64_t cols, std::byte* data) {
  RowGroups groups;
  groups.rows = args.rows;
  groups.cols = cols;
  groups.count = (args.rows + kGroupRows - 1) / kGroupRows;
  groups.full_bytes = cols / kActivationBlock * group_block_bytes(kGroupRows);
  groups.data = data;
  const auto round = [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t group = item / kGroupRows;
      const int size = kGroupSizes[group_kind(groups.rows_of(group))];
      const int row = static_cast<int>(item % kGroupRows);
      if (row >= size) continue;
      const float* x = item < args.rows ? args.x + item * args.x_stride : nullptr;
      round_row(x, cols, size, row, groups.at(group));
    }
  };
  const int64_t items = groups.count * kGroupRows;
  if (args.rows * cols <= kRoundAlone) {
    round(0, items, 0);
  } else {
    ctx.pool->parallel_for(items, 1, round);
  }
  return groups;
}

void matmul_tiles(OpContext& ctx, const TileMatmulArgs& args) {
  if (args.rows <= 0 || args.products.empty()) return;
  ++ctx.op_count;
  const int64_t cols = args.products[0].w.cols;
  const Scratch scratch(ctx, activation_bytes(args.rows, cols), tile_worker_bytes());
  const RowGroups groups = make_groups(ctx, args, cols, scratch.shared<std::byte>());
  int64_t tiles = 0;
  for (const TileProduct& product : args.products) tiles += tile_count(product.w);
  constexpr int64_t kGroupsInCache = kRowsInCache / kGroupRows;
  const int64_t rounds = (groups.count + kGroupsInCache - 1) / kGroupsInCache;
  ctx.pool->parallel_for(
      tiles * rounds, tile_grain(args, tiles, ctx.pool->threads()), [&](int64_t begin, int64_t end, int worker) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t group = item / tiles * kGroupsInCache;
          const int64_t group_end = group + kGroupsInCache < groups.count ? group + kGroupsInCache : groups.count;
          int64_t index = item % tiles;
          const TileProduct* product = args.products.data();
          for (int64_t own = tile_count(product->w); index >= own; own = tile_count(product->w)) {
            index -= own;
            ++product;
          }
          tile_times_groups(args, *product, row_tile(product->w, index), groups, group, group_end,
                            scratch.worker<std::byte>(worker));
        }
      });
}

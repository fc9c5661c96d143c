// SPDX-License-Identifier: Apache-2.0
// The integer product of a layer input with all its projections: round once, then hand tiles out. No include guard: see
// target.h.

// Rows that go through the tiles together while their rounded form stays in the second-level cache.
constexpr int kRowsInCache = 64;
// Up to this many inputs the caller rounds them alone: waking the pool would take longer.
constexpr int64_t kRoundAlone = 16384;

constexpr int64_t kTileGrain = 2;  // tiles handed to a thread at a time: tens of kilobytes of weights

struct RowGroups {
  int64_t count = 0;
  int64_t full_bytes = 0;  // of a group of kGroupRows
  std::byte* data = nullptr;
  int32_t rows = 0;
  int64_t cols = 0;

  int first_row(int64_t group) const { return static_cast<int>(group) * kGroupRows; }
  int rows_of(int64_t group) const {
    const int rest = rows - first_row(group);
    return rest < kGroupRows ? rest : kGroupRows;
  }
  std::byte* at(int64_t group) const { return data + group * full_bytes; }
};

RowGroups make_groups(OpContext& ctx, const TileMatmulArgs& args, int64_t cols) {
  RowGroups groups;
  groups.rows = args.rows;
  groups.cols = cols;
  groups.count = (args.rows + kGroupRows - 1) / kGroupRows;
  groups.full_bytes = cols / kActivationBlock * group_block_bytes(kGroupRows);
  groups.data = ctx.scratch.data();
  CHECK(activation_bytes(args.rows, cols) <= static_cast<int64_t>(ctx.scratch.size()));
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
    ctx.pool->parallel_for(items, 2, round);
  }
  return groups;
}

// Results of a tile for the rows of one group. `outputs` of the sixteen are real.
void write_tile(const TileMatmulArgs& args, const TileProduct& product, const RowTile& tile, int row, int rows,
                const float* sums) {
  for (int r = 0; r < rows; ++r) {
    float* y = product.y + (row + r) * product.y_stride + tile.output;
    for (int i = 0; i < tile.count; i += kLanes) {
      const int lanes = tile.count - i < kLanes ? tile.count - i : kLanes;
      F value = load(sums + r * kRowTile + i);
      if (product.bias != nullptr) value = add(value, load_n(product.bias + tile.output + i, lanes));
      if (args.accumulate) value = add(load_n(y + i, lanes), value);
      store_n(y + i, value, lanes);
    }
  }
}

void tile_times_groups(const TileMatmulArgs& args, const TileProduct& product, const RowTile& tile,
                       const RowGroups& groups, int64_t begin, int64_t end) {
  alignas(64) float sums[kGroupRows * kRowTile];
  for (int64_t group = begin; group < end; ++group) {
    const int rows = groups.rows_of(group);
    tile_kernel(product.w.dtype, group_kind(rows))(tile.data, product.w.cols, groups.at(group), sums);
    write_tile(args, product, tile, groups.first_row(group), rows, sums);
  }
}

void matmul_tiles(OpContext& ctx, const TileMatmulArgs& args) {
  if (args.rows <= 0 || args.products.empty()) return;
  ++ctx.op_count;
  const RowGroups groups = make_groups(ctx, args, args.products[0].w.cols);
  int64_t tiles = 0;
  for (const TileProduct& product : args.products) tiles += tile_count(product.w);
  constexpr int64_t kGroupsInCache = kRowsInCache / kGroupRows;
  const int64_t rounds = (groups.count + kGroupsInCache - 1) / kGroupsInCache;
  ctx.pool->parallel_for(tiles * rounds, kTileGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t group = item / tiles * kGroupsInCache;
      const int64_t group_end = group + kGroupsInCache < groups.count ? group + kGroupsInCache : groups.count;
      int64_t index = item % tiles;
      const TileProduct* product = args.products.data();
      for (int64_t own = tile_count(product->w); index >= own; own = tile_count(product->w)) {
        index -= own;
        ++product;
      }
      tile_times_groups(args, *product, row_tile(product->w, index), groups, group, group_end);
    }
  });
}

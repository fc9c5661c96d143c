// SPDX-License-Identifier: Apache-2.0
// A tile times groups of rows with vector instructions alone. No include guard:
// see target.h.

// Rows that go through the tiles together while their rounded form stays in the
// second-level cache.
constexpr int kRowsInCache = 64;

constexpr int kTilesTogether = 1;

void tiles_times_groups(const TileMatmulArgs& args, const TileProduct& product, const TileRun& tiles, const TileRun&,
                        const RowGroups& groups, int64_t begin, int64_t end, std::byte*) {
  alignas(64) float sums[kGroupRows * kRowTile];
  for (int64_t group = begin; group < end; ++group) {
    const int kind = group_kind(groups.rows_of(group));
    tile_kernel(tiles.dtype, kind)(tiles.tile[0].data, groups.cols, groups.at(group), sums);
    write_tile(args, product, tiles.tile[0], groups, group, sums);
  }
}

// SPDX-License-Identifier: Apache-2.0
// Pairs of tiles, or one that is left alone, times groups of few rows. No include
// guard: see target.h.

// The products of the tiles with groups [begin, end), and their results.
void multiply_packed(const TileRun& tiles, const RowGroups& groups, int64_t begin, int64_t end, int64_t first,
                     const WideResults& results, const WideScratch& scratch) {
  for (int64_t group = begin; group < end; ++group) {
    const int kind = group_kind(groups.rows_of(group));
    float* const sums = scratch.sums_of(0, group - first);
    if (tiles.count == kPair || kGroupSizes[kind] > kPackedRows) {
      pair_kernel(tiles.dtype, kind)(tiles, groups.cols, groups.at(group), *groups.tuning, groups.rows_of(group), sums);
    } else {
      tile_kernel(tiles.dtype, kind)(tiles.tile[0].data, groups.cols, groups.at(group), sums);
    }
    results.write(group, sums);
  }
}

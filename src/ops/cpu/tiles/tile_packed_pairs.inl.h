// SPDX-License-Identifier: Apache-2.0
// As tile_packed.inl.h where all groups take the kernels for pairs: halves of a
// tile, or two tiles, of which the last one of an odd number is both. No include
// guard: see target.h.

void multiply_packed(const TileRun& tiles, const RowGroups& groups, int64_t begin, int64_t end, int64_t first,
                     const WideResults& results, const WideScratch& scratch) {
  for (int64_t group = begin; group < end; ++group) {
    const int rows = groups.rows_of(group);
    float* const sums = scratch.sums_of(0, group - first);
    pair_kernel(tiles.dtype, group_kind(rows))(tiles, groups.cols, groups.at(group), *groups.tuning, rows, sums);
    results.write(group, sums);
  }
}

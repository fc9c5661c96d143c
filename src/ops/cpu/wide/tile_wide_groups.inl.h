// SPDX-License-Identifier: Apache-2.0
// Tiles times many groups of rows on vectors: some blocks are written out, all groups
// meet them, then the next. No include guard: see target.h.

// The products of `tiles` with groups [begin, end), added to the sums, which start at the
// place of group `first`, and their results. All groups have more than kPackedRows rows.
void multiply_wide(const TileRun& tiles, const TileRun& next, const RowGroups& groups, int64_t begin, int64_t end,
                   int64_t first, const WideResults& results, const WideScratch& scratch) {
  const WideFormat format = wide_format(tiles.dtype);
  const int64_t blocks = groups.cols / kActivationBlock;
  for (int64_t block = 0; block < blocks; block += kWideBlocks) {
    const int64_t count = blocks - block < kWideBlocks ? blocks - block : kWideBlocks;
    for (int v = 0; v < tiles.count; ++v) {
      widen_tile(tiles.dtype, tiles.tile[v].data, block, count, scratch.wide + v * kWideTileBytes);
    }
    int64_t fetches = 0;
    for (int64_t group = begin; group < end; ++group)
      fetches += wide_fetches(format.kind, group_size(groups, group), count);
    FetchAhead ahead{weights_ahead(tiles, next, groups.cols, block, fetches), {}};
    const bool last = block + count == blocks;
    if (last) ahead.results = results_ahead(results, begin, end);
    for (int64_t group = begin; group < end; ++group) {
      const int size = group_size(groups, group);
      wide_group(format, tiles.count, scratch.wide, count, groups.at(group, size, block), size, ahead,
                 scratch.sums_of(0, group - first));
      if (last) results.write(group, scratch.sums_of(0, group - first));
    }
  }
}

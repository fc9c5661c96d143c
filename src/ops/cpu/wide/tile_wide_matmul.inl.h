// SPDX-License-Identifier: Apache-2.0
// Tiles times groups of rows: tiles written out for many rows, packed ones for few.
// No include guard: see target.h.

void tiles_times_groups(const TileMatmulArgs& args, const TileProduct& product, const TileRun& tiles,
                        const TileRun& next, const RowGroups& groups, int64_t begin, int64_t end, std::byte* memory) {
  const WideScratch scratch(memory);
  const int64_t wide_end = wide_groups(groups, tiles.dtype, begin, end);
  const WideResults results{&args, &product, &tiles, &groups};
  clear_sums(scratch, tiles, begin, wide_end);
  if (begin < wide_end) multiply_wide(tiles, next, groups, begin, wide_end, begin, results, scratch);
  multiply_packed(tiles, groups, wide_end, end, begin, results, scratch);
}

// SPDX-License-Identifier: Apache-2.0
// The rounded rows of one product in their groups (activations.h), and where a tile's results go. No include guard: see
// target.h.

struct RowGroups {
  int64_t count = 0;
  int64_t full_bytes = 0;  // of a group of kGroupRows
  std::byte* data = nullptr;
  int32_t rows = 0;
  int64_t cols = 0;
  const TileTuning* tuning = nullptr;

  int first_row(int64_t group) const { return static_cast<int>(group) * kGroupRows; }
  int rows_of(int64_t group) const {
    const int rest = rows - first_row(group);
    return rest < kGroupRows ? rest : kGroupRows;
  }
  std::byte* at(int64_t group) const { return data + group * full_bytes; }
};

// Tiles of one product that meet the same groups together.
constexpr int kTilesTogetherMax = 2;
struct TileRun {
  DType dtype = DType::kQ8_0;
  int count = 0;
  RowTile tile[kTilesTogetherMax];
};

// Few rows wait for memory all the time. Fetching the lines of their results, only to be written over, takes more of it
// than their bytes, so such results go past the caches; unless what is there is added to them.
bool results_pass_caches(const TileMatmulArgs& args) { return args.rows <= kPackedRows && !args.accumulate; }
LORALEI_INLINE bool aligned(const float* p) { return reinterpret_cast<uintptr_t>(p) % (kLanes * sizeof(float)) == 0; }

// Results of a tile for the rows of one group. `outputs` of the sixteen are real.
void write_tile(const TileMatmulArgs& args, const TileProduct& product, const RowTile& tile, int row, int rows,
                const float* sums) {
  const bool past_caches = results_pass_caches(args);
  for (int r = 0; r < rows; ++r) {
    float* y = product.y + (row + r) * product.y_stride + tile.output;
    for (int i = 0; i < tile.count; i += kLanes) {
      const int lanes = tile.count - i < kLanes ? tile.count - i : kLanes;
      F value = load(sums + r * kRowTile + i);
      if (product.bias != nullptr) value = add(value, load_n(product.bias + tile.output + i, lanes));
      if (args.accumulate) value = add(load_n(y + i, lanes), value);
      if (past_caches && lanes == kLanes && aligned(y + i)) {
        stream(y + i, value);
      } else {
        store_n(y + i, value, lanes);
      }
    }
  }
}

// SPDX-License-Identifier: Apache-2.0
// The rounded rows of a layer input in their groups and one form (activations.h), and
// where a tile's results go. No include guard: see target.h.

struct RowGroups {
  RowForm form = RowForm::kSum;
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
  // The group's blocks from `block` on; `size` is the group's (kGroupSizes).
  std::byte* at(int64_t group, int size, int64_t block) const {
    return at(group) + block * group_block_bytes(size, has_halves(form));
  }
};
// The same rows in each form that the products of a call need.
struct RoundedInput {
  int forms = 0;
  RowGroups groups[kRowFormsTogether];

  const RowGroups& of(DType dtype) const { return groups[forms == 1 || groups[0].form == row_form(dtype) ? 0 : 1]; }
};

// Tiles of one product that meet the same groups together.
constexpr int kTilesTogetherMax = 2;
struct TileRun {
  DType dtype = DType::kQ8_0;
  int count = 0;
  RowTile tile[kTilesTogetherMax];
};

// Whether unpacking costs so little that it is done anew for every pass of a group's
// rows: not with Q6_K, Q3_K and Q2_K, whose blocks have two scales and half as many dot
// products for each, and not with a fifth bit or a table where few registers are.
bool unpacks_easily(DType dtype) {
  switch (dtype) {
    case DType::kQ6_K:
    case DType::kQ3_K:
    case DType::kQ2_K:
      return false;
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kMXFP4:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
      return kManyRegisters;
    default:
      return true;
  }
}
// Whether a call has so few rows that all meet packed tiles. Where unpacking costs
// nothing beside dot products a whole group does (TileTuning).
bool few_rows(const RowGroups& groups, DType dtype) {
  if (groups.rows <= kPackedRows) return true;
  return groups.count == 1 && groups.rows <= groups.tuning->packed_rows && unpacks_easily(dtype);
}

// Few rows wait for memory all the time. Fetching the lines of their results, only to be
// written over, takes more of it than their bytes, so such results go past the caches;
// unless what is there is added to them.
bool results_pass_caches(const TileMatmulArgs& args, const RowGroups& groups, DType dtype) {
  return few_rows(groups, dtype) && !args.accumulate;
}
LORALEI_INLINE bool aligned(const float* p) { return reinterpret_cast<uintptr_t>(p) % (kLanes * sizeof(float)) == 0; }

// Results of a tile for the rows of one group. `tile.count` of the sixteen
// outputs are real.
void write_tile(const TileMatmulArgs& args, const TileProduct& product, const RowTile& tile, const RowGroups& groups,
                int64_t group, const float* sums) {
  const bool past_caches = results_pass_caches(args, groups, product.w.dtype);
  const int row = groups.first_row(group);
  for (int r = 0; r < groups.rows_of(group); ++r) {
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

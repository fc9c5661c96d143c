// SPDX-License-Identifier: Apache-2.0
// Cutting a weight matrix into row tiles across its panels. Pure functions, any thread.
#pragma once

#include "ops/args.h"

namespace loralei {

struct RowTile {
  const std::byte* data = nullptr;  // its first row
  int64_t output = 0;               // that row's number
  int count = 0;                    // at most kRowTile; fewer only at the end of a panel
};

inline int64_t tile_count(const WeightView& w) {
  int64_t tiles = 0;
  for (const WeightPanel& panel : w.panels) tiles += (panel.row_count + kRowTile - 1) / kRowTile;
  return tiles;
}

inline RowTile row_tile(const WeightView& w, int64_t index) {
  for (const WeightPanel& panel : w.panels) {
    const int64_t tiles = (panel.row_count + kRowTile - 1) / kRowTile;
    if (index < tiles) {
      const int64_t row = index * kRowTile;
      const int64_t rest = panel.row_count - row;
      return {panel.data + row * row_bytes(w.dtype, w.cols), panel.row_begin + row,
              static_cast<int>(rest < kRowTile ? rest : kRowTile)};
    }
    index -= tiles;
  }
  return {};
}

inline RowTile tile_of_row(const WeightView& w, int64_t row) {
  for (const WeightPanel& panel : w.panels) {
    if (row >= panel.row_begin + panel.row_count) continue;
    const int64_t first = (row - panel.row_begin) / kRowTile * kRowTile;
    return {panel.data + first * row_bytes(w.dtype, w.cols), panel.row_begin + first, kRowTile};
  }
  return {};
}

// Layout kPlain only.
inline const std::byte* weight_row(const WeightView& w, int64_t row) {
  for (const WeightPanel& panel : w.panels) {
    if (row < panel.row_begin + panel.row_count)
      return panel.data + (row - panel.row_begin) * row_bytes(w.dtype, w.cols);
  }
  return nullptr;
}

// Into how many blocks the activation rows are split so that every thread finds
// several work items.
inline int64_t row_splits(int64_t tiles, int64_t rows, int threads) {
  constexpr int64_t kRowsMin = 32;
  const int64_t wanted = 4 * int64_t{threads};
  if (threads == 1 || tiles >= wanted || rows < 2 * kRowsMin) return 1;
  const int64_t splits = (wanted + tiles - 1) / tiles;
  return splits < rows / kRowsMin ? splits : rows / kRowsMin;
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// WeightStore: rows of an embedding, wherever they lie.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "weights/weight_store_state.h"

namespace loralei {

void WeightStore::State::make_look_up_memory(int32_t rows_max) {
  int64_t tile = 0, row = 0;
  for (const Matrix& matrix : matrices) {
    if (matrix.resident() || (matrix.planned.role != MatrixRole::kEmbed && !matrix.planned.tied_head)) continue;
    tile = std::max(tile, matrix.planned.tile_bytes);
    row = std::max(row, row_bytes(matrix.view.dtype, matrix.view.cols));
  }
  row_tile.resize(static_cast<size_t>(tile));
  stored_tile.resize(static_cast<size_t>(tile));
  rows.resize(static_cast<size_t>(row * rows_max));
  row_numbers.resize(static_cast<size_t>(rows_max));
}

// Its whole tile is read and decoded, unless it is locked.
Status WeightStore::State::read_shrunk_row(const Matrix& matrix, int64_t row, std::byte* out) {
  const int64_t bytes = row_bytes(matrix.view.dtype, matrix.view.cols);
  const std::byte* data = nullptr;
  if (row < matrix.locked_rows) {
    data = arena.data() + matrix.at + row * bytes;
  } else {
    const int64_t tile = row / kRowTile;
    const std::span<std::byte> stored = std::span(stored_tile).first(static_cast<size_t>(matrix.packed.tile_bytes()));
    TRY(packed_file->read_exact(matrix.packed.at + tile * matrix.packed.tile_bytes(), stored));
    TRY(matrix.packed.restore_tile(tile, stored, row_tile.data()));
    data = row_tile.data() + row % kRowTile * bytes;
  }
  std::memcpy(out, data, static_cast<size_t>(bytes));
  return {};
}

Result<EmbeddedRows> WeightStore::look_up(TensorSlot slot, std::span<const TokenId> tokens) {
  State& state = *state_;
  const State::Matrix& matrix = state.matrices[static_cast<size_t>(slot)];
  if (matrix.resident()) return EmbeddedRows{matrix.view, tokens};
  CHECK(tokens.size() <= state.row_numbers.size());
  const int64_t bytes = row_bytes(matrix.view.dtype, matrix.view.cols);
  const int64_t tile_bytes = matrix.packed.held_tile_bytes();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t row = tokens[i];
    CHECK(row >= 0 && row < matrix.view.rows);
    std::byte* const out = state.rows.data() + static_cast<int64_t>(i) * bytes;
    state.row_numbers[i] = static_cast<TokenId>(i);
    if (matrix.packed.shrunk) {
      TRY(state.read_shrunk_row(matrix, row, out));
      continue;
    }
    if (matrix.view.layout == LayoutId::kPlain) {
      if (row < matrix.locked_rows) {
        std::memcpy(out, state.arena.data() + matrix.at + row * bytes, static_cast<size_t>(bytes));
      } else {
        TRY(state.packed_file->read_exact(matrix.packed.at + row * bytes, {out, static_cast<size_t>(bytes)}));
      }
      continue;
    }
    const int64_t tile = row / kRowTile;
    const std::byte* data = state.row_tile.data();
    if (tile * kRowTile < matrix.locked_rows) {
      data = state.arena.data() + matrix.at + tile * tile_bytes;
    } else {
      TRY(state.packed_file->read_exact(matrix.packed.at + tile * tile_bytes,
                                        {state.row_tile.data(), static_cast<size_t>(tile_bytes)}));
    }
    unpack_tile_row(matrix.view.dtype, data, static_cast<int>(row % kRowTile), matrix.view.cols, out);
  }
  state.rows_panel = {state.rows.data(), 0, static_cast<int32_t>(tokens.size())};
  EmbeddedRows rows;
  rows.view = {matrix.view.dtype,
               LayoutId::kPlain,
               static_cast<int32_t>(tokens.size()),
               matrix.view.cols,
               {&state.rows_panel, 1}};
  rows.tokens = {state.row_numbers.data(), tokens.size()};
  return rows;
}

}  // namespace loralei

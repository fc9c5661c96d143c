// SPDX-License-Identifier: Apache-2.0
// WeightStore: rows of an embedding, wherever they lie.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "weights/weight_store_state.h"

namespace loralei {

void WeightStore::State::make_look_up_memory(int32_t rows_max) {
  int64_t tile = 0, row = 0;
  for (Matrix& matrix : matrices) {
    if (matrix.resident() || (matrix.planned.role != MatrixRole::kEmbed && !matrix.planned.tied_head)) continue;
    tile = std::max(tile, matrix.planned.tile_bytes);
    row = std::max(row, row_bytes(matrix.view.dtype, matrix.view.cols));
    matrix.row_checks.assign(matrix.holds_plain_rows() ? static_cast<size_t>(matrix.view.rows) : 0, 0);
    matrix.checked.assign(static_cast<size_t>(matrix.packed.tiles()), false);
  }
  row_tile.resize(static_cast<size_t>(tile));
  stored_tile.resize(static_cast<size_t>(tile));
  rows.resize(static_cast<size_t>(row * rows_max));
  row_numbers.resize(static_cast<size_t>(rows_max));
}

// One row that is not locked, to `out`. The first time its whole tile is read and
// checked, and the checks of its plain rows are kept for those that are read alone later.
// A row that does not match is looked at with its tile again, which names the damage.
Status WeightStore::State::read_row(Matrix& matrix, int64_t row, std::byte* out) {
  const PackedMatrix& stored = matrix.packed;
  const int64_t tile = row / kRowTile, within = row % kRowTile, at = stored.at + tile * stored.tile_bytes();
  const auto plain_bytes = static_cast<size_t>(row_bytes(stored.dtype, stored.cols));
  if (matrix.holds_plain_rows() && matrix.checked[static_cast<size_t>(tile)]) {
    TRY(packed_file->read_exact(at + within * static_cast<int64_t>(plain_bytes), {out, plain_bytes}));
    if (tile_check({out, plain_bytes}, row) == matrix.row_checks[static_cast<size_t>(row)]) return {};
  }
  const std::span<std::byte> data = std::span(stored_tile).first(static_cast<size_t>(stored.bytes_of_tile(tile)));
  TRY(packed_file->read_exact(at, data));
  TRY(check_tiles(packed, stored, tile, 1, data.data()));
  if (matrix.holds_plain_rows()) {
    int64_t number = tile * kRowTile;
    for (size_t begin = 0; begin < data.size(); begin += plain_bytes, ++number)
      matrix.row_checks[static_cast<size_t>(number)] = tile_check(data.subspan(begin, plain_bytes), number);
    matrix.checked[static_cast<size_t>(tile)] = true;
  }
  if (stored.layout == LayoutId::kTile16) {
    unpack_tile_row(stored.dtype, data.data(), static_cast<int>(within), stored.cols, out);
    return {};
  }
  if (stored.shrunk) TRY(stored.restore_tile(tile, data, row_tile.data()));
  const int64_t bytes = row_bytes(stored.dtype, stored.cols);
  std::memcpy(out, (stored.shrunk ? row_tile.data() : data.data()) + within * bytes, static_cast<size_t>(bytes));
  return {};
}

Result<EmbeddedRows> WeightStore::look_up(TensorSlot slot, std::span<const TokenId> tokens) {
  State& state = *state_;
  State::Matrix& matrix = state.matrices[static_cast<size_t>(slot)];
  if (matrix.resident()) return EmbeddedRows{matrix.view, tokens};
  CHECK(tokens.size() <= state.row_numbers.size());
  const int64_t bytes = row_bytes(matrix.view.dtype, matrix.view.cols);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t row = tokens[i];
    CHECK(row >= 0 && row < matrix.view.rows);
    std::byte* const out = state.rows.data() + static_cast<int64_t>(i) * bytes;
    state.row_numbers[i] = static_cast<TokenId>(i);
    const std::byte* const locked = state.arena.data() + matrix.at;
    if (row >= matrix.locked_rows) {
      if (const Status read = state.read_row(matrix, row, out); !read.ok()) return state.packed_failure(read.error());
    } else if (matrix.view.layout == LayoutId::kPlain) {
      std::memcpy(out, locked + row * bytes, static_cast<size_t>(bytes));
    } else {
      unpack_tile_row(matrix.view.dtype, locked + row / kRowTile * matrix.packed.held_tile_bytes(),
                      static_cast<int>(row % kRowTile), matrix.view.cols, out);
    }
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

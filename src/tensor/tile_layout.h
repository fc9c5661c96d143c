// SPDX-License-Identifier: Apache-2.0
// The layout kTile16: quantised rows interleaved by sixteen, so that one vector holds the
// same four inputs of sixteen outputs.
//
// A tile is 16 rows of a matrix, [16, cols]. Its bytes are those of the sixteen rows,
// only in another order (no larger): block after block, so that a tile is one
// stream of memory.
// Each block is
//
//   head    a scale of one byte u8[16] (mxfp4), or d f16[16] and what other 16 bits the
//           format has (m; the scales' high bits of iq4_xs), then the packed sub-scales
//           u32[n][16]
//   high    the words that hold the highest bits, u32[n][16]
//   quants  u32[n][16]
//
// Word w of row r of a section lies at [w][r]; within a word nothing moves, so packing is
// a transposition of words.
//
// The last tile of a matrix is filled up with rows of zero bytes. One layout serves every
// instruction set: 512 bits take a word row at once, 256 bits in two halves, 128 bits
// in four. Pure functions, any thread, no allocation; cols fit the blocks (CHECKed).
// Quantised formats only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/weight_view.h"

namespace loralei {

// Where the parts of one source block lie (offsets in bytes) and how many words each has.
struct BlockParts {
  int byte_scales = 0;  // scales of one byte
  int byte_at = 0;
  int halves = 1;       // numbers of 16 bits: d, or d and m
  int half_at = 0;      // the first; the second follows
  int scale_words = 0;  // packed sub-scales
  int scale_at = 0;
  int high_words = 0;
  int high_at = 0;
  int quant_words = 0;
  int quant_at = 0;

  constexpr int64_t head_bytes() const { return int64_t{kRowTile} * (byte_scales + 2 * halves + 4 * scale_words); }
  constexpr int64_t scale_words_at() const { return int64_t{kRowTile} * (byte_scales + 2 * halves); }  // in the head
  constexpr int64_t high_bytes() const { return int64_t{kRowTile} * 4 * high_words; }
  constexpr int64_t quant_bytes() const { return int64_t{kRowTile} * 4 * quant_words; }
  constexpr int64_t bytes() const { return head_bytes() + high_bytes() + quant_bytes(); }  // of sixteen rows
};
BlockParts block_parts(DType dtype);

// The three sections of one block of a tile.
struct TileSections {
  const std::byte* head = nullptr;
  const std::byte* high = nullptr;
  const std::byte* quants = nullptr;
};

inline int64_t tile_bytes(DType dtype, int64_t cols) { return kRowTile * row_bytes(dtype, cols); }
// Bytes of a matrix in a layout: kTile16 rounds the rows up to whole tiles.
int64_t matrix_bytes(DType dtype, LayoutId layout, int64_t rows, int64_t cols);

// rows[i] null: a row of zeros.
void pack_tile(DType dtype, const std::array<const std::byte*, kRowTile>& rows, int64_t cols, std::byte* tile);
// Row `row` of the tile in the file's block format.
void unpack_tile_row(DType dtype, const std::byte* tile, int row, int64_t cols, std::byte* out);
// The same decoded to f32.
void decode_tile_row(DType dtype, const std::byte* tile, int row, int64_t cols, float* out);

}  // namespace loralei

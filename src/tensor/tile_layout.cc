// SPDX-License-Identifier: Apache-2.0
#include "tensor/tile_layout.h"

#include <cstring>

#include "base/check.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr int kBlockBytesMax = 210;

uint32_t load_word(const std::byte* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// A section of a block: `words` words a row, read at `at` of each source block.
void pack_words(const std::array<const std::byte*, kRowTile>& rows, int64_t block_at, int at, int words,
                std::byte* out) {
  for (int r = 0; r < kRowTile; ++r) {
    if (rows[static_cast<size_t>(r)] == nullptr) {
      for (int w = 0; w < words; ++w) std::memset(out + (w * kRowTile + r) * 4, 0, 4);
      continue;
    }
    const std::byte* source = rows[static_cast<size_t>(r)] + block_at + at;
    for (int w = 0; w < words; ++w) {
      const uint32_t word = load_word(source + 4 * w);
      std::memcpy(out + (w * kRowTile + r) * 4, &word, 4);
    }
  }
}

struct SectionAt {
  int64_t head, high, quants;  // of one block
};

SectionAt sections_of(const BlockParts& parts, int64_t block) {
  const int64_t head = block * parts.bytes();
  return {head, head + parts.head_bytes(), head + parts.head_bytes() + parts.high_bytes()};
}

void unpack_block(const BlockParts& parts, const std::byte* tile, const SectionAt& at, int row, std::byte* out) {
  const auto words = [&](int64_t section, int count, int to) {
    for (int w = 0; w < count; ++w) std::memcpy(out + to + 4 * w, tile + section + (w * kRowTile + row) * 4, 4);
  };
  for (int b = 0; b < parts.byte_scales; ++b) out[parts.byte_at + b] = tile[at.head + b * kRowTile + row];
  for (int h = 0; h < parts.halves; ++h) {
    std::memcpy(out + parts.half_at + 2 * h, tile + at.head + parts.byte_scales * kRowTile + (h * kRowTile + row) * 2,
                2);
  }
  words(at.head + parts.scale_words_at(), parts.scale_words, parts.scale_at);
  words(at.high, parts.high_words, parts.high_at);
  words(at.quants, parts.quant_words, parts.quant_at);
}

}  // namespace

BlockParts block_parts(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
      return {.quant_words = 8, .quant_at = 2};
    case DType::kQ4_0:
      return {.quant_words = 4, .quant_at = 2};
    case DType::kQ4_1:
    case DType::kInt4G:
      return {.halves = 2, .quant_words = 4, .quant_at = 4};
    case DType::kQ5_0:
      return {.high_words = 1, .high_at = 2, .quant_words = 4, .quant_at = 6};
    case DType::kQ5_1:
      return {.halves = 2, .high_words = 1, .high_at = 4, .quant_words = 4, .quant_at = 8};
    case DType::kQ4_K:
      return {.halves = 2, .scale_words = 3, .scale_at = 4, .quant_words = 32, .quant_at = 16};
    case DType::kQ5_K:
      return {.halves = 2,
              .scale_words = 3,
              .scale_at = 4,
              .high_words = 8,
              .high_at = 16,
              .quant_words = 32,
              .quant_at = 48};
    case DType::kQ6_K:
      return {.half_at = 208, .scale_words = 4, .scale_at = 192, .high_words = 16, .high_at = 128, .quant_words = 32};
    case DType::kQ2_K:
      return {.halves = 2, .half_at = 80, .scale_words = 4, .quant_words = 16, .quant_at = 16};
    case DType::kQ3_K:
      return {.half_at = 108, .scale_words = 3, .scale_at = 96, .high_words = 8, .quant_words = 16, .quant_at = 32};
    case DType::kIQ4_NL:
      return {.quant_words = 4, .quant_at = 2};
    case DType::kIQ4_XS:
      return {.halves = 2, .scale_words = 1, .scale_at = 4, .quant_words = 32, .quant_at = 8};
    case DType::kMXFP4:
      return {.byte_scales = 1, .halves = 0, .quant_words = 4, .quant_at = 1};
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kI8:
    case DType::kF8:
    case DType::kF8G:
      break;
  }
  CHECK(false);
  return {};
}

int64_t matrix_bytes(DType dtype, LayoutId layout, int64_t rows, int64_t cols) {
  const int64_t held = layout == LayoutId::kTile16 ? (rows + kRowTile - 1) / kRowTile * kRowTile : rows;
  return held * row_bytes(dtype, cols);
}

void pack_tile(DType dtype, const std::array<const std::byte*, kRowTile>& rows, int64_t cols, std::byte* tile) {
  CHECK(has_tiles(dtype) && fits_blocks(dtype, cols));
  const DTypeInfo info = dtype_info(dtype);
  const BlockParts parts = block_parts(dtype);
  const int64_t blocks = cols / info.block_elems;
  for (int64_t block = 0; block < blocks; ++block) {
    const SectionAt at = sections_of(parts, block);
    const int64_t block_at = block * info.block_bytes;
    for (int b = 0; b < parts.byte_scales; ++b) {
      for (int r = 0; r < kRowTile; ++r) {
        const std::byte* source = rows[static_cast<size_t>(r)];
        tile[at.head + b * kRowTile + r] = source != nullptr ? source[block_at + parts.byte_at + b] : std::byte{0};
      }
    }
    for (int h = 0; h < parts.halves; ++h) {
      for (int r = 0; r < kRowTile; ++r) {
        uint16_t half = 0;
        const std::byte* source = rows[static_cast<size_t>(r)];
        if (source != nullptr) std::memcpy(&half, source + block_at + parts.half_at + 2 * h, 2);
        std::memcpy(tile + at.head + parts.byte_scales * kRowTile + (h * kRowTile + r) * 2, &half, 2);
      }
    }
    pack_words(rows, block_at, parts.scale_at, parts.scale_words, tile + at.head + parts.scale_words_at());
    pack_words(rows, block_at, parts.high_at, parts.high_words, tile + at.high);
    pack_words(rows, block_at, parts.quant_at, parts.quant_words, tile + at.quants);
  }
}

void unpack_tile_row(DType dtype, const std::byte* tile, int row, int64_t cols, std::byte* out) {
  CHECK(has_tiles(dtype) && fits_blocks(dtype, cols) && row >= 0 && row < kRowTile);
  const DTypeInfo info = dtype_info(dtype);
  const BlockParts parts = block_parts(dtype);
  const int64_t blocks = cols / info.block_elems;
  for (int64_t block = 0; block < blocks; ++block) {
    unpack_block(parts, tile, sections_of(parts, block), row, out + block * info.block_bytes);
  }
}

void decode_tile_row(DType dtype, const std::byte* tile, int row, int64_t cols, float* out) {
  CHECK(has_tiles(dtype) && fits_blocks(dtype, cols) && row >= 0 && row < kRowTile);
  const DTypeInfo info = dtype_info(dtype);
  const BlockParts parts = block_parts(dtype);
  const int64_t blocks = cols / info.block_elems;
  std::byte bytes[kBlockBytesMax];
  for (int64_t block = 0; block < blocks; ++block) {
    unpack_block(parts, tile, sections_of(parts, block), row, bytes);
    decode_row(dtype, bytes, out + block * info.block_elems, info.block_elems);
  }
}

}  // namespace loralei

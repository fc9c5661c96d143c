// SPDX-License-Identifier: Apache-2.0
// Integer products: a tile of sixteen outputs times a group of rounded rows. No include
// guard: see target.h.
//
// The kernels of a format differ in how many rows they take at once, never in the order
// in which the number for (row, output) is summed (ops/args.h), so a row's result does
// not depend on its group.

LORALEI_INLINE F row_float(const std::byte* numbers, int row) {
  float value;
  std::memcpy(&value, numbers + 4 * row, 4);
  return set1(value);
}
template <int kRows>
LORALEI_INLINE I dot_start(const std::byte* block, int row, ZeroPoint zero, int half = 0) {
  if (zero == ZeroPoint::kNone) return iset1(0);
  int32_t start;
  std::memcpy(&start, block + group_z_at(kRows, half) + 4 * row, 4);
  return iset1(start);
}

// Rows that take turns: as many as hide the latency of a dot product and leave registers
// for the weights.
constexpr int turns(int rows) { return rows % 8 == 0 ? 8 : rows % 4 == 0 ? 4 : rows % 3 == 0 ? 3 : rows; }

// One tile alone is one stream. With one or two rows small blocks go by so fast that
// every line must be asked for long before; blocks of 256, which take more work, are
// faster the other way (product_part).
constexpr int kBytesAhead = 2048, kBytesFarAhead = 12288;
template <int kBytes, int kRows>
LORALEI_INLINE void prefetch_stream(const std::byte* at) {
  if constexpr (kRows > 2) {
    prefetch_lines<kBytes>(at + kBytesAhead);
  } else {
    LORALEI_UNROLL
    for (int i = 0; i < (kBytes + 63) / 64; ++i) {
      __builtin_prefetch(at + 64 * i + kBytesFarAhead, 0, 2);
      __builtin_prefetch(at + 64 * i + kBytesAhead / 2, 0, 3);
    }
  }
}

template <int kRows, int kVectors>
LORALEI_INLINE void store_sums(const F (&acc)[kRows * kVectors], int lane, float* sums) {
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) {
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) store(sums + r * kRowTile + lane + v * kLanes, acc[r * kVectors + v]);
  }
}

// Outputs [lane, lane + kVectors * kLanes) of a tile for a group of kRows rows; sums
// [kRows][kRowTile].
template <class Format, int kRows, int kVectors>
LORALEI_INLINE void product_32(TileSections at, int lane, const std::byte* x, int64_t blocks, float* sums) {
  F acc[kRows * kVectors];
  LORALEI_UNROLL
  for (int i = 0; i < kRows * kVectors; ++i) acc[i] = zero();
  for (int64_t b = 0; b < blocks; ++b) {
    prefetch_stream<block_bytes<Format>(), kRows>(at.head);
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const int place = lane + v * kLanes;
      I w[8];
      block_words<Format>(at, place, w);
      const F d = Format::scale(at.head, place);
      F m = zero();
      if constexpr (Format::kMin) m = Format::min(at.head, place);
      constexpr int kTurns = turns(kRows);
      LORALEI_UNROLL
      for (int r = 0; r < kRows; r += kTurns) {
        I sums_of[kTurns];
        LORALEI_UNROLL
        for (int i = 0; i < kTurns; ++i) sums_of[i] = dot_start<kRows>(x, r + i, Format::kZero);
        dot_words<Format, 0, 8>(sums_of, w, x, r);
        LORALEI_UNROLL
        for (int i = 0; i < kTurns; ++i) {
          F& total = acc[(r + i) * kVectors + v];
          total = fma(to_float(sums_of[i]), mul(d, row_float(x + group_d_at(kRows), r + i)), total);
          if constexpr (Format::kMin) total = fma(m, row_float(x + group_s_at(kRows), r + i), total);
        }
      }
    }
    step_block<Format>(at);
    x += group_block_bytes(kRows, Format::kHalves);
  }
  store_sums<kRows, kVectors>(acc, lane, sums);
}

// Block of 32 number 4 * half + kPart of a block of 256.
template <class Format, int kRows, int kVectors, int kPart>
LORALEI_INLINE void product_part(const TileSections& at, int lane, const std::byte* x, int half, const float* scales,
                                 const float* mins, F (&acc)[kRows * kVectors]) {
  constexpr int kBytes = block_bytes<Format>() / 8;
  const int sub = 4 * half + kPart;
  prefetch_lines<kBytes>(at.head + sub * kBytes + kBytesAhead);
  LORALEI_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    I w[8];
    part_words<Format, kPart>(at, lane + v * kLanes, half, w);
    const int number = v * kScalesOf256<Format> + sub * kScalesOf32<Format>;
    const float *const scale = scales + number * kLanes, *const min = mins + number * kLanes;
    constexpr int kTurns = turns(kRows);
    LORALEI_UNROLL
    for (int r = 0; r < kRows; r += kTurns) {
      I low[kTurns], high[kTurns];
      LORALEI_UNROLL
      for (int i = 0; i < kTurns; ++i) low[i] = dot_start<kRows>(x, r + i, Format::kZero);
      if constexpr (Format::kHalves) {
        LORALEI_UNROLL
        for (int i = 0; i < kTurns; ++i) high[i] = dot_start<kRows>(x, r + i, Format::kZero, 1);
        dot_words<Format, 0, 4>(low, w, x, r);
        dot_words<Format, 4, 4>(high, w, x, r);
      } else {
        dot_words<Format, 0, 8>(low, w, x, r);
      }
      LORALEI_UNROLL
      for (int i = 0; i < kTurns; ++i) {
        F& total = acc[(r + i) * kVectors + v];
        const F dx = row_float(x + group_d_at(kRows), r + i);
        total = fma(to_float(low[i]), mul(load(scale), dx), total);
        if constexpr (Format::kMin) total = fma(load(min), row_float(x + group_s_at(kRows), r + i), total);
        if constexpr (Format::kHalves) {
          total = fma(to_float(high[i]), mul(load(scale + kLanes), dx), total);
          if constexpr (Format::kMin) {
            total = fma(load(min + kLanes), row_float(x + group_s_at(kRows, 1), r + i), total);
          }
        }
      }
    }
  }
}

template <class Format, int kRows, int kVectors>
LORALEI_INLINE void product_256(TileSections at, int lane, const std::byte* x, int64_t blocks, float* sums) {
  constexpr int kStep = group_block_bytes(kRows, Format::kHalves);
  F acc[kRows * kVectors];
  LORALEI_UNROLL
  for (int i = 0; i < kRows * kVectors; ++i) acc[i] = zero();
  constexpr int kNumbers = kScalesOf256<Format> * kLanes;
  alignas(64) float scales[kVectors * kNumbers], mins[kVectors * kNumbers];
  for (int64_t b = 0; b < blocks; ++b) {
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      Format::scales(at, lane + v * kLanes, scales + v * kNumbers, mins + v * kNumbers);
    }
    for (int half = 0; half < 2; ++half, x += 4 * kStep) {
      product_part<Format, kRows, kVectors, 0>(at, lane, x, half, scales, mins, acc);
      product_part<Format, kRows, kVectors, 1>(at, lane, x + kStep, half, scales, mins, acc);
      product_part<Format, kRows, kVectors, 2>(at, lane, x + 2 * kStep, half, scales, mins, acc);
      product_part<Format, kRows, kVectors, 3>(at, lane, x + 3 * kStep, half, scales, mins, acc);
    }
    step_block<Format>(at);
  }
  store_sums<kRows, kVectors>(acc, lane, sums);
}

// All sixteen outputs. With few registers and several rows the two halves of the tile go
// through one after the other.
template <class Format, int kRows>
void product_tile_rows(const std::byte* tile, int64_t cols, const std::byte* x, float* sums) {
  constexpr int kAll = kRowTile / kLanes;
  constexpr int kVectors = kRows <= 2 ? kAll : 1;
  const int64_t blocks = cols / (Format::k256 ? 256 : 32);
  TileSections at = first_block<Format>(tile);
  for (int lane = 0; lane < kRowTile; lane += kVectors * kLanes) {
    if constexpr (Format::k256) {
      product_256<Format, kRows, kVectors>(at, lane, x, blocks, sums);
    } else {
      product_32<Format, kRows, kVectors>(at, lane, x, blocks, sums);
    }
  }
}

using TileKernel = void (*)(const std::byte* tile, int64_t cols, const std::byte* x, float* sums);
template <class Format>
TileKernel tile_kernel_of(int kind) {
  static_assert(kPackedRows == 8);
  constexpr TileKernel kKernels[] = {product_tile_rows<Format, 1>, product_tile_rows<Format, 2>,
                                     product_tile_rows<Format, 3>, product_tile_rows<Format, 4>,
                                     product_tile_rows<Format, 6>, product_tile_rows<Format, 8>};
  return kKernels[kind];
}
TileKernel tile_kernel(DType dtype, int kind) {
  switch (dtype) {
    case DType::kQ8_0:
      return tile_kernel_of<TileQ8_0>(kind);
    case DType::kQ4_0:
      return tile_kernel_of<TileQ4_0>(kind);
    case DType::kQ4_1:
      return tile_kernel_of<TileQ4_1>(kind);
    case DType::kInt4G:
      return tile_kernel_of<TileInt4G>(kind);
    case DType::kQ5_0:
      return tile_kernel_of<TileQ5_0>(kind);
    case DType::kQ5_1:
      return tile_kernel_of<TileQ5_1>(kind);
    case DType::kQ4_K:
      return tile_kernel_of<TileQ4_K>(kind);
    case DType::kQ5_K:
      return tile_kernel_of<TileQ5_K>(kind);
    case DType::kQ6_K:
      return tile_kernel_of<TileQ6_K>(kind);
    case DType::kQ2_K:
      return tile_kernel_of<TileQ2_K>(kind);
    case DType::kQ3_K:
      return tile_kernel_of<TileQ3_K>(kind);
    case DType::kIQ4_NL:
      return tile_kernel_of<TileIQ4_NL>(kind);
    case DType::kIQ4_XS:
      return tile_kernel_of<TileIQ4_XS>(kind);
    case DType::kMXFP4:
      return tile_kernel_of<TileMXFP4>(kind);
    default:
      return nullptr;
  }
}

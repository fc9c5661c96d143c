// SPDX-License-Identifier: Apache-2.0
// Vectors of 16 bytes, which the plainest machine has: what is looked at and moved here
// waits for memory more than for them.
#include "adapters/placing.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/target.h"

namespace loralei {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kBlockNumbers = 64;  // looked at without a branch between them

typedef uint16_t Words __attribute__((vector_size(16)));
typedef uint32_t Longs __attribute__((vector_size(16)));

template <typename Element>
struct Vectors;
template <>
struct Vectors<uint16_t> {
  using Type = Words;
  static LORALEI_INLINE Words low(Words x, Words y) { return __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11); }
  static LORALEI_INLINE Words high(Words x, Words y) {
    return __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
  }
};
template <>
struct Vectors<uint32_t> {
  using Type = Longs;
  static LORALEI_INLINE Longs low(Longs x, Longs y) { return __builtin_shufflevector(x, y, 0, 4, 1, 5); }
  static LORALEI_INLINE Longs high(Longs x, Longs y) { return __builtin_shufflevector(x, y, 2, 6, 3, 7); }
};

// A square of n by n numbers, a vector a row. Each pass interleaves row i with row
// i + n / 2; after log2(n) of them rows are columns.
template <typename Element>
LORALEI_INLINE void transpose_square(const std::byte* source, int64_t source_stride, std::byte* out,
                                     int64_t out_stride) {
  using V = Vectors<Element>;
  constexpr int kSize = 16 / sizeof(Element);
  typename V::Type rows[kSize], next[kSize];
  LORALEI_UNROLL
  for (int i = 0; i < kSize; ++i) std::memcpy(&rows[i], source + i * source_stride, 16);
  LORALEI_UNROLL
  for (int pass = 1; pass < kSize; pass *= 2) {
    LORALEI_UNROLL
    for (int i = 0; i < kSize / 2; ++i) {
      next[2 * i] = V::low(rows[i], rows[i + kSize / 2]);
      next[2 * i + 1] = V::high(rows[i], rows[i + kSize / 2]);
    }
    LORALEI_UNROLL
    for (int i = 0; i < kSize; ++i) rows[i] = next[i];
  }
  LORALEI_UNROLL
  for (int i = 0; i < kSize; ++i) std::memcpy(out + i * out_stride, &rows[i], 16);
}

template <typename Element>
void transpose_number(const std::byte* source, int64_t r, int64_t c, int64_t cols, std::byte* out, int64_t out_cols) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
  std::memcpy(out + (c * out_cols + r) * kBytes, source + (r * cols + c) * kBytes, sizeof(Element));
}

// source [rows, cols] -> out [cols, rows of out_cols numbers]. As many rows at a time as
// fill a line of the cache behind each other, so that every line is written as a whole.
template <typename Element>
void transpose(const std::byte* source, int64_t rows, int64_t cols, std::byte* out, int64_t out_cols) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
  constexpr int64_t kSize = 16 / kBytes, kRun = kLineBytes / kBytes;
  const int64_t squares = cols / kSize * kSize;
  int64_t r = 0;
  for (; r + kSize <= rows; r += std::min(kRun, (rows - r) / kSize * kSize)) {
    const int64_t end = r + std::min(kRun, (rows - r) / kSize * kSize);
    for (int64_t c = 0; c < squares; c += kSize) {
      for (int64_t at = r; at < end; at += kSize) {
        transpose_square<Element>(source + (at * cols + c) * kBytes, cols * kBytes, out + (c * out_cols + at) * kBytes,
                                  out_cols * kBytes);
      }
    }
    for (int64_t at = r; at < end; ++at)
      for (int64_t c = squares; c < cols; ++c) transpose_number<Element>(source, at, c, cols, out, out_cols);
  }
  for (; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) transpose_number<Element>(source, r, c, cols, out, out_cols);
}

// Of each row some columns, of rows one of several: transposed.
template <typename Element>
void place_picked(const Placement& placement, int64_t row, int64_t count, const std::byte* source, std::byte* place) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
  const int64_t cols = placement.cols, picked = cols / placement.col_step;
  for (int64_t r = std::max(row, placement.row_begin); r < row + count; ++r) {
    const int64_t number = (r - placement.row_begin) / placement.row_step;
    if (number >= placement.row_count) return;
    if (number * placement.row_step != r - placement.row_begin) continue;
    const std::byte* const from = source + ((r - row) * cols + placement.col_begin) * kBytes;
    for (int64_t c = 0; c < picked; ++c) {
      std::memcpy(place + (c * placement.row_count + number) * kBytes, from + c * placement.col_step * kBytes,
                  sizeof(Element));
    }
  }
}

template <typename Element>
void place_elements(const Placement& placement, int64_t row, int64_t count, const std::byte* source, std::byte* place) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
  if (placement.col_step != 1 || placement.row_step != 1)
    return place_picked<Element>(placement, row, count, source, place);
  const int64_t begin = std::max(row, placement.row_begin);
  const int64_t end = std::min(row + count, placement.row_begin + placement.row_count);
  if (begin >= end) return;
  const int64_t cols = placement.cols, first = begin - placement.row_begin;
  const std::byte* from = source + (begin - row) * cols * kBytes;
  if (placement.row_order.empty()) {
    if (placement.transpose)
      return transpose<Element>(from, end - begin, cols, place + first * kBytes, placement.row_count);
    std::memcpy(place + first * cols * kBytes, from, static_cast<size_t>((end - begin) * cols * kBytes));
    return;
  }
  for (int64_t r = first; r < first + end - begin; ++r, from += cols * kBytes) {
    const int64_t to = placement.row_order[static_cast<size_t>(r)];
    if (placement.transpose) {
      for (int64_t c = 0; c < cols; ++c)
        transpose_number<Element>(from, 0, c, cols, place + to * kBytes, placement.row_count);
    } else {
      std::memcpy(place + to * cols * kBytes, from, static_cast<size_t>(cols * kBytes));
    }
  }
}

// All bits of the exponent are set.
template <typename Element>
bool is_finite(Element bits, Element exponent) {
  return (bits & exponent) != exponent;
}

template <typename Element>
bool all_finite(const std::byte* bytes, Element exponent) {
  using Vector = typename Vectors<Element>::Type;
  constexpr int kVectors = kBlockNumbers * sizeof(Element) / 16;
  const Vector mask = Vector{} + exponent;
  Vector found = {};
  LORALEI_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    Vector bits;
    std::memcpy(&bits, bytes + 16 * i, 16);
    found |= reinterpret_cast<Vector>((bits & mask) == mask);
  }
  uint64_t halves[2];
  std::memcpy(halves, &found, 16);
  return (halves[0] | halves[1]) == 0;
}

template <typename Element>
int64_t find_not_finite(const std::byte* bytes, int64_t count, Element exponent) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
  int64_t i = 0;
  while (i + kBlockNumbers <= count && all_finite(bytes + i * kBytes, exponent)) i += kBlockNumbers;
  for (; i < count; ++i) {
    Element bits;
    std::memcpy(&bits, bytes + i * kBytes, sizeof bits);
    if (!is_finite(bits, exponent)) return i;
  }
  return -1;
}

}  // namespace

int64_t first_not_finite(DType dtype, const std::byte* bytes, int64_t count) {
  if (dtype == DType::kF32) return find_not_finite<uint32_t>(bytes, count, 0x7f800000u);
  return find_not_finite<uint16_t>(bytes, count, dtype == DType::kF16 ? 0x7c00 : 0x7f80);
}

void place_rows(const Placement& placement, DType dtype, int64_t row, int64_t count, const std::byte* source,
                std::byte* place) {
  if (dtype == DType::kF32) return place_elements<uint32_t>(placement, row, count, source, place);
  place_elements<uint16_t>(placement, row, count, source, place);
}

}  // namespace loralei

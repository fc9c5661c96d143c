// SPDX-License-Identifier: Apache-2.0
#include "adapters/placing.h"

#include <algorithm>
#include <cstring>

namespace loralei {
namespace {

template <typename Element>
void place_elements(const Placement& placement, int64_t row, int64_t count, const std::byte* source, std::byte* place) {
  const int64_t begin = std::max(row, placement.row_begin);
  const int64_t end = std::min(row + count, placement.row_begin + placement.row_count);
  Element* out = reinterpret_cast<Element*>(place);
  for (int64_t r = begin; r < end; ++r) {
    const std::byte* from = source + (r - row) * placement.cols * static_cast<int64_t>(sizeof(Element));
    int64_t to = r - placement.row_begin;
    if (!placement.row_order.empty()) to = placement.row_order[static_cast<size_t>(to)];
    if (!placement.transpose) {
      std::memcpy(out + to * placement.cols, from, static_cast<size_t>(placement.cols) * sizeof(Element));
      continue;
    }
    for (int64_t c = 0; c < placement.cols; ++c)
      std::memcpy(out + c * placement.row_count + to, from + c * static_cast<int64_t>(sizeof(Element)),
                  sizeof(Element));
  }
}

}  // namespace

int64_t first_not_finite(DType dtype, const std::byte* bytes, int64_t count) {
  const uint16_t mask = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == DType::kF32) {
      uint32_t bits;
      std::memcpy(&bits, bytes + 4 * i, 4);
      if ((bits & 0x7f800000u) == 0x7f800000u) return i;
    } else {
      uint16_t bits;
      std::memcpy(&bits, bytes + 2 * i, 2);
      if ((bits & mask) == mask) return i;
    }
  }
  return -1;
}

void place_rows(const Placement& placement, DType dtype, int64_t row, int64_t count, const std::byte* source,
                std::byte* place) {
  if (dtype == DType::kF32) return place_elements<uint32_t>(placement, row, count, source, place);
  place_elements<uint16_t>(placement, row, count, source, place);
}

}  // namespace loralei

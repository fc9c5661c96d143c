// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/step_shape.h"

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "base/check.h"
#include "base/fast_hash.h"
#include "model/cuda/cuda_products.h"

namespace loralei {
namespace {

// Classes end where rounding does: at kGemvRows, at its multiples up to 64, and (Gemm's)
// at powers of two.
static_assert(kFewRowsPlain == 8 && kFewRowsBf16 == 8 && kFewRowsTiles % 8 == 0 && kFewRowsTiles <= 64 &&
              kFewRowsF16 == 64);

int64_t multiple_of(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

int32_t within(int64_t rounded, int64_t own, int64_t limit) {
  CHECK(own <= limit);
  return static_cast<int32_t>(std::min(rounded, limit));
}

int64_t power_of_two(int64_t count) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))); }

}  // namespace

int32_t rounded_rows(int32_t rows, int32_t limit) {
  if (rows <= 8) return rounded_count(rows, limit);
  return within(multiple_of(rows, rows <= 64 ? 8 : 32), rows, limit);
}

int32_t rounded_count(int32_t count, int32_t limit) {
  return count == 0 ? 0 : within(power_of_two(count), count, limit);
}

int32_t rounded_positions(int32_t positions, int64_t limit) {
  return within(power_of_two(std::max(positions, 256)), positions, limit);  // fewer would be graphs for little
}

LoraSizes rounded_lora(const LoraSizes& sizes, const LoraSizes& limits) {
  if (sizes.entries == 0) return {};
  const int64_t pieces = power_of_two(std::max({sizes.segments, sizes.parts, sizes.runs}));
  return {.segments = within(pieces, sizes.segments, limits.segments),
          .parts = within(pieces, sizes.parts, limits.parts),
          .runs = within(pieces, sizes.runs, limits.runs),
          .entries = rounded_count(sizes.entries, limits.entries)};
}

uint64_t StepShape::hash() const {
  uint64_t hash = fast_hash(reinterpret_cast<const std::byte*>(ranks.data()), ranks.size() * sizeof(int32_t), 0);
  for (const int32_t number : {rows, logits_rows, int32_t{chooses}, hidden_rows, positions_max, slots, lora.segments,
                               lora.parts, lora.runs, lora.entries, head_lora.parts, head_lora.entries}) {
    hash = mix64(hash ^ static_cast<uint64_t>(number));
  }
  return mix64(hash ^ reinterpret_cast<uintptr_t>(kv.base));
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// Random shapes and values against one number at a time.
#include "adapters/placing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

bool is_bad(DType dtype, const std::byte* bytes, int64_t index) {
  uint32_t bits = 0;
  if (dtype == DType::kF32) {
    std::memcpy(&bits, bytes + 4 * index, 4);
    return (bits >> 23 & 255) == 255;
  }
  std::memcpy(&bits, bytes + 2 * index, 2);
  return dtype == DType::kF16 ? (bits >> 10 & 31) == 31 : (bits >> 7 & 255) == 255;
}

TEST(Placing, TheFirstNumberThatIsNotFiniteIsFound) {
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const DType dtype = std::array{DType::kF32, DType::kF16, DType::kBF16}[seed % 3];
    const int64_t width = dtype == DType::kF32 ? 4 : 2, count = static_cast<int64_t>(random.below(400));
    std::vector<std::byte> bytes(static_cast<size_t>(count * width));
    // Bits of every kind with few numbers, or with many where hardly any is not finite.
    const uint64_t high = random.below(2) == 0 ? 256 : 128;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(high) & (high == 128 ? 0x3f : 0xff));
    if (count > 0 && high == 128 && random.below(3) != 0) {
      const auto at = static_cast<size_t>(static_cast<int64_t>(random.below(static_cast<uint64_t>(count))) * width);
      std::fill_n(bytes.begin() + static_cast<int64_t>(at), width,
                  random.below(2) == 0 ? std::byte{0x7f} : std::byte{0xff});
    }
    int64_t expected = -1;
    for (int64_t i = count - 1; i >= 0; --i)
      if (is_bad(dtype, bytes.data(), i)) expected = i;
    EXPECT_EQ(first_not_finite(dtype, bytes.data(), count), expected);
  }
}

// All bit patterns of a half, at every place of a block.
TEST(Placing, InfinitiesAndNaNsOfAllBits) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> numbers(130, 0);
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const size_t at = bits % numbers.size();
      numbers[at] = static_cast<uint16_t>(bits);
      const auto* const bytes = reinterpret_cast<const std::byte*>(numbers.data());
      const bool bad = is_bad(dtype, bytes, static_cast<int64_t>(at));
      ASSERT_EQ(first_not_finite(dtype, bytes, std::ssize(numbers)), bad ? static_cast<int64_t>(at) : -1) << bits;
      numbers[at] = 0;
    }
  }
}

// Rows in pieces as they are read, of a run of them, in any order, transposed or not.
TEST(Placing, RowsComeWhereThePlacementSays) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const auto up_to = [&](uint64_t most) { return static_cast<int64_t>(random.below(most + 1)); };
    const DType dtype = seed % 2 == 0 ? DType::kF32 : DType::kBF16;
    const int64_t width = dtype == DType::kF32 ? 4 : 2;
    const int64_t rows = 1 + up_to(150), cols = 1 + up_to(random.below(3) == 0 ? 80 : 20);
    Placement placement{
        .row_begin = up_to(static_cast<uint64_t>(rows)), .cols = cols, .transpose = random.below(2) == 0};
    placement.row_count = up_to(static_cast<uint64_t>(rows - placement.row_begin));
    if (random.below(4) == 0) {
      placement.row_order.resize(static_cast<size_t>(placement.row_count));
      std::iota(placement.row_order.begin(), placement.row_order.end(), 0);
      for (size_t i = placement.row_order.size(); i > 1; --i)
        std::swap(placement.row_order[i - 1], placement.row_order[random.below(i)]);
    }
    std::vector<std::byte> source(static_cast<size_t>(rows * cols * width));
    for (std::byte& byte : source) byte = static_cast<std::byte>(random.below(256));
    std::vector<std::byte> expected(static_cast<size_t>(placement.row_count * cols * width)), placed = expected;
    for (int64_t i = 0; i < placement.row_count; ++i) {
      const int64_t to = placement.row_order.empty() ? i : placement.row_order[static_cast<size_t>(i)];
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t at = placement.transpose ? c * placement.row_count + to : to * cols + c;
        std::memcpy(expected.data() + at * width, source.data() + ((placement.row_begin + i) * cols + c) * width,
                    static_cast<size_t>(width));
      }
    }
    for (int64_t row = 0, count = 0; row < rows; row += count) {
      count = std::min(rows - row, 1 + up_to(60));
      place_rows(placement, dtype, row, count, source.data() + row * cols * width, placed.data());
    }
    EXPECT_EQ(placed, expected);
  }
}

// Of a stack of experts: every col_step-th column, every row_step-th row, transposed.
TEST(Placing, ColumnsAndRowsArePicked) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const int64_t experts = 1 + static_cast<int64_t>(random.below(5)), rank = 1 + static_cast<int64_t>(random.below(4));
    const int64_t step = 1 + static_cast<int64_t>(random.below(2)), out = 1 + static_cast<int64_t>(random.below(40));
    const int64_t rows = out * 2, cols = rank * experts;
    Placement placement{.row_count = out, .cols = cols, .transpose = true, .col_step = experts, .row_step = step};
    placement.row_begin = static_cast<int64_t>(random.below(2)) * (step == 2 ? 1 : out);
    placement.col_begin = static_cast<int64_t>(random.below(static_cast<uint64_t>(experts)));
    std::vector<float> source(static_cast<size_t>(rows * cols)), placed(static_cast<size_t>(out * rank), -1.0f);
    std::iota(source.begin(), source.end(), 0.0f);
    for (int64_t row = 0, count = 0; row < rows; row += count) {
      count = std::min(rows - row, 1 + static_cast<int64_t>(random.below(20)));
      place_rows(placement, DType::kF32, row, count, reinterpret_cast<const std::byte*>(source.data() + row * cols),
                 reinterpret_cast<std::byte*>(placed.data()));
    }
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t r = 0; r < rank; ++r) {
        const int64_t row = placement.row_begin + o * step, col = placement.col_begin + r * experts;
        ASSERT_EQ(placed[static_cast<size_t>(r * out + o)], static_cast<float>(row * cols + col));
      }
    }
  }
}

}  // namespace
}  // namespace loralei

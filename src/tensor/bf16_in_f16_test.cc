// SPDX-License-Identifier: Apache-2.0
#include "tensor/bf16_in_f16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/prng.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

bool is_bf16(uint16_t f16) { return (std::bit_cast<uint32_t>(f16_to_f32(f16)) & 0xFFFF) == 0; }

TEST(Bf16InF16, EveryNumberIsKnown) {
  int known = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto f16 = static_cast<uint16_t>(bits);
    if (std::isnan(f16_to_f32(f16))) continue;
    std::byte number[2];
    std::memcpy(number, &f16, 2);
    ASSERT_EQ(all_bf16(number, 1), is_bf16(f16)) << bits;
    if (!is_bf16(f16)) continue;
    ++known;
    f16_to_bf16_in_place(number, 1);
    uint16_t bf16 = 0;
    std::memcpy(&bf16, number, 2);
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16_to_f32(bf16)), std::bit_cast<uint32_t>(f16_to_f32(f16))) << bits;
  }
  EXPECT_GT(known, 7000);
}

TEST(Bf16InF16, NotANumberStaysOne) {
  for (uint32_t bits : {0x7C08u, 0x7E00u, 0xFE00u, 0xFFF8u}) {
    const auto f16 = static_cast<uint16_t>(bits);
    std::byte number[2];
    std::memcpy(number, &f16, 2);
    ASSERT_TRUE(all_bf16(number, 1));
    f16_to_bf16_in_place(number, 1);
    uint16_t bf16 = 0;
    std::memcpy(&bf16, number, 2);
    EXPECT_TRUE(std::isnan(bf16_to_f32(bf16))) << bits;
  }
}

// What a converter makes of a bf16 model: whatever the number, f16 keeps it or rounds it
// to another one of bf16.
TEST(Bf16InF16, EveryBf16NumberRoundedToF16IsOne) {
  std::vector<uint16_t> numbers;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) numbers.push_back(f32_to_f16(value));
  }
  EXPECT_TRUE(all_bf16(reinterpret_cast<const std::byte*>(numbers.data()), static_cast<int64_t>(numbers.size())));
}

TEST(Bf16InF16, OneOtherNumberAmongManyIsNoticedAndNeighboursStay) {
  Prng prng(5);
  for (int round = 0; round < 300; ++round) {
    const auto count = static_cast<int64_t>(1 + prng.below(300));
    std::vector<uint16_t> numbers(static_cast<size_t>(count) + 2);
    for (uint16_t& number : numbers) number = f32_to_f16(bf16_to_f32(static_cast<uint16_t>(0x3C00 + prng.below(256))));
    const std::vector<uint16_t> before = numbers;
    std::byte* const inner = reinterpret_cast<std::byte*>(numbers.data() + 1);
    ASSERT_TRUE(all_bf16(inner, count));
    const size_t at = 1 + prng.below(static_cast<uint64_t>(count));
    numbers[at] |= 1;
    EXPECT_FALSE(all_bf16(inner, count)) << count << " " << at;
    numbers[at] = before[at];
    f16_to_bf16_in_place(inner, count);
    EXPECT_EQ(numbers.front(), before.front());
    EXPECT_EQ(numbers.back(), before.back());
    for (size_t i = 1; i <= static_cast<size_t>(count); ++i) ASSERT_EQ(bf16_to_f32(numbers[i]), f16_to_f32(before[i]));
  }
}

}  // namespace
}  // namespace loralei

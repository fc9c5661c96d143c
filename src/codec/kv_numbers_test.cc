// SPDX-License-Identifier: Apache-2.0
// Grids, and the numbers of a block as integers and back, on every path.
#include "codec/kv_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "codec/codec_test_util.h"

namespace loralei {
namespace {

KvGrid one_channel_grid(DType dtype, float step, int32_t head_dim = 16) {
  const KvGridShape shape{.layers = 1, .kv_heads = 1, .head_dim = head_dim, .dtype = dtype};
  std::vector<float> steps(2 * static_cast<size_t>(head_dim), step);
  if (has_vector_scale(dtype)) steps.clear();
  auto grid = KvGrid::create(shape, steps);
  CHECK(grid.ok());
  return *grid;
}

TEST(KvGrid, RefusesShapesAndStepsWithASentence) {
  const KvGridShape good{.layers = 2, .kv_heads = 1, .head_dim = 4, .dtype = DType::kF16};
  const std::vector<float> steps(16, 0.5f);
  ASSERT_TRUE(KvGrid::create(good, steps).ok());
  const auto refused = [&](KvGridShape shape, std::vector<float> asked) {
    const auto grid = KvGrid::create(shape, asked);
    ASSERT_FALSE(grid.ok());
    EXPECT_GT(grid.error().message.size(), 40u);
  };
  refused(good, std::vector<float>(15, 0.5f));
  for (const float bad :
       {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e-38f, 1e38f}) {
    std::vector<float> asked = steps;
    asked[7] = bad;
    refused(good, asked);
  }
  KvGridShape shape = good;
  shape.dtype = DType::kQ8_0;
  refused(shape, steps);
  shape.dtype = DType::kI8;
  refused(shape, steps);
  ASSERT_TRUE(KvGrid::create(shape, {}).ok());
  for (int32_t KvGridShape::*field : {&KvGridShape::layers, &KvGridShape::kv_heads, &KvGridShape::head_dim}) {
    for (const int32_t bad : {0, -1, std::numeric_limits<int32_t>::max()}) {
      shape = good;
      shape.*field = bad;
      refused(shape, steps);
    }
  }
  refused({.layers = 1024, .kv_heads = 1024, .head_dim = 1024, .dtype = DType::kI8}, {});
}

TEST(KvGrid, ItsDigestIsOfShapeTypeAndEveryStep) {
  const KvGridShape shape{.layers = 2, .kv_heads = 2, .head_dim = 4, .dtype = DType::kF16};
  std::vector<float> steps(32, 0.5f);
  const uint64_t digest = KvGrid::create(shape, steps)->digest();
  EXPECT_EQ(KvGrid::create(shape, steps)->digest(), digest);
  for (float& step : steps) {
    step = 0.75f;
    EXPECT_NE(KvGrid::create(shape, steps)->digest(), digest);
    step = 0.5f;
  }
  KvGridShape other = shape;
  other.dtype = DType::kBF16;
  EXPECT_NE(KvGrid::create(other, steps)->digest(), digest);
  other = {.layers = 2, .kv_heads = 4, .head_dim = 2, .dtype = DType::kF16};
  EXPECT_NE(KvGrid::create(other, steps)->digest(), digest);
}

TEST(KvGrid, AStepHasEightBitsAndIsNearTheOneAskedFor) {
  Prng prng(3);
  for (int i = 0; i < 10000; ++i) {
    const auto step = static_cast<float>(std::exp2(prng.uniform() * 190 - 95));
    const float rounded = kv_rounded_step(step);
    EXPECT_LE(std::fabs(rounded - step), step * 0x1p-8f);
    EXPECT_EQ(kv_rounded_step(rounded), rounded);
    for (const float q : {32767.0f, 32765.0f, 12345.0f})
      EXPECT_EQ(static_cast<double>(q * rounded), static_cast<double>(q) * static_cast<double>(rounded));
  }
}

TEST(KvGrid, Fp8CodesAreInOrderAndNoneIsLost) {
  std::vector<bool> seen(256, false);
  for (int code = 0; code < 256; ++code) {
    const int16_t integer = kv_fp8_to_integer(static_cast<uint8_t>(code));
    ASSERT_GE(integer, -128);
    ASSERT_LE(integer, 127);
    EXPECT_FALSE(seen[static_cast<size_t>(integer + 128)]);
    seen[static_cast<size_t>(integer + 128)] = true;
    EXPECT_EQ(kv_integer_to_fp8(integer), code);
  }
  for (int integer = -125; integer <= 126; ++integer)
    EXPECT_LT(fp8_to_f32(kv_integer_to_fp8(static_cast<int16_t>(integer - 1))),
              fp8_to_f32(kv_integer_to_fp8(static_cast<int16_t>(integer))));
}

// The twin: one number at a time, in double where that is exact.
bool naive_integer(float x, float step, int16_t& out) {
  const float t = x * (1.0f / step);
  if (!std::isfinite(t)) return false;
  const float rounded = std::nearbyint(t);
  if (std::fabs(rounded) > 32767) return false;
  out = static_cast<int16_t>(rounded);
  return true;
}

float naive_number(DType dtype, int16_t integer, float step) {
  auto x = static_cast<float>(static_cast<double>(integer) * static_cast<double>(step));
  if (dtype == DType::kF16) x = std::fmin(std::fmax(x, -65504.0f), 65504.0f);
  std::byte bytes[4];
  encode_row(dtype, &x, bytes, 1);
  decode_row(dtype, bytes, &x, 1);
  return x;
}

TEST(KvNumbers, EveryPathReadsAndWritesWhatTheTwinDoes) {
  Prng seeds(11);
  for (int round = 0; round < 40; ++round) {
    const uint64_t seed = seeds();
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    const DType dtype = kCacheTypes[round % 5];
    const KvGridShape shape = random_shape(prng, dtype);
    const std::vector<float> scales = random_scales(prng, shape);
    const KvGrid grid = grid_of(shape, scales, static_cast<float>(std::exp2(prng.uniform() * 4 - 3)));
    const TestCache cache(shape, 2);
    fill_block(prng, shape, scales, cache, 1);
    for (const KvCodecPath& path : kv_codec_paths()) {
      SCOPED_TRACE(path.name);
      KvNumbers numbers(grid);
      ASSERT_TRUE(kv_read(grid, cache.view(), 1, shape.layers, numbers, path));
      const TestCache back(shape, 3);
      kv_write(grid, numbers, shape.layers, back.view(), 2, path);
      for_numbers(shape, [&](int32_t layer, int32_t v, int32_t head, int64_t i) {
        const int16_t integer = numbers.head(layer, v, head)[i];
        const std::byte code = *cache.place(1, layer, v, head, i);
        if (dtype == DType::kI8) {
          ASSERT_EQ(integer, static_cast<int8_t>(code));
        } else if (dtype == DType::kF8) {
          ASSERT_EQ(integer, kv_fp8_to_integer(std::to_integer<uint8_t>(code)));
        } else {
          const float step = grid.steps(layer, v)[channel_of(shape, v, head, i)];
          int16_t expected;
          ASSERT_TRUE(naive_integer(cache.get(1, layer, v, head, i), step, expected));
          ASSERT_EQ(integer, expected);
          ASSERT_EQ(back.get(2, layer, v, head, i), naive_number(dtype, integer, step));
        }
      });
      if (has_vector_scale(dtype)) {  // lossless, the scales too
        for (int32_t layer = 0; layer < shape.layers; ++layer)
          for (int32_t v = 0; v < 2; ++v)
            for (int32_t head = 0; head < shape.kv_heads; ++head)
              ASSERT_EQ(std::memcmp(cache.view().head(1, layer, v, head), back.view().head(2, layer, v, head),
                                    static_cast<size_t>(kv_head_bytes(dtype, shape.head_dim))),
                        0);
      }
      const TestCache untouched(shape, 3);  // the other blocks and the gaps
      EXPECT_EQ(std::memcmp(back.bytes().data(), untouched.bytes().data(),
                            static_cast<size_t>(2 * back.view().block_stride_bytes)),
                0);
    }
  }
}

// Every 16-bit number there is, and of f32 many bit patterns; steps from tiny to large.
TEST(KvNumbers, WhatIsEncodableIsWithinItsBoundAndHasTheSameIntegersAgain) {
  Prng prng(17);
  const std::vector<float> steps = {0x1p-30f, 0x1p-24f, 1e-4f,  0.01f, 0.123f, 0.5f,
                                    0.996f,   1.0f,     1.004f, 3.7f,  100.0f, 5000.0f};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const float step : steps) {
      const KvGrid grid = one_channel_grid(dtype, step);
      const float rounded = grid.steps(0, 0)[0];
      const TestCache cache(grid.shape()), back(grid.shape());
      KvNumbers numbers(grid), again(grid);
      for (uint32_t first = 0; first < 0x10000; first += 16) {
        const int32_t v = static_cast<int32_t>(first >> 4 & 1);
        for (uint32_t i = 0; i < 16; ++i) {
          uint32_t bits = first + i;
          if (dtype == DType::kF32) bits = static_cast<uint32_t>(prng());
          std::memcpy(cache.place(0, 0, v, 0, i), &bits, static_cast<size_t>(row_bytes(dtype, 1)));
        }
        for (int64_t i = 16; i < 256; ++i) cache.set(0, 0, v, 0, i, 0);
        for (int64_t i = 0; i < 256; ++i) cache.set(0, 0, 1 - v, 0, i, 0);
        bool expected = true;
        int16_t twin[16];
        for (int64_t i = 0; i < 16; ++i) expected &= naive_integer(cache.get(0, 0, v, 0, i), rounded, twin[i]);
        for (const KvCodecPath& path : kv_codec_paths())
          ASSERT_EQ(kv_read(grid, cache.view(), 0, 1, numbers, path), expected) << path.name << " " << first;
        if (!expected) {
          EXPECT_EQ(numbers.layers(), 0);
          continue;
        }
        kv_write(grid, numbers, back.view(), 0);
        for (int64_t i = 0; i < 16; ++i) {
          const float x = cache.get(0, 0, v, 0, i);
          ASSERT_EQ(numbers.head(0, v, 0)[i], twin[i]);
          ASSERT_LE(std::fabs(static_cast<double>(x) - static_cast<double>(back.get(0, 0, v, 0, i))),
                    kv_error_bound(dtype, rounded, x))
              << dtype_info(dtype).name << " x " << x << " step " << rounded;
        }
        ASSERT_TRUE(kv_read(grid, back.view(), 0, again));
        ASSERT_TRUE(same_numbers(numbers, again)) << dtype_info(dtype).name << " step " << rounded << " at " << first;
      }
    }
  }
}

TEST(KvNumbers, OneNumberWithoutAnIntegerLeavesTheBlockRaw) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const KvGridShape shape{.layers = 2, .kv_heads = 2, .head_dim = 24, .dtype = dtype};
    const KvGrid grid = grid_of(shape, std::vector<float>(192, 1.0f), 1.0f);
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 32768.0f, -40000.0f}) {
      const TestCache cache(shape, 1, 0);
      for (const int64_t at : {int64_t{0}, int64_t{17}, shape.head_numbers() - 1}) {
        cache.set(0, 1, 1, 1, at, bad);
        for (const KvCodecPath& path : kv_codec_paths()) {
          KvNumbers numbers(grid);
          EXPECT_FALSE(kv_read(grid, cache.view(), 0, 2, numbers, path)) << path.name << " " << bad;
          EXPECT_EQ(numbers.layers(), 0);
          EXPECT_TRUE(kv_read(grid, cache.view(), 0, 1, numbers, path));  // its layer is not asked for
          EXPECT_EQ(numbers.layers(), 1);
        }
        cache.set(0, 1, 1, 1, at, 0);
      }
    }
  }
}

TEST(KvNumbers, TheHashTellsEveryIntegerAndItsLayer) {
  const KvGridShape shape{.layers = 2, .kv_heads = 1, .head_dim = 16, .dtype = DType::kF16};
  const KvGrid grid = grid_of(shape, std::vector<float>(64, 1.0f), 1.0f);
  KvNumbers numbers(grid);
  numbers.set_layers(2);
  const uint64_t hash = kv_numbers_hash(numbers);
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int16_t& integer : numbers.layer(layer)) {
      ++integer;
      EXPECT_NE(kv_numbers_hash(numbers), hash);
      --integer;
    }
  }
  EXPECT_NE(kv_layer_hash(numbers, 0), kv_layer_hash(numbers, 1));
  numbers.set_layers(1);
  EXPECT_NE(kv_numbers_hash(numbers), hash);
}

}  // namespace
}  // namespace loralei

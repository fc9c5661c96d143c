// SPDX-License-Identifier: Apache-2.0
// Spreads of channels from blocks of a cache, and the steps made of them.
#include "codec/kv_spread.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/allocation_counter.h"
#include "codec/codec_test_util.h"

namespace loralei {
namespace {

constexpr KvGridShape kShape{.layers = 2, .kv_heads = 2, .head_dim = 20, .dtype = DType::kF16};

size_t rows_at(const KvGridShape& shape, int32_t layer, int32_t v) {
  return static_cast<size_t>(2 * layer + v) * static_cast<size_t>(shape.channels());
}
KvGridShape in(DType dtype) {
  KvGridShape shape = kShape;
  shape.dtype = dtype;
  return shape;
}
// Token of number `i` of a head.
int64_t token_of(const KvGridShape& shape, int32_t v, int64_t i) {
  return v == 0 ? i % kKvBlockTokens : i / shape.head_dim;
}
std::vector<float> spread_of(const KvGridShape& shape, const TestCache& cache, int32_t blocks) {
  KvSpread spread(shape);
  for (int32_t block = 0; block < blocks; ++block) spread.add(cache.view(), block);
  return spread.spread();
}

TEST(KvSpread, IsTheDeviationOfANormalChannelWhereverItsMeanLies) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const KvGridShape shape = in(dtype);
    Prng prng(1);
    const std::vector<float> scales = random_scales(prng, shape);
    const TestCache cache(shape, 40);
    double ratio = 0;
    for (int32_t block = 0; block < 40; ++block) {
      for_numbers(shape, [&](int32_t layer, int32_t v, int32_t head, int64_t i) {
        const size_t channel = channel_of(shape, v, head, i);
        const float scale = scales[rows_at(shape, layer, v) + channel];
        const float mean = channel % 3 == 0 ? 12 * scale : 0;
        cache.set(block, layer, v, head, i, mean + scale * normal(prng));
      });
    }
    const std::vector<float> spread = spread_of(shape, cache, 40);
    ASSERT_EQ(spread.size(), scales.size());
    for (size_t at = 0; at < spread.size(); ++at) {
      EXPECT_NEAR(spread[at] / scales[at], 1, 0.35) << dtype_info(dtype).name << " " << at;
      ratio += static_cast<double>(spread[at] / scales[at]) / static_cast<double>(spread.size());
    }
    EXPECT_NEAR(ratio, 1, 0.03) << dtype_info(dtype).name;
  }
}

TEST(KvSpread, FirstTokensWithHugeNumbersChangeNothing) {
  Prng prng(2);
  const std::vector<float> scales = random_scales(prng, kShape);
  const TestCache cache(kShape, 32), sinks(kShape, 32);
  for (int32_t block = 0; block < 32; ++block) {
    for_numbers(kShape, [&](int32_t layer, int32_t v, int32_t head, int64_t i) {
      const float x = scales[rows_at(kShape, layer, v) + channel_of(kShape, v, head, i)] * normal(prng);
      const bool sink = token_of(kShape, v, i) == 0 && i % 2 == 0;
      cache.set(block, layer, v, head, i, x);
      sinks.set(block, layer, v, head, i, sink ? 60000 : x);
    });
  }
  const std::vector<float> plain = spread_of(kShape, cache, 32), spoilt = spread_of(kShape, sinks, 32);
  for (size_t at = 0; at < plain.size(); ++at) EXPECT_NEAR(spoilt[at] / plain[at], 1, 0.4) << at;
}

TEST(KvSpread, NoChannelIsWithoutOne) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto fill = [](const TestCache& cache, float dead, float constant, float bad) {
    Prng prng(3);
    for (int32_t block = 0; block < 8; ++block) {
      for_numbers(kShape, [&](int32_t layer, int32_t v, int32_t head, int64_t i) {
        const size_t channel = channel_of(kShape, v, head, i);
        const float x = channel == 0 ? dead : channel == 1 ? constant : channel == 2 ? bad : normal(prng);
        cache.set(block, layer, v, head, i, layer == 1 ? 0 : x);
      });
    }
  };
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    const TestCache cache(kShape, 8);
    fill(cache, 0, 800, bad);
    const std::vector<float> spread = spread_of(kShape, cache, 8);
    for (const float one : spread) EXPECT_TRUE(one > 0 && std::isfinite(one));
    for (int32_t v = 0; v < 2; ++v) {
      const size_t row = rows_at(kShape, 0, v);
      EXPECT_NEAR(spread[row] * 64, 1, 0.3);
      EXPECT_FLOAT_EQ(spread[row + 1], 800.0f / 1024);
      EXPECT_NEAR(spread[row + 2] * 64, 1, 0.3);
      EXPECT_EQ(spread[rows_at(kShape, 1, v)], 0x1p-24f);
    }
    // The finest factor that is tried still gives a constant integers.
    const auto grid = kv_steps_from(kShape, spread, 1.0f / 16);
    ASSERT_TRUE(grid.ok());
    EXPECT_LE(800 / grid->steps(0, 0)[1], 32767);
  }
  const KvSpread none(kShape);
  for (const float one : none.spread()) EXPECT_EQ(one, 0x1p-24f);
}

TEST(KvSpread, TakesNoMemoryWithBlocksAndEveryTokenAlike) {
  const TestCache cache(kShape, 2);
  Prng prng(4);
  const std::vector<float> scales(random_scales(prng, kShape).size(), 1.0f);
  fill_block(prng, kShape, scales, cache, 0);
  // The second block's numbers are eight times as far apart, and most of what is seen.
  for_numbers(kShape, [&](int32_t layer, int32_t v, int32_t head, int64_t i) {
    cache.set(1, layer, v, head, i, 8 * normal(prng));
  });
  KvSpread spread(kShape);
  testing_support::start_counting_allocations();
  for (int i = 0; i < 8; ++i) spread.add(cache.view(), 0);
  for (int i = 0; i < 2000; ++i) spread.add(cache.view(), 1);
  spread.add(cache.view(), 0, 3);
  EXPECT_EQ(testing_support::stop_counting_allocations().count, 0);
  EXPECT_EQ(spread.tokens(), 2008 * kKvBlockTokens + 3);
  double mean = 0;
  const std::vector<float> found = spread.spread();
  for (const float one : found) mean += static_cast<double>(one) / static_cast<double>(found.size());
  EXPECT_NEAR(mean, 8, 1.5);
}

TEST(KvSpread, StepsAreFactorsTimesSpreads) {
  Prng prng(5);
  const std::vector<float> spread = random_scales(prng, kShape);
  const std::vector<float> factors = {0.25f, 0.5f, 1.0f, 0.0625f};
  const auto grid = kv_steps_from(kShape, spread, factors);
  ASSERT_TRUE(grid.ok());
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t v = 0; v < 2; ++v) {
      for (size_t c = 0; c < static_cast<size_t>(kShape.channels()); ++c) {
        const float asked = spread[rows_at(kShape, layer, v) + c] * factors[static_cast<size_t>(2 * layer + v)];
        EXPECT_EQ(grid->steps(layer, v)[c], kv_rounded_step(asked));
      }
    }
  }
  const auto safe = kv_steps_from(kShape, spread);
  ASSERT_TRUE(safe.ok());
  EXPECT_EQ(safe->steps(1, 1)[3], kv_rounded_step(0.25f * spread[rows_at(kShape, 1, 1) + 3]));
}

TEST(KvSpread, OfOtherSizesNoStepsAreMade) {
  const std::vector<float> spread(160, 1.0f);
  const auto refused = [&](const KvGridShape& shape, std::span<const float> spreads, std::span<const float> factors) {
    const auto grid = kv_steps_from(shape, spreads, factors);
    ASSERT_FALSE(grid.ok());
    EXPECT_GT(grid.error().message.size(), 40u);
  };
  const std::vector<float> factors(4, 1.0f);
  ASSERT_TRUE(kv_steps_from(kShape, spread, factors).ok());
  refused(kShape, spread, std::span(factors).first(3));
  refused(kShape, std::span(spread).first(159), factors);
  refused(kShape, {}, factors);
  refused(in(DType::kI8), spread, factors);
  refused(kShape, spread, std::vector<float>{1, 1, 1, 0});
  KvGridShape shape = kShape;
  shape.layers = -1;
  refused(shape, spread, factors);
  refused(shape, {}, {});
}

}  // namespace
}  // namespace loralei

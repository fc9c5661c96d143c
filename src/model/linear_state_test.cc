// SPDX-License-Identifier: Apache-2.0
#include "model/linear_state.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

ModelConfig hybrid() {
  ModelConfig config;
  config.layers = 4;
  config.linear = {.layers = {1, 0, 1, 1}, .k_heads = 2, .v_heads = 4, .key_dim = 8, .value_dim = 12, .kernel = 4};
  return config;
}

TEST(LinearState, PartsLieOneBehindTheOtherAtWholeLines) {
  const ModelConfig config = hybrid();
  constexpr int64_t kConv = 240, kDelta = 384;  // 3 rows of 80 channels, 4 heads of 8 by 12
  EXPECT_EQ(state_floats(config), 3 * (kConv + kDelta));
  const auto expect_at = [&](int layer, int64_t conv) {
    const LinearStateAt at = linear_state_at(config, layer);
    EXPECT_EQ(at.conv, conv) << layer;
    EXPECT_EQ(at.delta, conv + kConv) << layer;
  };
  expect_at(0, 0);
  expect_at(2, kConv + kDelta);  // layer 1 keeps none
  expect_at(3, 2 * (kConv + kDelta));
}

TEST(LinearState, OddSizesAreRoundedUp) {
  ModelConfig config = hybrid();
  config.linear.value_dim = 5;
  config.linear.kernel = 2;
  const LinearStateAt at = linear_state_at(config, 2);
  EXPECT_EQ(at.conv % 16, 0);
  EXPECT_EQ(at.delta % 16, 0);
  EXPECT_EQ(at.conv, 64 + 160);  // 52 channels, 160 numbers
  EXPECT_EQ(state_floats(config), 3 * (64 + 160));
}

TEST(LinearState, OthersKeepNone) {
  ModelConfig config;
  config.layers = 32;
  EXPECT_EQ(state_floats(config), 0);
}

}  // namespace
}  // namespace loralei

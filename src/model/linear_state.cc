// SPDX-License-Identifier: Apache-2.0
#include "model/linear_state.h"

#include "base/check.h"

namespace loralei {
namespace {

int64_t padded(int64_t floats) {
  constexpr int64_t kAlign = 16;  // 64 bytes
  return (floats + kAlign - 1) / kAlign * kAlign;
}

int64_t conv_floats(const LinearConfig& linear) { return padded(int64_t{linear.kernel - 1} * linear.channels()); }
int64_t delta_floats(const LinearConfig& linear) {
  return padded(int64_t{linear.v_heads} * linear.key_dim * linear.value_dim);
}

}  // namespace

int64_t state_floats(const ModelConfig& config) {
  return (config.layers - kv_layers(config)) * (conv_floats(config.linear) + delta_floats(config.linear));
}

LinearStateAt linear_state_at(const ModelConfig& config, int layer) {
  CHECK(is_linear(config, layer));
  int64_t before = 0;
  for (int other = 0; other < layer; ++other) before += is_linear(config, other) ? 1 : 0;
  const int64_t conv = before * (conv_floats(config.linear) + delta_floats(config.linear));
  return {conv, conv + conv_floats(config.linear)};
}

}  // namespace loralei

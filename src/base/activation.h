// SPDX-License-Identifier: Apache-2.0
// What gates are put through: those of an MLP by one of the first two, those of attention
// by the last.
#pragma once

#include <cstdint>

namespace loralei {

enum class Activation : uint8_t {
  kSilu,      // x / (1 + exp(-x))
  kGeluTanh,  // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  kSigmoid,   // 1 / (1 + exp(-x))
  kClamped,   // see GateClamp
};

// Of kClamped: what a gate g and an up u give together is
//
//   g' / (1 + exp(-alpha g')) * (u' + 1)    g' = min(g, limit), u' = u within +-limit
struct GateClamp {
  float alpha = 1.702f, limit = 7.0f;

  bool operator==(const GateClamp&) const = default;
};

}  // namespace loralei

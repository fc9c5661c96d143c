// SPDX-License-Identifier: Apache-2.0
// What an MLP puts its gate through.
#pragma once

#include <cstdint>

namespace loralei {

enum class Activation : uint8_t {
  kSilu,      // x / (1 + exp(-x))
  kGeluTanh,  // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
};

}  // namespace loralei

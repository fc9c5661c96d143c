// SPDX-License-Identifier: Apache-2.0
// RowChoice: how the token that a row of logits predicts is chosen where the logits are:
// what sampling/sampler.h does from temperature on, nothing before it. Plain value;
// kernels read it as it is.
#pragma once

#include <cstdint>

namespace loralei {

struct RowChoice {
  float temperature = 0;
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;
  uint64_t seed = 0;
  uint64_t position = 0;  // of the token to choose
  uint32_t choice = 0;
  int32_t vocab = 0;  // of the row; 0: nothing is chosen, the caller wants the logits
};

}  // namespace loralei

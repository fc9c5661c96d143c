// SPDX-License-Identifier: Apache-2.0
// Products of one input with several matrices in one launch: which matrix a thread block
// works for (cuda_ops.h, ProductTarget).
#pragma once

#include <cstdint>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dispatch.h"

namespace loralei::cuda {

// A matrix with its output, and the first of its thread blocks.
template <typename W>
struct Target {
  const W* w;
  const float* bias;
  float* y;
  int64_t y_stride;
  int out;
  int first_block;
};
template <typename W>
struct Targets {
  Target<W> at[kProductTargets];
  DEVICE const Target<W>& of(int block) const {
    int chosen = 0;
#pragma unroll
    for (int i = 1; i < kProductTargets; ++i) chosen += block >= at[i].first_block ? 1 : 0;
    return at[chosen];
  }
};

// Thread blocks of `outputs` outputs of one matrix each; `blocks` becomes their number.
template <typename W>
Targets<W> targets_of(const ProductTarget (&from)[kProductTargets], int32_t count, int32_t outputs, unsigned* blocks) {
  Targets<W> targets{};
  *blocks = 0;
  for (int32_t i = 0; i < kProductTargets; ++i) {
    const ProductTarget& target = from[i];
    if (i >= count) {
      targets.at[i].first_block = INT32_MAX;
      continue;
    }
    targets.at[i] = {static_cast<const W*>(target.w.data),
                     target.bias,
                     target.y,
                     target.y_stride,
                     target.w.rows,
                     static_cast<int>(*blocks)};
    *blocks += blocks_for(target.w.rows, outputs);
  }
  return targets;
}

}  // namespace loralei::cuda

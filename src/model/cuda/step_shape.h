// SPDX-License-Identifier: Apache-2.0
// StepShape: everything that decides a step's launches and the addresses in its tables.
// Steps of one shape differ in the contents of device buffers alone, so the launches
// recorded for one are those of another.
//
// A decode step's shape is its bucket: numbers rounded up, so that few shapes cover all
// steps. What was added is idle (token -1, table -1, no rows) and changes no bit of the
// step's own rows. Plain value; any thread.
// Invariant: rounding rows keeps the kernel class (cuda_products.h), and nothing is
// rounded beyond the limits that memory was sized for.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cuda/cuda_ops.h"

namespace loralei {

struct LoraSizes {
  int32_t segments = 0, parts = 0, runs = 0;
  int32_t entries = 0;  // (segment, row) pairs; 0: no LoRA
  friend bool operator==(const LoraSizes&, const LoraSizes&) = default;
};

struct StepShape {
  int32_t rows = 0;
  int32_t logits_rows = 0;
  bool chooses = false;       // tokens from (some of) the logits
  int32_t hidden_rows = 0;    // 0 in a bucket
  int32_t positions_max = 0;  // every position is below it
  int32_t slots = 0;
  LoraSizes lora, head_lora;   // of the rows, and of those that want logits
  std::vector<int32_t> ranks;  // [modules]: highest of the step; -1: nobody changes this module
  cuda::DeviceKv kv;

  friend bool operator==(const StepShape&, const StepShape&) = default;
  uint64_t hash() const;
};

// 1, 2, 4, 8, multiples of 8 up to 64, multiples of 32; at most `limit`, which
// is at least `rows`.
int32_t rounded_rows(int32_t rows, int32_t limit);
// The next power of two, at most `limit`, which is at least `count`; 0 stays 0.
int32_t rounded_count(int32_t count, int32_t limit);
// The next power of two, 256 at least, at most `limit`, which is at least `positions`.
int32_t rounded_positions(int32_t positions, int64_t limit);
// One number for segments, parts and runs, so that they do not multiply the buckets;
// each keeps its own limit.
LoraSizes rounded_lora(const LoraSizes& sizes, const LoraSizes& limits);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/scratch.h"

#include <algorithm>

#include "ops/cpu/lora/lora_plan.h"
#include "ops/cpu/tiles/activations.h"

namespace loralei {

int64_t cpu_scratch_bytes(const OpLimits& limits) {
  const AttentionSizes attention = attention_sizes(limits.heads, limits.kv_heads, limits.head_dim);
  const int64_t threads = limits.threads;
  const int64_t attention_shared = attention_plan_bytes(int64_t{limits.rows_max} + 1) +
                                   attention.slot_bytes * (attention_split_slots(limits.threads) + 1);
  return std::max({scratch_bytes(lane_input_bytes(std::min<int64_t>(limits.rows_max, kLanePartRows), limits.in_max),
                                 lane_worker_bytes(limits.in_max), threads),
                   scratch_bytes(activation_bytes(limits.rows_max, limits.in_max), tile_worker_bytes(), threads),
                   lora_shared_bytes(limits.rank_max) + lora_worker_bytes() * threads,
                   scratch_bytes(attention_shared, attention.worker_bytes, threads),
                   scratch_bytes(0, delta_worker_bytes(limits.key_dim, limits.value_dim), threads)});
}

int64_t rounded_scratch_bytes(const OpLimits& limits) {
  const int64_t rows = std::min<int64_t>(limits.rows_max, kRoundedPartRows);
  return std::max(cpu_scratch_bytes(limits),
                  scratch_bytes(rows * rounded_row_bytes(limits.in_max), rounded_worker_bytes(), limits.threads));
}

int64_t matrix_scratch_bytes(const OpLimits& limits) {
  const int64_t rows = std::min<int64_t>(limits.rows_max, kMatrixPartRows);
  return std::max(cpu_scratch_bytes(limits),
                  scratch_bytes(matrix_input_bytes(rows, limits.in_max), matrix_worker_bytes(rows, kMatrixWeightPieces),
                                limits.threads));
}

}  // namespace loralei

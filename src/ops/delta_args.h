// SPDX-License-Identifier: Apache-2.0
// What crosses the kernel boundary for gated linear attention: a causal convolution, the
// gated delta rule ("Gated Delta Networks", Yang, Kautz and Hatamizadeh 2024) and the
// gated norm behind it. Rooms above fill the structs; kernels read them.
//
// Thread, ownership, failure: as in args.h.
// Invariants: what a sequence was before a step is in its states, which are f32 and which
// the kernels bring up to date. A row's result depends on its sequence's state and on
// its earlier rows alone: the same bits come of one row a step, of chunks of any size,
// beside any other sequences and on any number of threads. No two groups of a call share
// a state. What is not finite in a row stays in its sequence's state.
#pragma once

#include <cstdint>
#include <span>

namespace loralei {

// One sequence's rows in this step, in order, and what is kept of the rows before them.
struct StateRows {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  float* state = nullptr;  // shape and meaning: see what takes it
};

// For each channel, over the sequence's rows t:
//
//   y[t] = silu(bias + sum over j of weight[j] * x[t - (kernel - 1) + j])
//
// The state is the last kernel - 1 rows of x, oldest first, zeros before a sequence
// begins.
struct CausalConvArgs {
  const float* x = nullptr;  // [rows, channels]
  int64_t x_stride = 0;
  float* y = nullptr;  // [rows, channels]; may be x
  int64_t y_stride = 0;
  const float* weight = nullptr;  // [channels, kernel], the oldest row's first
  const float* bias = nullptr;    // [channels] or null
  int32_t channels = 0;
  int32_t kernel = 0;                 // 2 to kConvKernelMax
  std::span<const StateRows> groups;  // state [kernel - 1, channels]
};
inline constexpr int kConvKernelMax = 8;

// For each value head, over the sequence's rows, with S [key_dim, value_dim]:
//
//   q     = q / sqrt(sum of q^2 + kUnitEps) / sqrt(key_dim)
//   k     = k / sqrt(sum of k^2 + kUnitEps)
//   decay = exp(-exp(a_log) * log(1 + exp(a + dt_bias)))
//   beta  = 1 / (1 + exp(-b))
//   delta = beta * (v - decay * S^T k)
//   S     = decay * S + k delta^T
//   out   = S^T q
//
// v_heads / k_heads value heads share a q and a k: those that stand one behind the other,
// or where heads are tiled every k_heads-th one. Sums over keys run in ascending order. A
// sequence begins with S = 0.
struct DeltaRuleArgs {
  const float* q = nullptr;  // [rows, k_heads * key_dim]
  const float* k = nullptr;  // [rows, k_heads * key_dim]
  const float* v = nullptr;  // [rows, v_heads * value_dim]
  int64_t stride = 0;        // of all three, which lie in one row of what the convolution gave
  const float* a = nullptr;  // [rows, v_heads]
  int64_t a_stride = 0;
  const float* b = nullptr;  // [rows, v_heads]
  int64_t b_stride = 0;
  const float* a_log = nullptr;    // [v_heads]
  const float* dt_bias = nullptr;  // [v_heads]
  float* out = nullptr;            // [rows, v_heads * value_dim]; may be v, with its stride
  int64_t out_stride = 0;
  int32_t k_heads = 0;
  int32_t v_heads = 0;  // a multiple of k_heads
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  bool tiled = false;
  std::span<const StateRows> groups;  // state [v_heads, key_dim, value_dim]

  int64_t key_head(int64_t value_head) const { return tiled ? value_head % k_heads : value_head / (v_heads / k_heads); }
};
inline constexpr float kUnitEps = 1e-6f;

// y = x / rms(x) * weight * silu(z), over `vectors` consecutive vectors of `dim` inside
// each row. The norm comes first. y may be x or z.
struct GatedNormArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* z = nullptr;
  int64_t z_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  const float* weight = nullptr;  // [dim]
  int32_t rows = 0;
  int32_t vectors = 1;
  int32_t dim = 0;
  float eps = 1e-6f;
};

}  // namespace loralei

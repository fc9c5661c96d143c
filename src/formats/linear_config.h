// SPDX-License-Identifier: Apache-2.0
// LinearConfig: what is said of layers of gated linear attention, a part of ModelConfig.
//
// Such a layer keeps a state of one size for each sequence where others keep K and V of
// every token. Its heads of keys are fewer than those of values, or as many; the queries
// of a key head are as long as its keys.
//
//   in_proj_qkv, in_proj_z, in_proj_b, in_proj_a   of the normed stream
//   [q | k | v] = silu(convolution over tokens)    ops/delta_args.h
//   delta rule                                     of all value heads
//   gated norm with z, out_proj                    added to the stream
//
// A plain value. Invariants after a successful read: `layers` is empty and nothing else
// counts, or has one entry a layer, one of them 1; every number above 0 and within the
// limits below; v_heads is a multiple of k_heads.
#pragma once

#include <cstdint>
#include <vector>

namespace loralei {

inline constexpr int kLinearHeadsMax = 1024;
inline constexpr int kLinearHeadDimMax = 1024;
inline constexpr int kLinearKernelMax = 8;
// Floats that a layer's state takes: bounds the sum over all layers before any is made.
inline constexpr int64_t kLinearStateMax = int64_t{1} << 28;

struct LinearConfig {
  std::vector<uint8_t> layers;  // [layers] 1: gated linear attention, 0: attention; empty: the model has none
  int k_heads = 0, v_heads = 0;
  int key_dim = 0, value_dim = 0;  // of a head
  int kernel = 0;                  // rows that the convolution sees
  // Value heads in the order of llama.cpp's files: head h uses key head h % k_heads, not
  // h / (v_heads / k_heads).
  bool tiled = false;
  // Files hold -exp(A_log), as llama.cpp's do, not A_log.
  bool negative_decay = false;

  int key_width() const { return k_heads * key_dim; }
  int value_width() const { return v_heads * value_dim; }
  int channels() const { return 2 * key_width() + value_width(); }  // of the convolution
};

}  // namespace loralei

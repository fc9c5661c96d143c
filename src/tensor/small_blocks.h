// SPDX-License-Identifier: Apache-2.0
// Blocks of the formats of two to four bits whose numbers are not evenly spaced or whose
// scales are packed tightly: q2_k, q3_k, iq4_nl, iq4_xs and mxfp4.
//
// Pure functions, any thread, no allocation. Any bytes decode to some floats.
// Sources: ggml-common.h (block_q2_K, block_q3_K, block_iq4_nl, block_iq4_xs,
// block_mxfp4, kvalues_*) and the OCP Microscaling specification (e2m1, e8m0).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace loralei {

// What a nibble of iq4_nl and iq4_xs means, and of mxfp4: there twice an e2m1 number, so
// that all are whole; the block's scale is halved.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Half of the power of two that an e8m0 byte stands for: 2^(byte - 128), from 2^-128 to
// 2^127. ggml reads no byte as NaN.
constexpr float mxfp4_scale(uint8_t byte) {
  return std::bit_cast<float>(byte < 2 ? 0x00200000u << byte : (byte - 1u) << 23);
}
// The sixteen scales of a q3_k block, -32 to 31, lie packed in twelve bytes.
int q3_k_scale(const std::byte* packed, int j);
// The eight of an iq4_xs block, -32 to 31: low four bits in four bytes, high two in 16.
int iq4_xs_scale(const std::byte* block, int j);

void decode_q2_k(const std::byte* block, float* out);
void decode_q3_k(const std::byte* block, float* out);
void decode_iq4_nl(const std::byte* block, float* out);
void decode_iq4_xs(const std::byte* block, float* out);
void decode_mxfp4(const std::byte* block, float* out);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "tensor/bf16_in_f16.h"

#include <cstring>

#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr int kBlockNumbers = 64;  // taken together, without a branch between them
using Block = int16_t[kBlockNumbers];
constexpr int16_t kSize = 0x7FFF;  // all but the sign
constexpr int16_t kLeastNormal = 0x400, kInfinity = 0x7C00;
// To the exponent of bf16 (bias 127) from that of f16 (bias 15), where bf16 has it.
constexpr int16_t kBias = (127 - 15) << 7, kInfinityBias = (255 - 31) << 7;

// The bits of a number that bf16 does not have: the last three of a normal one; the
// smaller a subnormal one, the fewer. Compared as signed numbers of 16 bits, eight of
// which the plainest x86-64 compares at once.
int16_t lost_bits(int16_t number) {
  const auto size = static_cast<int16_t>(number & kSize);
  const auto third = static_cast<int16_t>(size >= kLeastNormal ? 4 : 0);
  const auto second = static_cast<int16_t>(size >= kLeastNormal / 2 ? 2 : 0);
  const auto first = static_cast<int16_t>(size >= kLeastNormal / 4 ? 1 : 0);
  return static_cast<int16_t>(number & (third | second | first));
}

int16_t normal_to_bf16(int16_t number) {
  const auto size = static_cast<int16_t>(number & kSize);
  const int16_t bias = size >= kInfinity ? kInfinityBias : kBias;
  return static_cast<int16_t>((number & ~kSize) | ((size >> 3) + bias));
}
int16_t subnormal_to_bf16(int16_t number) {
  return static_cast<int16_t>(f32_to_bf16(f16_to_f32(static_cast<uint16_t>(number))));
}

bool is_bf16(const Block& block) {
  int16_t lost = 0;
  for (int16_t number : block) lost = static_cast<int16_t>(lost | lost_bits(number));
  return lost == 0;
}

void to_bf16(Block& block) {
  Block f16;
  std::memcpy(f16, block, sizeof(Block));
  int16_t subnormal = 0;
  for (int i = 0; i < kBlockNumbers; ++i) block[i] = normal_to_bf16(f16[i]);
  for (int i = 0; i < kBlockNumbers; ++i)
    subnormal = static_cast<int16_t>(subnormal | ((f16[i] & kSize) < kLeastNormal ? 1 : 0));
  if (subnormal == 0) return;
  for (int i = 0; i < kBlockNumbers; ++i)
    if ((f16[i] & kSize) < kLeastNormal) block[i] = subnormal_to_bf16(f16[i]);
}

}  // namespace

bool all_bf16(const std::byte* f16, int64_t count) {
  Block block = {};
  for (; count >= kBlockNumbers; count -= kBlockNumbers, f16 += sizeof(Block)) {
    std::memcpy(block, f16, sizeof(Block));
    if (!is_bf16(block)) return false;
  }
  std::memcpy(block, f16, static_cast<size_t>(2 * count));
  return is_bf16(block);  // behind the last number: zeros, or what was found to be bf16
}

void f16_to_bf16_in_place(std::byte* numbers, int64_t count) {
  Block block = {};
  for (; count >= kBlockNumbers; count -= kBlockNumbers, numbers += sizeof(Block)) {
    std::memcpy(block, numbers, sizeof(Block));
    to_bf16(block);
    std::memcpy(numbers, block, sizeof(Block));
  }
  std::memcpy(block, numbers, static_cast<size_t>(2 * count));
  to_bf16(block);
  std::memcpy(numbers, block, static_cast<size_t>(2 * count));
}

}  // namespace loralei

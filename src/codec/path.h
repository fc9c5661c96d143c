// SPDX-License-Identifier: Apache-2.0
// KvCodecPath: the loops of this room for one instruction set. All paths give the same
// bits; the first is the plain reference, the last is the one that is used.
//
// A group is the integers of one head of K or V in the order of storage: `count` of them,
// a multiple of 16. The integers of all groups share kRansLanes coders: integer i of a
// group belongs to coder i % kRansLanes. A step is kRansLanes integers, the last of a
// group 16 where its count is odd in that unit. In the stream stand, in 16-bit words, for
// each step in turn:
//
//   refills   the words that its coders take after their integers, by coder
//   escapes   the integers of escapes, by coder
//   planes    for each raw bit, lowest first: a bit for each integer, in words of 16
//
// A coder (rANS, Duda 2013; interleaved as Giesen 2014): x in [2^15, 2^31);
//
//   decode    s = symbol of slot x % 4096
//             x = frequency(s) * (x / 4096) + slot - start(s)
//             below 2^15 it is refilled: x = x * 65536 + word
//   encode    backwards: the last integer first, each step undone
//
// Every coder is at 2^15 behind the last integer, so what follows is known.
//
// Thread: pure functions but for the state that is passed. No allocation.
// Failure: decode_group says false where the stream ends too early; it reads at most
// kRansOverread bytes past `end`, which must be there, and nothing else. encode_group
// says false where there is no room.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/rans_tables.h"
#include "tensor/dtype.h"

namespace loralei {

inline constexpr int kRansLanes = 32;
inline constexpr int kRansOverread = 2 * kRansLanes;
inline constexpr uint32_t kRansLow = 1u << 15;

struct RansReader {
  const std::byte* at = nullptr;  // the next word
  const std::byte* end = nullptr;
  std::array<uint32_t, kRansLanes> x{};
};

// Writes backwards from `at` to `floor`.
struct RansWriter {
  std::byte* at = nullptr;
  std::byte* floor = nullptr;
  std::array<uint32_t, kRansLanes> x{};
};

// A head of a cache's slice, and the steps of its channels (null for int8 and fp8).
struct KvHeadForm {
  DType dtype = DType::kF16;
  bool is_v = false;
  int32_t head_dim = 0;
  const float* steps = nullptr;      // [head_dim]
  const float* inv_steps = nullptr;  // [head_dim]
};

struct KvCodecPath {
  const char* name = "";
  // Integers of a head [head_dim, 16] or, of V, [16, head_dim]; false where one of its
  // numbers has none (`out` then holds no more than bytes).
  bool (*read_head)(const KvHeadForm& form, const std::byte* head, int16_t* out) = nullptr;
  void (*write_head)(const KvHeadForm& form, const int16_t* integers, std::byte* head) = nullptr;
  // Sums and differences modulo 2^16.
  void (*subtract)(const int16_t* a, const int16_t* b, int64_t count, int16_t* out) = nullptr;
  void (*add)(const int16_t* b, int64_t count, int16_t* in_out) = nullptr;
  // The choice that takes the fewest bits, counted exactly.
  uint8_t (*choose)(const int16_t* integers, int64_t count) = nullptr;
  bool (*encode_group)(RansWriter& writer, uint8_t choice, const int16_t* integers, int64_t count) = nullptr;
  bool (*decode_group)(RansReader& reader, uint8_t choice, int64_t count, int16_t* out) = nullptr;
};

// Of this machine.
std::span<const KvCodecPath> kv_codec_paths();
const KvCodecPath& kv_codec_path();  // the best

// What path.cc makes the list of.
KvCodecPath kv_codec_path_plain();
KvCodecPath kv_codec_path_avx2();    // x86-64 alone
KvCodecPath kv_codec_path_avx512();  // x86-64 alone

}  // namespace loralei

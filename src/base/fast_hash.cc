// SPDX-License-Identifier: Apache-2.0
#include "base/fast_hash.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace loralei {
namespace {

// Bytes come in stripes of eight words. Word i of stripe n gives lane i the product of
// the halves of (word ^ key), and its neighbour the word itself, which a product with
// a zero would lose. The key of a stripe is its number's, so that stripes that changed
// places are noticed.
constexpr size_t kLanes = 8;
constexpr size_t kStripe = kLanes * sizeof(uint64_t);
constexpr uint64_t kKeys[kLanes] = {0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 0xd6e8feb86659fd93,
                                    0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53, 0x2545f4914f6cdd1d, 0xda942042e4dd58b5};
constexpr uint64_t kKeyStep = 0xa0761d6478bd642f;

struct State {
  uint64_t lanes[kLanes], keys[kLanes];
};

void add_stripes(State& state, const std::byte* data, size_t stripes) {
  for (size_t n = 0; n < stripes; ++n, data += kStripe) {
    uint64_t words[kLanes];
    std::memcpy(words, data, kStripe);
    for (size_t i = 0; i < kLanes; ++i) {
      const uint64_t keyed = words[i] ^ state.keys[i];
      state.lanes[i] += (keyed & 0xffffffff) * (keyed >> 32) + words[i ^ 1];
      state.keys[i] += kKeyStep;
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void add_stripes_avx2(State& state, const std::byte* data, size_t stripes) {
  __m256i lanes[2], keys[2];
  for (int v = 0; v < 2; ++v) {
    lanes[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(state.lanes) + v);
    keys[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(state.keys) + v);
  }
  const __m256i step = _mm256_set1_epi64x(static_cast<int64_t>(kKeyStep));
  for (size_t n = 0; n < stripes; ++n, data += kStripe) {
    for (int v = 0; v < 2; ++v) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data) + v);
      const __m256i keyed = _mm256_xor_si256(words, keys[v]);
      const __m256i product = _mm256_mul_epu32(keyed, _mm256_shuffle_epi32(keyed, _MM_SHUFFLE(3, 3, 1, 1)));
      const __m256i neighbours = _mm256_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
      lanes[v] = _mm256_add_epi64(lanes[v], _mm256_add_epi64(product, neighbours));
      keys[v] = _mm256_add_epi64(keys[v], step);
    }
  }
  for (int v = 0; v < 2; ++v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(state.lanes) + v, lanes[v]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(state.keys) + v, keys[v]);
  }
}
#elif defined(__aarch64__)
void add_stripes_neon(State& state, const std::byte* data, size_t stripes) {
  constexpr int kVectors = kLanes / 2;
  uint64x2_t lanes[kVectors], keys[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    lanes[v] = vld1q_u64(state.lanes + 2 * v);
    keys[v] = vld1q_u64(state.keys + 2 * v);
  }
  for (size_t n = 0; n < stripes; ++n, data += kStripe) {
    for (int v = 0; v < kVectors; ++v) {
      const uint64x2_t words = vreinterpretq_u64_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(data) + 16 * v));
      const uint64x2_t keyed = veorq_u64(words, keys[v]);
      lanes[v] = vmlal_u32(lanes[v], vmovn_u64(keyed), vshrn_n_u64(keyed, 32));
      lanes[v] = vaddq_u64(lanes[v], vextq_u64(words, words, 1));
      keys[v] = vaddq_u64(keys[v], vdupq_n_u64(kKeyStep));
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    vst1q_u64(state.lanes + 2 * v, lanes[v]);
    vst1q_u64(state.keys + 2 * v, keys[v]);
  }
}
#endif

using AddStripes = void (*)(State&, const std::byte*, size_t);
AddStripes fastest() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") ? add_stripes_avx2 : add_stripes;
#elif defined(__aarch64__)
  return add_stripes_neon;
#else
  return add_stripes;
#endif
}

uint64_t hash_by(AddStripes add, const std::byte* data, size_t size, uint64_t seed) {
  State state;
  const uint64_t mixed = mix64(seed + 1);  // mix64 keeps zero
  for (size_t i = 0; i < kLanes; ++i) {
    state.lanes[i] = kKeys[i] + mixed;
    state.keys[i] = kKeys[i] ^ mixed;
  }
  const size_t stripes = size / kStripe;
  add(state, data, stripes);
  if (const size_t left = size % kStripe; left > 0) {
    std::byte last[kStripe] = {};
    std::memcpy(last, data + stripes * kStripe, left);
    add_stripes(state, last, 1);
  }
  uint64_t hash = size;
  for (const uint64_t lane : state.lanes) hash = mix64(hash ^ lane) + kKeyStep;
  return mix64(hash);
}

}  // namespace

uint64_t mix64(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 29;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 32);
}

uint64_t fast_hash(const std::byte* data, size_t size, uint64_t seed) {
  static const AddStripes add = fastest();
  return hash_by(add, data, size, seed);
}

uint64_t fast_hash_plain(const std::byte* data, size_t size, uint64_t seed) {
  return hash_by(add_stripes, data, size, seed);
}

}  // namespace loralei

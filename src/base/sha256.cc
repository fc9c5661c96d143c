// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace loralei {

namespace {

void plain_blocks(std::array<uint32_t, 8>& state, const uint8_t* bytes, size_t count) {
  for (; count > 0; --count, bytes += 64) {
    std::array<uint32_t, 64> w;
    for (size_t i = 0; i < 16; ++i) {
      w[i] = uint32_t{bytes[4 * i]} << 24 | uint32_t{bytes[4 * i + 1]} << 16 | uint32_t{bytes[4 * i + 2]} << 8 |
             bytes[4 * i + 3];
    }
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kSha256Rounds[i] + w[i];
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + t1;
      d = c;
      c = b;
      b = a;
      a = t1 + t2;
    }
    const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state[i] += add[i];
  }
}

#if defined(__x86_64__)
bool find_sha_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_SSE4_1) == 0) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 29)) != 0;
}

// Asked for once: a virtual machine takes microseconds to answer.
bool has_sha_instructions() {
  static const bool has = find_sha_instructions();
  return has;
}

#define LORALEI_SHA_INLINE __attribute__((target("sha,sse4.1"), always_inline)) inline

// One stream in registers. The instructions keep the state as the pairs (a, b, e, f) and
// (c, d, g, h) and do two rounds each (Intel SDM, SHA256RNDS2).
struct ShaLane {
  __m128i abef, cdgh, abef_before, cdgh_before, w[4];
  const uint8_t* bytes;

  LORALEI_SHA_INLINE void load(const std::array<uint32_t, 8>& state, const uint8_t* data) {
    const __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data()));
    const __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data() + 4));
    const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
    abef = _mm_alignr_epi8(cdab, efgh, 8);
    cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
    bytes = data;
  }
  LORALEI_SHA_INLINE void store(std::array<uint32_t, 8>& state) const {
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data()), _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data() + 4), _mm_alignr_epi8(dchg, feba, 8));
  }
  LORALEI_SHA_INLINE void begin_block() {
    abef_before = abef;
    cdgh_before = cdgh;
  }
  LORALEI_SHA_INLINE void end_block() {
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
    bytes += 64;
  }
  template <int kFour>
  LORALEI_SHA_INLINE void four_rounds() {
    __m128i& now = w[kFour % 4];
    if constexpr (kFour < 4) {
      const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
      now = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 16 * kFour)), swap);
    } else {
      const __m128i last = w[(kFour + 3) % 4];
      const __m128i shifted =
          _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(kFour + 1) % 4]), _mm_alignr_epi8(last, w[(kFour + 2) % 4], 4));
      now = _mm_sha256msg2_epu32(shifted, last);
    }
    const __m128i sums =
        _mm_add_epi32(now, _mm_loadu_si128(reinterpret_cast<const __m128i*>(kSha256Rounds.data() + 4 * kFour)));
    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sums);
    abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sums, 0x0e));
  }
};

// One lane after the other in each of the sixteen times four rounds: what one waits for
// is where the other computes.
template <int kFour, typename... Lanes>
LORALEI_SHA_INLINE void all_rounds(Lanes&... lanes) {
  (lanes.template four_rounds<kFour>(), ...);
  if constexpr (kFour < 15) all_rounds<kFour + 1>(lanes...);
}

__attribute__((target("sha,sse4.1"))) void sha_blocks(std::array<uint32_t, 8>& state, const uint8_t* bytes,
                                                      size_t count) {
  ShaLane lane;
  lane.load(state, bytes);
  for (; count > 0; --count) {
    lane.begin_block();
    all_rounds<0>(lane);
    lane.end_block();
  }
  lane.store(state);
}

// Of two streams at once.
__attribute__((target("sha,sse4.1"))) void sha_blocks_of_two(std::array<uint32_t, 8>& x_state, const uint8_t* x_bytes,
                                                             std::array<uint32_t, 8>& y_state, const uint8_t* y_bytes,
                                                             size_t count) {
  ShaLane x, y;
  x.load(x_state, x_bytes);
  y.load(y_state, y_bytes);
  for (; count > 0; --count) {
    x.begin_block();
    y.begin_block();
    all_rounds<0>(x, y);
    x.end_block();
    y.end_block();
  }
  x.store(x_state);
  y.store(y_state);
}
#endif

}  // namespace

Sha256::Sha256(bool plain) : blocks_(plain_blocks) {
#if defined(__x86_64__)
  if (plain || !has_sha_instructions()) return;
  blocks_ = sha_blocks;
  two_ = sha_blocks_of_two;
#endif
}

// The block that is not whole, as far as there are bytes for it; answers the others.
std::span<const std::byte> Sha256::fill(std::span<const std::byte> bytes) {
  const auto filled = static_cast<size_t>(total_bytes_ % 64);
  if (filled == 0 || bytes.empty()) return bytes;
  const size_t take = std::min(bytes.size(), 64 - filled);
  std::memcpy(pending_.data() + filled, bytes.data(), take);
  total_bytes_ += take;
  if (filled + take == 64) blocks_(state_, pending_.data(), 1);
  return bytes.subspan(take);
}

void Sha256::update(std::span<const std::byte> bytes) {
  bytes = fill(bytes);
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t whole = bytes.size() / 64, left = bytes.size() % 64;
  blocks_(state_, data, whole);
  if (left > 0) std::memcpy(pending_.data(), data + whole * 64, left);
  total_bytes_ += bytes.size();
}

void Sha256::update_two(Sha256& x, std::span<const std::byte> x_bytes, Sha256& y, std::span<const std::byte> y_bytes) {
  x_bytes = x.fill(x_bytes);
  y_bytes = y.fill(y_bytes);
  const size_t whole = std::min(x_bytes.size(), y_bytes.size()) / 64;
  if (whole > 0 && x.two_ != nullptr && x.two_ == y.two_) {
    x.two_(x.state_, reinterpret_cast<const uint8_t*>(x_bytes.data()), y.state_,
           reinterpret_cast<const uint8_t*>(y_bytes.data()), whole);
    for (Sha256* sha : {&x, &y}) sha->total_bytes_ += whole * 64;
    x_bytes = x_bytes.subspan(whole * 64);
    y_bytes = y_bytes.subspan(whole * 64);
  }
  x.update(x_bytes);
  y.update(y_bytes);
}

Digest Sha256::finish() {
  const uint64_t bits = total_bytes_ * 8;
  std::array<std::byte, 72> tail{};
  tail[0] = std::byte{0x80};
  const size_t filled = static_cast<size_t>(total_bytes_ % 64);
  const size_t zeros = (filled < 56 ? 56 : 120) - filled;  // 0x80 and the zeros up to the length field
  for (size_t i = 0; i < 8; ++i) tail[zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(std::span(tail).first(zeros + 8));
  std::array<uint8_t, 32> digest;
  for (size_t i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

}  // namespace loralei

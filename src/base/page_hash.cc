// SPDX-License-Identifier: Apache-2.0
#include "base/page_hash.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if !defined(__clang__)
// GCC 12's own AVX-512 header fills "undefined" results from an uninitialised variable
// and then warns about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#endif

namespace loralei {
namespace {

std::span<const std::byte> page_at(const std::byte* page) { return {page, kHashPageBytes}; }

void pages_one_by_one(std::span<const std::byte* const> pages, std::span<Digest> digests) {
  for (size_t i = 0; i < pages.size(); ++i) {
    Sha256 sha(true);
    sha.update(page_at(pages[i]));
    digests[i] = sha.finish();
  }
}

void pages_two_by_two(std::span<const std::byte* const> pages, std::span<Digest> digests) {
  for (size_t i = 0; i < pages.size(); i += 2) {
    Sha256 x, y;
    const bool two = i + 1 < pages.size();
    Sha256::update_two(x, page_at(pages[i]), y, two ? page_at(pages[i + 1]) : std::span<const std::byte>());
    digests[i] = x.finish();
    if (two) digests[i + 1] = y.finish();
  }
}

#if defined(__x86_64__)

constexpr size_t kLanes = 16;

#if defined(__clang__)
#define LORALEI_UNROLL_ALL _Pragma("clang loop unroll(full)")
#else
#define LORALEI_UNROLL_ALL _Pragma("GCC unroll 16")
#endif
#define LORALEI_SIXTEEN __attribute__((target("avx512f,avx512bw"), always_inline)) inline

// Sixteen texts, word by word: lane i of every vector is the i-th text's.
struct Sixteen {
  __m512i state[8];
  __m512i w[16];  // of the schedule, the last sixteen

  // Words of 64 bytes of every text.
  LORALEI_SIXTEEN void read(const std::byte* const* pages, size_t offset) {
    const __m512i swap = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll));
    LORALEI_UNROLL_ALL
    for (size_t i = 0; i < kLanes; ++i) w[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(pages[i] + offset), swap);
    transpose(w);
  }

  // A square of words: pairs of rows, pairs of those, and the quarters of the vectors.
  static LORALEI_SIXTEEN void transpose(__m512i (&rows)[16]) {
    __m512i pairs[16], fours[16];
    LORALEI_UNROLL_ALL
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    LORALEI_UNROLL_ALL
    for (int i = 0; i < 16; i += 4) {
      fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
      fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
      fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
      fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    LORALEI_UNROLL_ALL
    for (int i = 0; i < 4; ++i) {
      const __m512i even_low = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x88);
      const __m512i even_high = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0x88);
      const __m512i odd_low = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xdd);
      const __m512i odd_high = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0xdd);
      rows[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
      rows[i + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
      rows[i + 8] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
      rows[i + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
  }

  template <int kFirst, int kSecond, int kThird>
  static LORALEI_SIXTEEN __m512i rotated(__m512i x) {
    return _mm512_ternarylogic_epi32(_mm512_ror_epi32(x, kFirst), _mm512_ror_epi32(x, kSecond),
                                     _mm512_ror_epi32(x, kThird), 0x96);
  }
  template <int kFirst, int kSecond, int kShift>
  static LORALEI_SIXTEEN __m512i shifted(__m512i x) {
    return _mm512_ternarylogic_epi32(_mm512_ror_epi32(x, kFirst), _mm512_ror_epi32(x, kSecond),
                                     _mm512_srli_epi32(x, kShift), 0x96);
  }
  static LORALEI_SIXTEEN __m512i add(__m512i x, __m512i y) { return _mm512_add_epi32(x, y); }

  // FIPS 180-4, section 6.2.2. The names of the working variables go around instead of
  // their values.
  template <int kRound>
  LORALEI_SIXTEEN void rounds(__m512i (&v)[8]) {
    __m512i& now = w[kRound % 16];
    if constexpr (kRound >= 16) {
      now = add(add(now, shifted<7, 18, 3>(w[(kRound + 1) % 16])),
                add(w[(kRound + 9) % 16], shifted<17, 19, 10>(w[(kRound + 14) % 16])));
    }
    constexpr int kAt = (64 - kRound) % 8;
    const __m512i a = v[kAt], b = v[(kAt + 1) % 8], c = v[(kAt + 2) % 8], e = v[(kAt + 4) % 8], f = v[(kAt + 5) % 8],
                  g = v[(kAt + 6) % 8];
    __m512i &d = v[(kAt + 3) % 8], &h = v[(kAt + 7) % 8];
    const __m512i choice = _mm512_ternarylogic_epi32(e, f, g, 0xca),
                  majority = _mm512_ternarylogic_epi32(a, b, c, 0xe8);
    const __m512i constant = _mm512_set1_epi32(static_cast<int>(kSha256Rounds[kRound]));
    const __m512i t1 = add(add(add(h, now), add(constant, choice)), rotated<6, 11, 25>(e));
    d = add(d, t1);
    h = add(add(t1, majority), rotated<2, 13, 22>(a));
    if constexpr (kRound < 63) rounds<kRound + 1>(v);
  }
  LORALEI_SIXTEEN void take_block() {
    __m512i v[8];
    LORALEI_UNROLL_ALL
    for (int i = 0; i < 8; ++i) v[i] = state[i];
    rounds<0>(v);
    LORALEI_UNROLL_ALL
    for (int i = 0; i < 8; ++i) state[i] = add(state[i], v[i]);
  }
};

__attribute__((target("avx512f,avx512bw"))) void hash_sixteen(const std::byte* const* pages, Digest* digests) {
  Sixteen lanes;
  LORALEI_UNROLL_ALL
  for (size_t i = 0; i < 8; ++i) lanes.state[i] = _mm512_set1_epi32(static_cast<int>(kSha256Begin[i]));
  for (size_t offset = 0; offset < kHashPageBytes; offset += 64) {
    lanes.read(pages, offset);
    lanes.take_block();
  }
  LORALEI_UNROLL_ALL
  for (int i = 0; i < 16; ++i) lanes.w[i] = _mm512_setzero_si512();
  lanes.w[0] = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  lanes.w[15] = _mm512_set1_epi32(static_cast<int>(kHashPageBytes * 8));
  lanes.take_block();
  LORALEI_UNROLL_ALL
  for (size_t word = 0; word < 8; ++word) {
    alignas(64) std::array<uint32_t, kLanes> values;
    _mm512_store_si512(values.data(), lanes.state[word]);
    LORALEI_UNROLL_ALL
    for (size_t i = 0; i < kLanes; ++i)
      for (size_t byte = 0; byte < 4; ++byte)
        digests[i][4 * word + byte] = static_cast<uint8_t>(values[i] >> (24 - 8 * byte));
  }
}

// What is left is padded with pages that are there, where that is no slower than two by
// two.
void pages_by_sixteen(std::span<const std::byte* const> pages, std::span<Digest> digests) {
  size_t i = 0;
  for (; i + kLanes <= pages.size(); i += kLanes) hash_sixteen(&pages[i], &digests[i]);
  const size_t left = pages.size() - i;
  if (left <= kLanes / 2) return pages_two_by_two(pages.subspan(i), digests.subspan(i));
  std::array<const std::byte*, kLanes> padded;
  std::array<Digest, kLanes> made;
  std::fill(std::copy_n(&pages[i], left, padded.begin()), padded.end(), pages[i]);
  hash_sixteen(padded.data(), made.data());
  std::copy_n(made.begin(), left, &digests[i]);
}
#endif

std::vector<PageHashWay> find_ways() {
  std::vector<PageHashWay> ways;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
    ways.push_back({"sixteen by sixteen", pages_by_sixteen});
#endif
  ways.push_back({"two by two", pages_two_by_two});
  ways.push_back({"one by one, plain", pages_one_by_one});
  return ways;
}

}  // namespace

std::span<const PageHashWay> page_hash_ways() {
  static const std::vector<PageHashWay> ways = find_ways();
  return ways;
}

// Whole pages of several texts, in the order of each.
struct PageHash::Batch {
  static constexpr size_t kMost = 64;
  const PageHashWay& way;
  std::array<const std::byte*, kMost> pages;
  std::array<PageHash*, kMost> of;
  size_t count = 0;

  explicit Batch(const PageHashWay& chosen) : way(chosen) {}
  void add(PageHash& hash, const std::byte* page) {
    pages[count] = page;
    of[count] = &hash;
    if (++count == kMost) flush();
  }
  void flush() {
    std::array<Digest, kMost> digests;
    way.pages(std::span(pages).first(count), std::span(digests).first(count));
    for (size_t i = 0; i < count; ++i) of[i]->pages_.update(std::as_bytes(std::span(digests[i])));
    count = 0;
  }
};

void PageHash::take(std::span<const std::byte> bytes, Batch& batch) {
  const auto fill = [&](size_t most) {
    const size_t count = std::min(bytes.size(), most);
    page_.update(bytes.first(count));
    page_filled_ += count;
    bytes = bytes.subspan(count);
  };
  if (page_filled_ > 0) fill(kHashPageBytes - page_filled_);
  if (page_filled_ == kHashPageBytes) {
    const Digest digest = page_.finish();
    pages_.update(std::as_bytes(std::span(digest)));
    page_ = Sha256();
    page_filled_ = 0;
  }
  for (; bytes.size() >= kHashPageBytes; bytes = bytes.subspan(kHashPageBytes)) batch.add(*this, bytes.data());
  if (!bytes.empty()) fill(bytes.size());
}

void PageHash::update(std::span<const std::byte> bytes) {
  const Piece piece{this, bytes};
  update_all({&piece, 1});
}

void PageHash::update_all(std::span<const Piece> pieces, const PageHashWay& way) {
  Batch batch(way);
  for (const Piece& piece : pieces) piece.hash->take(piece.bytes, batch);
  batch.flush();
}

Digest PageHash::finish() {
  if (page_filled_ > 0) {
    const Digest digest = page_.finish();
    pages_.update(std::as_bytes(std::span(digest)));
  }
  return pages_.finish();
}

}  // namespace loralei

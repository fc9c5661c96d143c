// SPDX-License-Identifier: Apache-2.0
#include "tensor/shrink.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <vector>

#if defined(__x86_64__)
#if !defined(__clang__)
// GCC 12's own AVX-512 header fills "undefined" results from an uninitialised variable
// and then warns about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

#include "base/check.h"

namespace loralei {
namespace {

constexpr int64_t kGroup = 64;  // numbers whose codes fill a word of each plane
constexpr int kCodePlanes = 3;
constexpr int kExtraPlanes = 3;  // f16: bits 8 to 10 of a turned number
constexpr uint8_t kEscape = 7;

int64_t groups_of(int64_t count) { return (count + kGroup - 1) / kGroup; }
int planes_of(DType dtype) { return dtype == DType::kF16 ? kCodePlanes + kExtraPlanes : kCodePlanes; }

uint16_t turned_at(const std::byte* numbers, int64_t i) {
  uint16_t bits;
  std::memcpy(&bits, numbers + 2 * i, sizeof bits);
  return std::rotl(bits, 1);
}
uint64_t word_at(const std::byte* words, int64_t i) {
  uint64_t word;
  std::memcpy(&word, words + 8 * i, sizeof word);
  return word;
}

// A stored tile on its way through a decoder.
struct Cursor {
  const std::byte* low;
  const std::byte* planes;
  const std::byte* escapes;
  int64_t escapes_left;
};
// False where the tile is too small for its numbers.
bool open_tile(DType dtype, std::span<const std::byte> stored, int64_t count, Cursor& at) {
  const int64_t groups = groups_of(count);
  at.low = stored.data();
  at.planes = at.low + kGroup * groups;
  at.escapes = at.planes + 8 * planes_of(dtype) * groups;
  at.escapes_left = static_cast<int64_t>(stored.size()) - shrunk_bytes(dtype, count, 0);
  return can_shrink(dtype) && at.escapes_left >= 0;
}

// Each decoder decodes one group to 128 bytes, or answers false where the escapes do not
// reach; the cursor moves on.
template <int kPlanes>
struct Reference {
  static bool group(const ShrinkCode& code, Cursor& at, std::byte* out) {
    for (int i = 0; i < kGroup; ++i) {
      const auto bit = [&](int plane) { return static_cast<uint32_t>(word_at(at.planes, plane) >> i & 1); };
      const uint32_t number = bit(0) | bit(1) << 1 | bit(2) << 2;
      uint32_t high;
      if (number == kEscape) {
        if (at.escapes_left-- == 0) return false;
        high = std::to_integer<uint32_t>(*at.escapes++);
      } else {
        high = code.symbols[number];
      }
      for (int plane = kCodePlanes; plane < kPlanes; ++plane) high |= bit(plane) << (plane - kCodePlanes);
      const auto turned = static_cast<uint16_t>(high << 8 | std::to_integer<uint32_t>(at.low[i]));
      const uint16_t bits = std::rotr(turned, 1);
      std::memcpy(out + 2 * i, &bits, sizeof bits);
    }
    at.low += kGroup;
    at.planes += 8 * kPlanes;
    return true;
  }
};

#if defined(__x86_64__)
#define LORALEI_AVX2 __attribute__((target("avx2")))
#define LORALEI_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,bmi2,popcnt")))

template <int kPlanes>
struct Avx2 {
  // Byte i: `value` where bit i of the mask is set.
  LORALEI_AVX2 static __m256i bytes_of(uint32_t mask, uint8_t value) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(mask)), spread), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(bits, bit), _mm256_set1_epi8(static_cast<char>(value)));
  }
  LORALEI_AVX2 static __m256i turned_back(__m256i x) {
    return _mm256_or_si256(_mm256_srli_epi16(x, 1), _mm256_slli_epi16(x, 15));
  }
  LORALEI_AVX2 static bool group(const ShrinkCode& code, Cursor& at, std::byte* out) {
    uint64_t planes[kPlanes];
    std::memcpy(planes, at.planes, sizeof planes);
    uint64_t escaped = planes[0] & planes[1] & planes[2];
    const int64_t escapes = std::popcount(escaped);
    if (escapes > at.escapes_left) return false;
    uint64_t symbols = 0;  // of code 7: zero
    std::memcpy(&symbols, code.symbols.data(), kShrinkSymbols);
    const __m256i table = _mm256_set1_epi64x(static_cast<int64_t>(symbols));
    for (int half = 0; half < 2; ++half) {
      const auto mask = [&](int plane) { return static_cast<uint32_t>(planes[plane] >> (32 * half)); };
      const uint32_t m0 = mask(0), m1 = mask(1), m2 = mask(2);
      const __m256i number = _mm256_or_si256(_mm256_or_si256(bytes_of(m0, 1), bytes_of(m1, 2)), bytes_of(m2, 4));
      __m256i high = _mm256_shuffle_epi8(table, number);
      if constexpr (kPlanes > kCodePlanes) {
        for (int plane = kCodePlanes; plane < kPlanes; ++plane)
          high = _mm256_or_si256(high, bytes_of(mask(plane), static_cast<uint8_t>(1 << (plane - kCodePlanes))));
      }
      __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at.low + 32 * half));
      low = _mm256_permute4x64_epi64(low, 0xD8);
      high = _mm256_permute4x64_epi64(high, 0xD8);
      auto* const dest = reinterpret_cast<__m256i*>(out + 64 * half);
      _mm256_storeu_si256(dest, turned_back(_mm256_unpacklo_epi8(low, high)));
      _mm256_storeu_si256(dest + 1, turned_back(_mm256_unpackhi_epi8(low, high)));
    }
    for (; escaped != 0; escaped &= escaped - 1) {
      std::byte* const place = out + 2 * std::countr_zero(escaped);
      uint16_t bits;
      std::memcpy(&bits, place, sizeof bits);
      bits = static_cast<uint16_t>(bits | std::to_integer<uint32_t>(*at.escapes++) << 7);
      std::memcpy(place, &bits, sizeof bits);
    }
    at.escapes_left -= escapes;
    at.low += kGroup;
    at.planes += 8 * kPlanes;
    return true;
  }
};

template <int kPlanes>
struct Avx512 {
  LORALEI_AVX512 static __m512i set(uint64_t mask, int value) {
    return _mm512_maskz_mov_epi8(mask, _mm512_set1_epi8(static_cast<char>(value)));
  }
  LORALEI_AVX512 static bool group(const ShrinkCode& code, Cursor& at, std::byte* out) {
    uint64_t planes[kPlanes];
    std::memcpy(planes, at.planes, sizeof planes);
    const uint64_t escaped = planes[0] & planes[1] & planes[2];
    const int64_t escapes = std::popcount(escaped);
    if (escapes > at.escapes_left) return false;
    uint64_t symbols = 0;  // of code 7: zero
    std::memcpy(&symbols, code.symbols.data(), kShrinkSymbols);
    const __m512i table = _mm512_set1_epi64(static_cast<int64_t>(symbols));
    const __m512i number = _mm512_or_si512(_mm512_or_si512(set(planes[0], 1), set(planes[1], 2)), set(planes[2], 4));
    const __m512i found = _mm512_maskz_loadu_epi8(_bzhi_u64(~uint64_t{0}, static_cast<unsigned>(escapes)), at.escapes);
    __m512i high = _mm512_or_si512(_mm512_shuffle_epi8(table, number), _mm512_maskz_expand_epi8(escaped, found));
    if constexpr (kPlanes > kCodePlanes) {
      for (int plane = kCodePlanes; plane < kPlanes; ++plane)
        high = _mm512_or_si512(high, set(planes[plane], 1 << (plane - kCodePlanes)));
    }
    // Interleaving works on quarters of the register: put the eighths where it
    // leaves them in order.
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i low = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(at.low));
    high = _mm512_permutexvar_epi64(order, high);
    const __m512i first = _mm512_unpacklo_epi8(low, high), second = _mm512_unpackhi_epi8(low, high);
    _mm512_storeu_si512(out, _mm512_shldi_epi16(first, first, 15));
    _mm512_storeu_si512(out + 64, _mm512_shldi_epi16(second, second, 15));
    at.escapes += escapes;
    at.escapes_left -= escapes;
    at.low += kGroup;
    at.planes += 8 * kPlanes;
    return true;
  }
};
#endif

// The loop around a decoder; an instruction set's own, so that its group() is inlined.
#define LORALEI_UNSHRINK(name, target, Group)                                                                        \
  template <int kPlanes>                                                                                             \
  target bool name##_groups(const ShrinkCode& code, Cursor at, int64_t count, std::byte* out) {                      \
    for (; count >= kGroup; count -= kGroup, out += 2 * kGroup) {                                                    \
      if (!Group<kPlanes>::group(code, at, out)) return false;                                                       \
    }                                                                                                                \
    if (count == 0) return true;                                                                                     \
    std::byte last[2 * kGroup];                                                                                      \
    if (!Group<kPlanes>::group(code, at, last)) return false;                                                        \
    std::memcpy(out, last, static_cast<size_t>(2 * count));                                                          \
    return true;                                                                                                     \
  }                                                                                                                  \
  bool name(DType dtype, const ShrinkCode& code, std::span<const std::byte> stored, int64_t count, std::byte* out) { \
    Cursor at;                                                                                                       \
    if (!open_tile(dtype, stored, count, at)) return false;                                                          \
    return dtype == DType::kF16 ? name##_groups<kCodePlanes + kExtraPlanes>(code, at, count, out)                    \
                                : name##_groups<kCodePlanes>(code, at, count, out);                                  \
  }

LORALEI_UNSHRINK(unshrink_reference, , Reference)
#if defined(__x86_64__)
LORALEI_UNSHRINK(unshrink_avx2, LORALEI_AVX2, Avx2)
LORALEI_UNSHRINK(unshrink_avx512, LORALEI_AVX512, Avx512)
#endif

std::vector<UnshrinkPath> paths_here() {
  std::vector<UnshrinkPath> paths = {{"reference", unshrink_reference}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) paths.push_back({"avx2", unshrink_avx2});
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("bmi2"))
    paths.push_back({"avx512", unshrink_avx512});
#endif
  return paths;
}

}  // namespace

bool can_shrink(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }
uint8_t shrink_symbol_mask(DType dtype) { return dtype == DType::kF16 ? 0xF8 : 0xFF; }

int64_t shrunk_bytes(DType dtype, int64_t count, int64_t escapes) {
  return groups_of(count) * (kGroup + 8 * planes_of(dtype)) + escapes;
}

void count_symbols(DType dtype, const std::byte* numbers, int64_t count, SymbolCounts& counts) {
  const uint8_t mask = shrink_symbol_mask(dtype);
  for (int64_t i = 0; i < count; ++i) ++counts[turned_at(numbers, i) >> 8 & mask];
}

ShrinkFit fit_shrink(std::span<const SymbolCounts> tiles) {
  std::array<int64_t, 256> sums{};
  for (const SymbolCounts& tile : tiles) {
    for (size_t symbol = 0; symbol < sums.size(); ++symbol) sums[symbol] += tile[symbol];
  }
  std::array<uint8_t, 256> order;
  std::iota(order.begin(), order.end(), uint8_t{0});
  std::stable_sort(order.begin(), order.end(), [&](uint8_t a, uint8_t b) { return sums[a] > sums[b]; });
  ShrinkFit fit;
  // A symbol that does not occur has no bits to spare for one that may not be (f16).
  for (size_t i = 0; i < kShrinkSymbols; ++i) fit.code.symbols[i] = sums[order[i]] > 0 ? order[i] : uint8_t{0};
  for (const SymbolCounts& tile : tiles) {
    int64_t escapes = 0;
    for (size_t i = kShrinkSymbols; i < order.size(); ++i) escapes += tile[order[i]];
    fit.escapes_max = std::max(fit.escapes_max, escapes);
  }
  return fit;
}

bool shrink(DType dtype, const ShrinkCode& code, const std::byte* numbers, int64_t count, std::span<std::byte> out) {
  CHECK(can_shrink(dtype));
  const int64_t groups = groups_of(count);
  const int planes = planes_of(dtype);
  int64_t left = static_cast<int64_t>(out.size()) - shrunk_bytes(dtype, count, 0);
  if (left < 0) return false;
  const uint8_t mask = shrink_symbol_mask(dtype);
  std::array<uint8_t, 256> code_of;
  code_of.fill(kEscape);
  for (uint8_t i = kShrinkSymbols; i-- > 0;) code_of[code.symbols[i]] = i;
  std::fill(out.begin(), out.end(), std::byte{0});
  std::byte* low = out.data();
  std::byte* words = low + kGroup * groups;
  std::byte* escapes = words + 8 * planes * groups;
  for (int64_t begin = 0; begin < count; begin += kGroup) {
    const int64_t end = std::min(count, begin + kGroup);
    uint64_t bits[kCodePlanes + kExtraPlanes] = {};
    for (int64_t i = begin; i < end; ++i) {
      const uint16_t turned = turned_at(numbers, i);
      const auto symbol = static_cast<uint8_t>(turned >> 8 & mask);
      const uint8_t number = code_of[symbol];
      if (number == kEscape) {
        if (left-- == 0) return false;
        *escapes++ = std::byte{symbol};
      }
      low[i] = static_cast<std::byte>(turned & 0xFF);
      const uint32_t code_and_rest = number | (turned >> 8 & 7u) << kCodePlanes;
      for (int plane = 0; plane < planes; ++plane) bits[plane] |= uint64_t{code_and_rest >> plane & 1} << (i - begin);
    }
    std::memcpy(words, bits, static_cast<size_t>(8 * planes));
    words += 8 * planes;
  }
  return true;
}

std::span<const UnshrinkPath> unshrink_paths() {
  static const std::vector<UnshrinkPath> paths = paths_here();
  return paths;
}

bool unshrink(DType dtype, const ShrinkCode& code, std::span<const std::byte> stored, int64_t count, std::byte* out) {
  static const auto best = unshrink_paths().back().unshrink;
  return best(dtype, code, stored, count, out);
}

}  // namespace loralei

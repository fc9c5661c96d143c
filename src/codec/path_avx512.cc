// SPDX-License-Identifier: Apache-2.0
#include "codec/path.h"

#if defined(__x86_64__)

#if !defined(__clang__)
// GCC 12's own AVX-512 header fills "undefined" results from an uninitialised variable
// and then warns about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <bit>
#include <cstring>

#include "codec/numbers_plain.h"
#include "codec/rans_step.h"
#include "codec/target.h"

LORALEI_CODEC_BEGIN_AVX512
namespace loralei {
namespace {
namespace avx512 {

inline __m256i load256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void store256(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }

// --- numbers

template <DType kType>
inline __m512 load_floats(const std::byte* from) {
  if constexpr (kType == DType::kF32) return _mm512_loadu_ps(from);
  if constexpr (kType == DType::kF16) return _mm512_cvtph_ps(load256(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(from)), 16));
}

template <DType kType, bool kOne>
inline bool read16(const std::byte* source, const float* inv_steps, int16_t* out) {
  const __m512 inv = kOne ? _mm512_set1_ps(*inv_steps) : _mm512_loadu_ps(inv_steps);
  const __m512 t = _mm512_mul_ps(load_floats<kType>(source), inv);
  const __mmask16 good = _mm512_cmp_ps_mask(_mm512_abs_ps(t), _mm512_set1_ps(kKvIntegerLimit), _CMP_LT_OQ);
  const __m512i integers = _mm512_cvt_roundps_epi32(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  store256(out, _mm512_cvtepi32_epi16(integers));
  return good == 0xFFFF;
}

template <DType kType, bool kOne>
inline void write16(const int16_t* in, const float* steps, std::byte* out) {
  const __m512 step = kOne ? _mm512_set1_ps(*steps) : _mm512_loadu_ps(steps);
  __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(load256(in))), step);
  if constexpr (kType == DType::kF32) {
    _mm512_storeu_ps(out, x);
  } else if constexpr (kType == DType::kF16) {
    x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(kKvHalfMax)), _mm512_set1_ps(-kKvHalfMax));
    store256(out, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  } else {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    store256(out, _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
  }
}

#include "codec/choose.inl.h"
#include "codec/numbers.inl.h"

// --- raw bits

inline bool decode_planes(RansReader& reader, int bits, __m512i& low) {
  low = _mm512_setzero_si512();
  if (reader.at > reader.end) return false;
  for (int bit = 0; bit < bits; ++bit) {
    uint32_t plane;
    std::memcpy(&plane, reader.at, sizeof plane);
    reader.at += sizeof plane;
    low = _mm512_or_si512(low, _mm512_maskz_set1_epi16(plane, static_cast<int16_t>(1 << bit)));
  }
  return true;
}

inline void encode_planes(RansWriter& writer, int bits, const int16_t* integers) {
  const __m512i all = _mm512_loadu_si512(integers);
  for (int bit = bits; bit-- > 0;) {
    const uint32_t plane = _mm512_test_epi16_mask(all, _mm512_set1_epi16(static_cast<int16_t>(1 << bit)));
    writer.at -= sizeof plane;
    std::memcpy(writer.at, &plane, sizeof plane);
  }
}

// --- coders

inline __m512i decode16(const uint32_t* table, const std::byte*& at, __m512i& x) {
  const __m512i slots = _mm512_set1_epi32(kRansTotal - 1);
  const __m512i entry = _mm512_i32gather_epi32(_mm512_and_si512(x, slots), table, 4);
  const __m512i frequency = _mm512_and_si512(_mm512_srli_epi32(entry, 12), slots);
  x = _mm512_add_epi32(_mm512_mullo_epi32(frequency, _mm512_srli_epi32(x, kRansBits)), _mm512_and_si512(entry, slots));
  const __mmask16 short_of = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(kRansLow));
  const __m512i words = _mm512_maskz_expand_epi32(short_of, _mm512_cvtepu16_epi32(load256(at)));
  x = _mm512_or_si512(_mm512_mask_slli_epi32(x, short_of, x, 16), words);
  at += 2 * std::popcount(static_cast<uint32_t>(short_of));
  return _mm512_srai_epi32(entry, 24);
}

bool decode_raw(RansReader& reader, int width, int64_t count, int16_t* out) {
  const __m128i unused = _mm_cvtsi32_si128(16 - width);
  for (int64_t at = 0; at + kRansLanes <= count; at += kRansLanes) {
    __m512i low;
    if (!decode_planes(reader, width, low)) return false;
    _mm512_storeu_si512(out + at, _mm512_sra_epi16(_mm512_sll_epi16(low, unused), unused));
  }
  return true;
}

bool decode_coded(RansReader& reader, const RansChoice& form, int64_t count, int16_t* out) {
  const uint32_t* const table = rans_tables().tables[static_cast<size_t>(form.table)].decode.data();
  __m512i x0 = _mm512_loadu_si512(&reader.x[0]), x1 = _mm512_loadu_si512(&reader.x[16]);
  const __m128i shift = _mm_cvtsi32_si128(form.bits);
  for (int64_t at = 0; at + kRansLanes <= count; at += kRansLanes) {
    if (reader.at > reader.end) return false;
    const std::byte* from = reader.at;
    const __m512i s0 = decode16(table, from, x0), s1 = decode16(table, from, x1);
    reader.at = from;
    const __m512i escape = _mm512_set1_epi32(kRansEscape);
    const uint32_t escaped =
        _mm512_cmpeq_epi32_mask(s0, escape) | static_cast<uint32_t>(_mm512_cmpeq_epi32_mask(s1, escape)) << 16;
    __m512i all = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(s0)), _mm512_cvtepi32_epi16(s1), 1);
    if (escaped == 0 && form.bits == 0) [[likely]] {
      _mm512_storeu_si512(out + at, all);
      continue;
    }
    int16_t words[kRansLanes] = {};
    if (!take_escapes(reader, escaped, words)) return false;
    if (form.bits > 0) {
      __m512i low;
      if (!decode_planes(reader, form.bits, low)) return false;
      all = _mm512_or_si512(_mm512_sll_epi16(all, shift), low);
    }
    _mm512_storeu_si512(out + at, _mm512_mask_loadu_epi16(all, escaped, words));
  }
  _mm512_storeu_si512(&reader.x[0], x0);
  _mm512_storeu_si512(&reader.x[16], x1);
  return true;
}

bool decode_group(RansReader& reader, uint8_t choice, int64_t count, int16_t* out) {
  const RansChoice form = RansChoice::of(choice);
  if (form.table < 0 ? !decode_raw(reader, form.bits, count, out) : !decode_coded(reader, form, count, out))
    return false;
  const int64_t whole = count / kRansLanes * kRansLanes;
  if (whole < count) return decode_step(reader, form, static_cast<int>(count - whole), out + whole);
  return reader.at <= reader.end;
}

// Sixteen integers to the table's entries of their symbols, and the places of those; a
// bit for each escape.
inline __mmask16 entries16(const RansTable& table, __m512i integers, int shift, __m512i& places, __m512i& entries) {
  const __m512i symbols = _mm512_sra_epi32(integers, _mm_cvtsi32_si128(shift));
  const __mmask16 wide = _mm512_cmpgt_epi32_mask(_mm512_abs_epi32(symbols), _mm512_set1_epi32(127));
  places = _mm512_and_si512(symbols, _mm512_set1_epi32(0xFF));
  entries = _mm512_i32gather_epi32(places, table.encode.data(), 4);
  const __mmask16 escaped = wide | _mm512_testn_epi32_mask(entries, entries);
  if (escaped != 0) {
    constexpr auto kEscapePlace = static_cast<uint8_t>(kRansEscape);
    places = _mm512_mask_mov_epi32(places, escaped, _mm512_set1_epi32(kEscapePlace));
    entries = _mm512_mask_mov_epi32(entries, escaped, _mm512_set1_epi32(static_cast<int>(table.encode[kEscapePlace])));
  }
  return escaped;
}

inline void encode16(const RansTable& table, std::byte*& at, __m512i places, __m512i entry, __m512i& x) {
  const __m512i by = _mm512_i32gather_epi32(places, table.reciprocal.data(), 4);
  const __m512i frequency = _mm512_and_si512(entry, _mm512_set1_epi32(kRansTotal - 1));
  const __mmask16 full = _mm512_cmpge_epu32_mask(x, _mm512_slli_epi32(frequency, 19));
  const int words = std::popcount(static_cast<uint32_t>(full));
  at -= 2 * words;
  _mm256_mask_storeu_epi16(at, static_cast<__mmask16>((1u << words) - 1),
                           _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, x)));
  x = _mm512_mask_srli_epi32(x, full, x, 16);
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(x, by), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(by, 32));
  const __m512i high = _mm512_mask_mov_epi32(even, 0xAAAA, odd);
  const __m512i quotient = _mm512_srlv_epi32(high, _mm512_srli_epi32(entry, 25));
  const __m512i bias = _mm512_and_si512(_mm512_srli_epi32(entry, 12), _mm512_set1_epi32(0x1FFF));
  const __m512i rest = _mm512_sub_epi32(_mm512_set1_epi32(kRansTotal), frequency);
  x = _mm512_add_epi32(_mm512_add_epi32(x, bias), _mm512_mullo_epi32(quotient, rest));
}

constexpr int64_t kStepRoom = 2 * kRansLanes * (2 + kRansShiftMax);  // the most bytes of a step

bool encode_coded(RansWriter& writer, const RansChoice& form, const int16_t* integers, int64_t at) {
  const RansTable& table = rans_tables().tables[static_cast<size_t>(form.table)];
  __m512i x0 = _mm512_loadu_si512(&writer.x[0]), x1 = _mm512_loadu_si512(&writer.x[16]);
  while (at > 0 && writer.at - writer.floor >= kStepRoom) {
    at -= kRansLanes;
    __m512i p0, p1, e0, e1;
    const __m512i i0 = _mm512_cvtepi16_epi32(load256(integers + at));
    const __m512i i1 = _mm512_cvtepi16_epi32(load256(integers + at + 16));
    uint32_t escaped = entries16(table, i0, form.bits, p0, e0);
    escaped |= static_cast<uint32_t>(entries16(table, i1, form.bits, p1, e1)) << 16;
    encode_planes(writer, form.bits, integers + at);
    while (escaped != 0) [[unlikely]] {
        const int last = 31 - std::countl_zero(escaped);
        (void)put_word(writer, static_cast<uint16_t>(integers[at + last]));
        escaped ^= uint32_t{1} << last;
      }
    encode16(table, writer.at, p1, e1, x1);
    encode16(table, writer.at, p0, e0, x0);
  }
  _mm512_storeu_si512(&writer.x[0], x0);
  _mm512_storeu_si512(&writer.x[16], x1);
  while (at > 0) {
    at -= kRansLanes;
    if (!encode_step(writer, form, integers + at, kRansLanes)) return false;
  }
  return true;
}

bool encode_group(RansWriter& writer, uint8_t choice, const int16_t* integers, int64_t count) {
  const RansChoice form = RansChoice::of(choice);
  int64_t at = count / kRansLanes * kRansLanes;
  if (at < count && !encode_step(writer, form, integers + at, static_cast<int>(count - at))) return false;
  if (form.table >= 0) return encode_coded(writer, form, integers, at);
  if (writer.at - writer.floor < at / 8 * form.bits) return false;
  while (at > 0) {
    at -= kRansLanes;
    encode_planes(writer, form.bits, integers + at);
  }
  return true;
}

}  // namespace avx512
}  // namespace
}  // namespace loralei
LORALEI_CODEC_END

namespace loralei {

KvCodecPath kv_codec_path_avx512() {
  return {.name = "avx512",
          .read_head = avx512::read_head,
          .write_head = avx512::write_head,
          .subtract = avx512::subtract,
          .add = avx512::add,
          .choose = avx512::choose,
          .encode_group = avx512::encode_group,
          .decode_group = avx512::decode_group};
}

}  // namespace loralei

#endif

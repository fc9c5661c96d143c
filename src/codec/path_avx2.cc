// SPDX-License-Identifier: Apache-2.0
#include "codec/path.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>
#include <cstring>

#include "codec/numbers_plain.h"
#include "codec/rans_step.h"
#include "codec/target.h"

namespace loralei {
namespace {

// For each mask of eight coders: which word each takes (refill), and which coder's word
// stands at each place, the last at the right (drain).
struct Orders {
  std::array<std::array<uint8_t, 8>, 256> refill{}, drain{};
};
constexpr Orders make_orders() {
  Orders orders;
  for (size_t mask = 0; mask < 256; ++mask) {
    uint8_t word = 0;
    for (uint8_t i = 0; i < 8; ++i) {
      if ((mask >> i & 1) != 0) orders.refill[mask][i] = word++;
    }
    size_t place = 8u - word;
    for (uint8_t i = 0; i < 8; ++i) {
      if ((mask >> i & 1) != 0) orders.drain[mask][place++] = i;
    }
  }
  return orders;
}
constexpr Orders kOrders = make_orders();

}  // namespace

LORALEI_CODEC_BEGIN_AVX2
namespace {
namespace avx2 {

inline __m128i load128(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
inline __m256i load256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void store256(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
// Two times eight integers to 16 bits, in order.
inline __m256i pack16(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
}

// --- numbers

template <DType kType>
inline __m256 load_floats(const std::byte* from) {
  if constexpr (kType == DType::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  if constexpr (kType == DType::kF16) return _mm256_cvtph_ps(load128(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(from)), 16));
}

template <DType kType, bool kOne>
inline bool read16(const std::byte* source, const float* inv_steps, int16_t* out) {
  __m256i integers[2];
  int good = 0xFF;
  for (int half = 0; half < 2; ++half) {
    const __m256 inv = kOne ? _mm256_broadcast_ss(inv_steps) : _mm256_loadu_ps(inv_steps + 8 * half);
    const __m256 t = _mm256_mul_ps(load_floats<kType>(source + kNumberBytes<kType> * 8 * half), inv);
    const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), t);
    good &= _mm256_movemask_ps(_mm256_cmp_ps(size, _mm256_set1_ps(kKvIntegerLimit), _CMP_LT_OQ));
    integers[half] = _mm256_cvtps_epi32(_mm256_round_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  store256(out, pack16(integers[0], integers[1]));
  return good == 0xFF;
}

template <DType kType>
inline void store_floats(__m256 x, std::byte* to) {
  if constexpr (kType == DType::kF32) {
    _mm256_storeu_ps(reinterpret_cast<float*>(to), x);
  } else if constexpr (kType == DType::kF16) {
    x = _mm256_max_ps(_mm256_min_ps(x, _mm256_set1_ps(kKvHalfMax)), _mm256_set1_ps(-kKvHalfMax));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  } else {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i high = _mm256_srli_epi32(sum, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }
}

template <DType kType, bool kOne>
inline void write16(const int16_t* in, const float* steps, std::byte* out) {
  for (int half = 0; half < 2; ++half) {
    const __m256 step = kOne ? _mm256_broadcast_ss(steps) : _mm256_loadu_ps(steps + 8 * half);
    const __m256 integers = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(load128(in + 8 * half)));
    store_floats<kType>(_mm256_mul_ps(integers, step), out + kNumberBytes<kType> * 8 * half);
  }
}

#include "codec/choose.inl.h"
#include "codec/numbers.inl.h"

// --- raw bits

// Bits of 32 integers from planes: 16 integers a register.
inline bool decode_planes(RansReader& reader, int bits, __m256i low[2]) {
  low[0] = low[1] = _mm256_setzero_si256();
  if (reader.at > reader.end) return false;
  const __m256i places =
      _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768);
  for (int bit = 0; bit < bits; ++bit) {
    const __m256i value = _mm256_set1_epi16(static_cast<int16_t>(1 << bit));
    for (int half = 0; half < 2; ++half) {
      int16_t plane;
      std::memcpy(&plane, reader.at, sizeof plane);
      reader.at += sizeof plane;
      const __m256i set = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(plane), places), places);
      low[half] = _mm256_or_si256(low[half], _mm256_and_si256(set, value));
    }
  }
  return true;
}

inline void encode_planes(RansWriter& writer, int bits, const int16_t* integers) {
  const __m256i a = load256(integers), b = load256(integers + 16);
  for (int bit = bits; bit-- > 0;) {
    const __m128i up = _mm_cvtsi32_si128(15 - bit);
    const __m256i signs = _mm256_packs_epi16(_mm256_srai_epi16(_mm256_sll_epi16(a, up), 15),
                                             _mm256_srai_epi16(_mm256_sll_epi16(b, up), 15));
    const int plane = _mm256_movemask_epi8(_mm256_permute4x64_epi64(signs, 0xD8));
    writer.at -= sizeof plane;
    std::memcpy(writer.at, &plane, sizeof plane);
  }
}

// --- coders

inline __m256i decode8(const int* table, const std::byte*& at, __m256i& x) {
  const __m256i slots = _mm256_set1_epi32(kRansTotal - 1);
  const __m256i entry = _mm256_i32gather_epi32(table, _mm256_and_si256(x, slots), 4);
  const __m256i frequency = _mm256_and_si256(_mm256_srli_epi32(entry, 12), slots);
  x = _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srli_epi32(x, kRansBits)), _mm256_and_si256(entry, slots));
  const __m256i short_of = _mm256_cmpgt_epi32(_mm256_set1_epi32(kRansLow), x);
  const auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(short_of)));
  const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kOrders.refill[mask])));
  const __m256i words = _mm256_permutevar8x32_epi32(_mm256_cvtepu16_epi32(load128(at)), order);
  x = _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), words), short_of);
  at += 2 * std::popcount(mask);
  return _mm256_srai_epi32(entry, 24);
}

inline uint32_t escapes_in(__m256i a, __m256i b) {
  const __m256i escape = _mm256_set1_epi16(kRansEscape);
  const __m256i found = _mm256_packs_epi16(_mm256_cmpeq_epi16(a, escape), _mm256_cmpeq_epi16(b, escape));
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permute4x64_epi64(found, 0xD8)));
}

bool decode_raw(RansReader& reader, int width, int64_t count, int16_t* out) {
  const __m128i unused = _mm_cvtsi32_si128(16 - width);
  for (int64_t at = 0; at + kRansLanes <= count; at += kRansLanes) {
    __m256i low[2];
    if (!decode_planes(reader, width, low)) return false;
    for (int half = 0; half < 2; ++half)
      store256(out + at + 16 * half, _mm256_sra_epi16(_mm256_sll_epi16(low[half], unused), unused));
  }
  return true;
}

bool decode_coded(RansReader& reader, const RansChoice& form, int64_t count, int16_t* out) {
  const auto* const table =
      reinterpret_cast<const int*>(rans_tables().tables[static_cast<size_t>(form.table)].decode.data());
  __m256i x[4];
  for (int i = 0; i < 4; ++i) x[i] = load256(&reader.x[static_cast<size_t>(8 * i)]);
  const __m128i shift = _mm_cvtsi32_si128(form.bits);
  for (int64_t at = 0; at + kRansLanes <= count; at += kRansLanes) {
    if (reader.at > reader.end) return false;
    const std::byte* from = reader.at;
    const __m256i s0 = decode8(table, from, x[0]), s1 = decode8(table, from, x[1]);
    const __m256i s2 = decode8(table, from, x[2]), s3 = decode8(table, from, x[3]);
    reader.at = from;
    __m256i a = pack16(s0, s1), b = pack16(s2, s3);
    const uint32_t escaped = escapes_in(a, b);
    if (escaped == 0 && form.bits == 0) [[likely]] {
      store256(out + at, a);
      store256(out + at + 16, b);
      continue;
    }
    int16_t words[kRansLanes];
    if (!take_escapes(reader, escaped, words)) return false;
    if (form.bits > 0) {
      __m256i low[2];
      if (!decode_planes(reader, form.bits, low)) return false;
      a = _mm256_or_si256(_mm256_sll_epi16(a, shift), low[0]);
      b = _mm256_or_si256(_mm256_sll_epi16(b, shift), low[1]);
    }
    store256(out + at, a);
    store256(out + at + 16, b);
    for (uint32_t left = escaped; left != 0; left &= left - 1)
      out[at + std::countr_zero(left)] = words[std::countr_zero(left)];
  }
  for (int i = 0; i < 4; ++i) store256(&reader.x[static_cast<size_t>(8 * i)], x[i]);
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

// Eight integers to the table's entries of their symbols, and the places of those; a bit
// for each escape.
inline uint32_t entries8(const RansTable& table, __m256i integers, int shift, __m256i& places, __m256i& entries) {
  const __m256i symbols = _mm256_sra_epi32(integers, _mm_cvtsi32_si128(shift));
  const __m256i wide = _mm256_cmpgt_epi32(_mm256_abs_epi32(symbols), _mm256_set1_epi32(127));
  places = _mm256_and_si256(symbols, _mm256_set1_epi32(0xFF));
  entries = _mm256_i32gather_epi32(reinterpret_cast<const int*>(table.encode.data()), places, 4);
  const __m256i escape = _mm256_or_si256(wide, _mm256_cmpeq_epi32(entries, _mm256_setzero_si256()));
  const auto escaped = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(escape)));
  if (escaped != 0) {
    constexpr auto kEscapePlace = static_cast<uint8_t>(kRansEscape);
    const __m256i entry = _mm256_set1_epi32(static_cast<int>(table.encode[kEscapePlace]));
    places = _mm256_blendv_epi8(places, _mm256_set1_epi32(kEscapePlace), escape);
    entries = _mm256_blendv_epi8(entries, entry, escape);
  }
  return escaped;
}

inline void encode8(const RansTable& table, std::byte*& at, __m256i places, __m256i entry, __m256i& x) {
  const __m256i by = _mm256_i32gather_epi32(reinterpret_cast<const int*>(table.reciprocal.data()), places, 4);
  const __m256i frequency = _mm256_and_si256(entry, _mm256_set1_epi32(kRansTotal - 1));
  const __m256i top = _mm256_sub_epi32(_mm256_slli_epi32(frequency, 19), _mm256_set1_epi32(1));
  const __m256i full = _mm256_cmpgt_epi32(x, top);
  const auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(full)));
  const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kOrders.drain[mask])));
  const __m256i words = _mm256_permutevar8x32_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0xFFFF)), order);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at - 16), _mm256_castsi256_si128(packed));
  at -= 2 * std::popcount(mask);
  x = _mm256_blendv_epi8(x, _mm256_srli_epi32(x, 16), full);
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, by), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(by, 32));
  const __m256i quotient = _mm256_srlv_epi32(_mm256_blend_epi32(even, odd, 0xAA), _mm256_srli_epi32(entry, 25));
  const __m256i bias = _mm256_and_si256(_mm256_srli_epi32(entry, 12), _mm256_set1_epi32(0x1FFF));
  const __m256i rest = _mm256_sub_epi32(_mm256_set1_epi32(kRansTotal), frequency);
  x = _mm256_add_epi32(_mm256_add_epi32(x, bias), _mm256_mullo_epi32(quotient, rest));
}

// The most bytes of a step, and what encode8 writes below them.
constexpr int64_t kStepRoom = 2 * kRansLanes * (2 + kRansShiftMax) + 16;

bool encode_coded(RansWriter& writer, const RansChoice& form, const int16_t* integers, int64_t at) {
  const RansTable& table = rans_tables().tables[static_cast<size_t>(form.table)];
  __m256i x[4];
  for (int i = 0; i < 4; ++i) x[i] = load256(&writer.x[static_cast<size_t>(8 * i)]);
  while (at > 0 && writer.at - writer.floor >= kStepRoom) {
    at -= kRansLanes;
    __m256i places[4], entries[4];
    uint32_t escaped = 0;
    for (int i = 0; i < 4; ++i) {
      const __m256i eight = _mm256_cvtepi16_epi32(load128(integers + at + 8 * i));
      escaped |= entries8(table, eight, form.bits, places[i], entries[i]) << (8 * i);
    }
    encode_planes(writer, form.bits, integers + at);
    while (escaped != 0) [[unlikely]] {
        const int last = 31 - std::countl_zero(escaped);
        (void)put_word(writer, static_cast<uint16_t>(integers[at + last]));
        escaped ^= uint32_t{1} << last;
      }
    for (int i = 4; i-- > 0;) encode8(table, writer.at, places[i], entries[i], x[i]);
  }
  for (int i = 0; i < 4; ++i) store256(&writer.x[static_cast<size_t>(8 * i)], x[i]);
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

}  // namespace avx2
}  // namespace
LORALEI_CODEC_END

KvCodecPath kv_codec_path_avx2() {
  return {.name = "avx2",
          .read_head = avx2::read_head,
          .write_head = avx2::write_head,
          .subtract = avx2::subtract,
          .add = avx2::add,
          .choose = avx2::choose,
          .encode_group = avx2::encode_group,
          .decode_group = avx2::decode_group};
}

}  // namespace loralei

#endif

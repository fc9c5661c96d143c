// SPDX-License-Identifier: Apache-2.0
#include "adapters/change_products.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/target.h"
#include "sys/cpu.h"
#include "tensor/codec.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined lanes of its own intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

LORALEI_TARGET_BEGIN_AVX2
namespace loralei {
namespace {
namespace avx2 {
using F = __m256;
constexpr int kLanes = 8, kRows = 2;
LORALEI_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
LORALEI_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
LORALEI_INLINE F fma(F x, F y, F sum) { return _mm256_fmadd_ps(x, y, sum); }
LORALEI_INLINE float sum_of(F x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
LORALEI_INLINE __m128i load_words(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
LORALEI_INLINE F load_f16(const std::byte* p) { return _mm256_cvtph_ps(load_words(p)); }
LORALEI_INLINE F load_bf16(const std::byte* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_words(p)), 16));
}
#include "adapters/change_products.inl.h"
void decode(DType dtype, const std::byte* source, float* out, int64_t count) {
  int64_t done = 0;
  for (; dtype == DType::kBF16 && done + kLanes <= count; done += kLanes)
    store(out + done, load_bf16(source + 2 * done));
  for (; dtype == DType::kF16 && done + kLanes <= count; done += kLanes) store(out + done, load_f16(source + 2 * done));
  decode_row(dtype, source + done * row_bytes(dtype, 1), out + done, count - done);
}
}  // namespace avx2
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

LORALEI_TARGET_BEGIN_AVX512
namespace loralei {
namespace {
namespace avx512 {
using F = __m512;
constexpr int kLanes = 16, kRows = 4;
LORALEI_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
LORALEI_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
LORALEI_INLINE F fma(F x, F y, F sum) { return _mm512_fmadd_ps(x, y, sum); }
LORALEI_INLINE float sum_of(F x) { return _mm512_reduce_add_ps(x); }
LORALEI_INLINE __m256i load_words(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
LORALEI_INLINE F load_f16(const std::byte* p) { return _mm512_cvtph_ps(load_words(p)); }
LORALEI_INLINE F load_bf16(const std::byte* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_words(p)), 16));
}
#include "adapters/change_products.inl.h"
void decode(DType dtype, const std::byte* source, float* out, int64_t count) {
  int64_t done = 0;
  for (; dtype == DType::kBF16 && done + kLanes <= count; done += kLanes)
    store(out + done, load_bf16(source + 2 * done));
  for (; dtype == DType::kF16 && done + kLanes <= count; done += kLanes) store(out + done, load_f16(source + 2 * done));
  decode_row(dtype, source + done * row_bytes(dtype, 1), out + done, count - done);
}
}  // namespace avx512
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END
#endif

namespace loralei {
namespace {
namespace plain {
constexpr int kLanes = 4, kRows = 2;
typedef float F __attribute__((vector_size(kLanes * sizeof(float))));
LORALEI_INLINE F load(const float* p) {
  F x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
LORALEI_INLINE F fma(F x, F y, F sum) { return x * y + sum; }
LORALEI_INLINE float sum_of(F x) { return (x[0] + x[1]) + (x[2] + x[3]); }
#include "adapters/change_products.inl.h"
}  // namespace plain

std::vector<ChangeProducts> find_products() {
  std::vector<ChangeProducts> found;
#if defined(__x86_64__)
  const CpuIsa isa = detect_isa();
  if (isa.avx512) found.push_back({"avx512", avx512::add_products, avx512::decode});
  if (isa.avx2) found.push_back({"avx2", avx2::add_products, avx2::decode});
#endif
  found.push_back({"plain", plain::add_products, decode_row});
  return found;
}

}  // namespace

std::span<const ChangeProducts> change_products() {
  static const std::vector<ChangeProducts> products = find_products();
  return products;
}

}  // namespace loralei

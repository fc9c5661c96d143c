// SPDX-License-Identifier: Apache-2.0
#include "ops/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#if !defined(__clang__)
// GCC 12's own AVX-512 header fills "undefined" results from an uninitialised variable
// and then warns about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "device/host/arena.h"
#include "device/host/isa.h"
#include "ops/cpu/cpu_table.h"
#include "ops/cpu/target.h"

namespace loralei {
namespace {

constexpr int64_t kReadChunkBytes = int64_t{4} << 20;
constexpr int64_t kLoops = 200'000;  // of one arithmetic chunk: a fraction of a millisecond
constexpr int kChunksPerThread = 16;

// One arithmetic chunk: runs, and answers a number that depends on all it did, so that
// nothing can be left out.
using ArithmeticChunk = float (*)();
struct Arithmetic {
  const char* kind;
  ArithmeticChunk chunk = nullptr;
  double operations = 0;  // of one chunk
};

// Answers something that depends on every word, so that nothing can be left out. `bytes`
// is a multiple of 512.
uint64_t scalar_read(const std::byte* data, int64_t bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t sums[4] = {};
  for (int64_t i = 0; i < bytes / 8; i += 4) {
    sums[0] += words[i];
    sums[1] += words[i + 1];
    sums[2] += words[i + 2];
    sums[3] += words[i + 3];
  }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

float scalar_f32_chunk() {
  float sums[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    LORALEI_UNROLL
    for (float& sum : sums) sum = sum * 0.999f + 0.5f;
  }
  float total = 0;
  for (float sum : sums) total += sum;
  return total;
}

}  // namespace
}  // namespace loralei

#if defined(__x86_64__)

LORALEI_TARGET_BEGIN_AVX2
namespace loralei {
namespace {
uint64_t avx2_total(__m256i (&sums)[8]) {
  for (int i = 1; i < 8; ++i) sums[0] = _mm256_add_epi64(sums[0], sums[i]);
  const __m128i halves = _mm_add_epi64(_mm256_castsi256_si128(sums[0]), _mm256_extracti128_si256(sums[0], 1));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(halves)) + static_cast<uint64_t>(_mm_extract_epi64(halves, 1));
}
uint64_t avx2_read(const std::byte* data, int64_t bytes) {
  __m256i sums[8];
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t at = 0; at < bytes; at += 256) {
    LORALEI_UNROLL
    for (int i = 0; i < 8; ++i) {
      sums[i] = _mm256_add_epi64(sums[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at + 32 * i)));
    }
  }
  return avx2_total(sums);
}

// Two streams side by side, asked for a kibibyte ahead: more is under way than the
// processor asks for by itself.
uint64_t avx2_read_ahead(const std::byte* data, int64_t bytes) {
  constexpr int64_t kAhead = 1024;
  __m256i sums[8];
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  const std::byte* const streams[2] = {data, data + bytes / 2};
  for (int64_t at = 0; at < bytes / 2; at += 256) {
    for (const std::byte* stream : streams) {
      LORALEI_UNROLL
      for (int i = 0; i < 4; ++i) __builtin_prefetch(stream + at + kAhead + 64 * i, 0, 3);
      LORALEI_UNROLL
      for (int i = 0; i < 8; ++i) {
        sums[i] = _mm256_add_epi64(sums[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(stream + at + 32 * i)));
      }
    }
  }
  return avx2_total(sums);
}

float avx2_f32_chunk() {  // 12 chains hide the latency of two multiply-add units
  __m256 sums[12];
  for (int i = 0; i < 12; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.5f);
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    LORALEI_UNROLL
    for (int i = 0; i < 12; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
  }
  for (int i = 1; i < 12; ++i) sums[0] = _mm256_add_ps(sums[0], sums[i]);
  return _mm256_cvtss_f32(sums[0]);
}

namespace avx2_pairs {
using I = __m256i;
I all_bytes(int8_t value) { return _mm256_set1_epi8(value); }
I all_pairs(int16_t value) { return _mm256_set1_epi16(value); }
#include "ops/probe_pairs.inl.h"
}  // namespace avx2_pairs
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

LORALEI_TARGET_BEGIN_AVX512
namespace loralei {
namespace {
float avx512_f32_chunk() {
  __m512 sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.5f);
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    LORALEI_UNROLL
    for (int i = 0; i < 16; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
  }
  for (int i = 1; i < 16; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_cvtss_f32(sums[0]);
}
namespace avx512_pairs {
using I = __m512i;
I all_bytes(int8_t value) { return _mm512_set1_epi8(value); }
I all_pairs(int16_t value) { return _mm512_set1_epi16(value); }
#include "ops/probe_pairs.inl.h"
}  // namespace avx512_pairs
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

LORALEI_TARGET_BEGIN_VNNI
namespace loralei {
namespace {
float vnni_int8_chunk() {
  __m512i sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = _mm512_set1_epi32(i);
  const __m512i factor = _mm512_set1_epi8(3), term = _mm512_set1_epi8(-5);
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    LORALEI_UNROLL
    for (int i = 0; i < 16; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], factor, term);
  }
  for (int i = 1; i < 16; ++i) sums[0] = _mm512_add_epi32(sums[0], sums[i]);
  return static_cast<float>(_mm512_cvtsi512_si32(sums[0]));
}
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

LORALEI_TARGET_BEGIN_AVX_VNNI
namespace loralei {
namespace {
// Written out, and every loop unrolled, because the compiler would store the sums to
// memory each time, and that would be what is measured.
LORALEI_INLINE void add_dots(__m256i& sum, __m256i unsigned_words, __m256i signed_words) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(unsigned_words), "x"(signed_words));
}
float avx_vnni_int8_chunk() {
  __m256i sums[12];
  LORALEI_UNROLL
  for (int i = 0; i < 12; ++i) sums[i] = _mm256_set1_epi32(i);
  const __m256i factor = _mm256_set1_epi8(3), term = _mm256_set1_epi8(-5);
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    LORALEI_UNROLL
    for (int i = 0; i < 12; ++i) add_dots(sums[i], factor, term);
  }
  LORALEI_UNROLL
  for (int i = 1; i < 12; ++i) sums[0] = _mm256_add_epi32(sums[0], sums[i]);
  return static_cast<float>(_mm_cvtsi128_si32(_mm256_castsi256_si128(sums[0])));
}
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

LORALEI_TARGET_BEGIN_AVX512_BF16
namespace loralei {
namespace {
float bf16_pairs_chunk() {
  __m512 sums[16];
  LORALEI_UNROLL
  for (int i = 0; i < 16; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3F80));  // ones
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    LORALEI_UNROLL
    for (int i = 0; i < 16; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
  }
  LORALEI_UNROLL
  for (int i = 1; i < 16; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_cvtss_f32(sums[0]);
}
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

LORALEI_TARGET_BEGIN_AMX
namespace loralei {
namespace {
#include "ops/cpu/amx/tile_config.inl.h"

// Tiles of 16 rows of 64 bytes: four sums (0..3) of the products of two left (4, 5) and
// two right (6, 7) tiles.
constexpr int64_t kTileLoops = kLoops / 16;
constexpr double kTileOps = static_cast<double>(kTileLoops) * 4 * 16 * 16 * 64 * 2;
// The tile instructions' headers do not tell the compiler which memory they touch.
inline void memory_is_used(const void* data) { asm volatile("" : : "r"(data) : "memory"); }

float amx_int8_chunk() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.bytes_a_row[i] = 64;
    config.rows[i] = 16;
  }
  alignas(64) int8_t tile[16 * 64];
  for (int i = 0; i < 16 * 64; ++i) tile[i] = static_cast<int8_t>(i % 7 - 3);
  memory_is_used(tile);
  load_config(config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, tile, 64);
  _tile_loadd(5, tile, 64);
  _tile_loadd(6, tile, 64);
  _tile_loadd(7, tile, 64);
  for (int64_t loop = 0; loop < kTileLoops; ++loop) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  float total = 0;
  const auto take = [&] {
    memory_is_used(tile);
    total += static_cast<float>(tile[0] + tile[1023]);
  };
  _tile_stored(0, tile, 64);
  take();
  _tile_stored(1, tile, 64);
  take();
  _tile_stored(2, tile, 64);
  take();
  _tile_stored(3, tile, 64);
  take();
  _tile_release();
  return total;
}
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

#elif defined(__aarch64__)

namespace loralei {
namespace {
float neon_f32_chunk() {  // 16 chains hide the latency of four multiply-add units
  float32x4_t sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = vdupq_n_f32(static_cast<float>(i));
  const float32x4_t factor = vdupq_n_f32(0.999f), term = vdupq_n_f32(0.5f);
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    LORALEI_UNROLL
    for (int i = 0; i < 16; ++i) sums[i] = vfmaq_f32(term, sums[i], factor);
  }
  for (int i = 1; i < 16; ++i) sums[0] = vaddq_f32(sums[0], sums[i]);
  return vaddvq_f32(sums[0]);
}
}  // namespace
}  // namespace loralei

LORALEI_TARGET_BEGIN_I8MM
namespace loralei {
namespace {
float dotprod_int8_chunk() {
  int32x4_t sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = vdupq_n_s32(i);
  const int8x16_t factor = vdupq_n_s8(3), term = vdupq_n_s8(-5);
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    LORALEI_UNROLL
    for (int i = 0; i < 16; ++i) sums[i] = vdotq_s32(sums[i], factor, term);
  }
  for (int i = 1; i < 16; ++i) sums[0] = vaddq_s32(sums[0], sums[i]);
  return static_cast<float>(vaddvq_s32(sums[0]));
}
float i8mm_int8_chunk() {
  int32x4_t sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = vdupq_n_s32(i);
  const int8x16_t factor = vdupq_n_s8(3), term = vdupq_n_s8(-5);
  for (int64_t loop = 0; loop < kLoops; ++loop) {
    LORALEI_UNROLL
    for (int i = 0; i < 16; ++i) sums[i] = vmmlaq_s32(sums[i], factor, term);
  }
  for (int i = 1; i < 16; ++i) sums[0] = vaddq_s32(sums[0], sums[i]);
  return static_cast<float>(vaddvq_s32(sums[0]));
}
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

#endif

namespace loralei {
namespace {

using ReadChunk = uint64_t (*)(const std::byte* data, int64_t bytes);
std::vector<ReadChunk> ways_to_read() {
#if defined(__x86_64__)
  if (avx2_op_table() != nullptr) return {avx2_read, avx2_read_ahead};
#endif
  return {scalar_read};
}

constexpr double kOps = static_cast<double>(kLoops) * 2;  // of a chain of one lane: a multiply and an add

// In the order of preference, the best first.
std::vector<Arithmetic> f32_kinds() {
  std::vector<Arithmetic> kinds;
#if defined(__x86_64__)
  if (avx512_op_table() != nullptr) kinds.push_back({"avx512", avx512_f32_chunk, kOps * 16 * 16});
  if (avx2_op_table() != nullptr) kinds.push_back({"avx2", avx2_f32_chunk, kOps * 12 * 8});
#endif
#if defined(__aarch64__)
  kinds.push_back({"neon", neon_f32_chunk, kOps * 16 * 4});
#endif
  kinds.push_back({"scalar", scalar_f32_chunk, kOps * 8});
  return kinds;
}

std::vector<Arithmetic> int8_kinds(int bits) {
  std::vector<Arithmetic> kinds;
#if defined(__x86_64__)
  const CpuIsa isa = host_isa();
  if (isa.avx512_vnni) kinds.push_back({"avx512_vnni", vnni_int8_chunk, kOps * 16 * 64});
  if (isa.avx_vnni) kinds.push_back({"avx_vnni", avx_vnni_int8_chunk, kOps * 12 * 32});
  if (isa.avx512) kinds.push_back({"avx512", avx512_pairs::pairs_chunk_of(bits), avx512_pairs::kPairsOps});
  if (isa.avx2) kinds.push_back({"avx2", avx2_pairs::pairs_chunk_of(bits), avx2_pairs::kPairsOps});
#elif defined(__aarch64__)
  const CpuIsa isa = host_isa();
  if (isa.i8mm) kinds.push_back({"i8mm", i8mm_int8_chunk, kOps * 16 * 32});
  if (isa.dotprod) kinds.push_back({"dotprod", dotprod_int8_chunk, kOps * 16 * 16});
#endif
  return kinds;
}

double arithmetic_rate(ThreadPool& pool, const Clock& clock, int rounds, const Arithmetic& arithmetic) {
  const int64_t chunks = int64_t{kChunksPerThread} * pool.threads();
  std::atomic<int64_t> used{0};  // takes in every result
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    const double start_s = clock.now_s();
    pool.parallel_for(chunks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i)
        used.fetch_add(arithmetic.chunk() != 0.0f ? 1 : 2, std::memory_order_relaxed);
    });
    const double elapsed_s = clock.now_s() - start_s;
    if (elapsed_s > 0 && used.load() > 0)
      best = std::max(best, arithmetic.operations * static_cast<double>(chunks) / elapsed_s * 1e-9);
  }
  return best;
}

std::vector<KindRate> kind_rates(ThreadPool& pool, const Clock& clock, int rounds,
                                 const std::vector<Arithmetic>& kinds) {
  std::vector<KindRate> rates;
  for (const Arithmetic& kind : kinds) rates.push_back({kind.kind, arithmetic_rate(pool, clock, rounds, kind)});
  return rates;
}

}  // namespace

Result<double> probe_read_gb_s(ThreadPool& pool, const Clock& clock, const ProbeOptions& options) {
  const int64_t bytes = std::max(options.buffer_bytes, kReadChunkBytes) / kReadChunkBytes * kReadChunkBytes;
  TRY_ASSIGN(const HostBuffer buffer, HostBuffer::allocate(bytes, options.pages));
  const int64_t chunks = bytes / kReadChunkBytes;
  // Untouched pages would all be the one page of zeros.
  pool.parallel_for(chunks, 1, [&](int64_t begin, int64_t end, int) {
    std::memset(buffer.data() + begin * kReadChunkBytes, 1, static_cast<size_t>((end - begin) * kReadChunkBytes));
  });
  std::atomic<uint64_t> sum{0};
  double best = 0;
  for (int round = 0; round < options.rounds; ++round) {
    for (const ReadChunk read : ways_to_read()) {
      const double start_s = clock.now_s();
      pool.parallel_for(chunks, 1, [&](int64_t begin, int64_t end, int) {
        sum.fetch_add(read(buffer.data() + begin * kReadChunkBytes, (end - begin) * kReadChunkBytes),
                      std::memory_order_relaxed);
      });
      const double elapsed_s = clock.now_s() - start_s;
      if (elapsed_s > 0 && sum.load() != 0) best = std::max(best, static_cast<double>(bytes) / elapsed_s * 1e-9);
    }
  }
  return best;
}

double probe_f32_gflop_s(ThreadPool& pool, const Clock& clock, int rounds) {
  return arithmetic_rate(pool, clock, rounds, f32_kinds().front());
}
int int8_bits(DType weights) {
  const CpuIsa isa = host_isa();
  if (isa.avx512_vnni || isa.avx_vnni || !isa.avx2) return 8;
  switch (weights) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kInt4G:
    case DType::kQ4_K:
      return 4;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
    case DType::kMXFP4:
    case DType::kQ2_K:  // of fewer bits, but four words are all that share a scale
    case DType::kQ3_K:
      return 5;
    case DType::kQ6_K:
      return 6;
    default:
      return 8;
  }
}
double probe_int8_gop_s(ThreadPool& pool, const Clock& clock, int rounds, int bits) {
  const std::vector<Arithmetic> kinds = int8_kinds(bits);
  return kinds.empty() ? 0 : arithmetic_rate(pool, clock, rounds, kinds.front());
}

std::vector<KindRate> probe_f32_kinds(ThreadPool& pool, const Clock& clock, int rounds) {
  return kind_rates(pool, clock, rounds, f32_kinds());
}
std::vector<KindRate> probe_int8_kinds(ThreadPool& pool, const Clock& clock, int rounds, int bits) {
  return kind_rates(pool, clock, rounds, int8_kinds(bits));
}

double probe_bf16_gflop_s(ThreadPool& pool, const Clock& clock, int rounds) {
#if defined(__x86_64__)
  if (host_isa().avx512_bf16)
    return arithmetic_rate(pool, clock, rounds, {"avx512_bf16", bf16_pairs_chunk, kOps * 16 * 32});
#endif
  return 0;
}

double probe_amx_int8_gop_s(ThreadPool& pool, const Clock& clock, int rounds) {
#if defined(__x86_64__)
  if (request_amx()) return arithmetic_rate(pool, clock, rounds, {"amx_int8", amx_int8_chunk, kTileOps});
#endif
  return 0;
}

double probe_wake_us(ThreadPool& pool, const Clock& clock) {
  constexpr int kRounds = 31;
  std::vector<double> times_us;
  for (int round = 0; round < kRounds; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // long enough for the pool to stop spinning
    std::atomic<int> arrived{0};
    const double start_s = clock.now_s();
    // As many chunks as threads, and each waits for all: every thread takes exactly one.
    pool.parallel_for(pool.threads(), 1, [&](int64_t, int64_t, int) {
      arrived.fetch_add(1, std::memory_order_acq_rel);
      while (arrived.load(std::memory_order_acquire) < pool.threads()) std::this_thread::yield();
    });
    times_us.push_back((clock.now_s() - start_s) * 1e6);
  }
  std::nth_element(times_us.begin(), times_us.begin() + kRounds / 2, times_us.end());
  return times_us[kRounds / 2];
}

double probe_line_ns(ThreadPool& pool, const Clock& clock) {
  if (pool.threads() < 2) return 0;
  constexpr int kRounds = 5, kPasses = 4000, kTimedFrom = 1000;  // even
  constexpr int kPatience = 1 << 14;  // looks at the line before the core is given up to whoever needs it
  double best_ns = std::numeric_limits<double>::max();
  for (int round = 0; round < kRounds; ++round) {
    alignas(64) std::atomic<int> passes{0};
    double start_s = 0, end_s = 0;  // of player 0
    // Player 0 makes every even pass, player 1 every odd one. Each waits for the other,
    // so they are different threads.
    pool.parallel_for(2, 1, [&](int64_t player, int64_t, int) {
      for (int pass = static_cast<int>(player); pass < kPasses; pass += 2) {
        for (int looks = 0; passes.load(std::memory_order_acquire) != pass; ++looks) {
          if (looks % kPatience == kPatience - 1) std::this_thread::yield();
        }
        if (pass == kTimedFrom) start_s = clock.now_s();
        if (pass == kPasses - 2) end_s = clock.now_s();
        passes.store(pass + 1, std::memory_order_release);
      }
    });
    best_ns = std::min(best_ns, (end_s - start_s) / (kPasses - 2 - kTimedFrom) * 1e9);
  }
  return best_ns;
}

}  // namespace loralei

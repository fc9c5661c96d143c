// SPDX-License-Identifier: Apache-2.0
#include "ops/emulated_amx.h"

#if defined(__x86_64__)

#if !defined(__clang__)
// GCC 12's own AVX-512 header fills "undefined" results from an uninitialised variable
// and then warns about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "device/host/isa.h"
#include "ops/op_test_util.h"

namespace loralei {
namespace emulated_amx {

constexpr int kTiles = 8, kRowsMax = 16, kRowBytesMax = 64;

struct Tile {
  int rows = 0, row_bytes = 0;
  bool holds = false;
  std::byte data[kRowsMax][kRowBytesMax];
};

// Intel's Software Developer's Manual, volume 2: LDTILECFG, TILELOADD, TILESTORED,
// TILEZERO, TDPBSSD, TDPBF16PS.
class Unit {
 public:
  void configure(const void* bytes) {
    struct {
      uint8_t palette, start_row, reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    } config;
    static_assert(sizeof(config) == 64);
    std::memcpy(&config, bytes, sizeof(config));
    CHECK(config.palette == 1 && config.start_row == 0);
    for (int t = 0; t < kTiles; ++t) {
      CHECK(config.rows[t] <= kRowsMax && config.row_bytes[t] <= kRowBytesMax);
      tiles_[t] = {};
      tiles_[t].rows = config.rows[t];
      tiles_[t].row_bytes = config.row_bytes[t];
    }
    configured_ = true;
  }
  void release() { configured_ = false; }

  void zero(int t) {
    Tile& tile = configured(t);
    std::memset(tile.data, 0, sizeof(tile.data));
    tile.holds = true;
  }
  void load(int t, const void* from, int64_t stride) {
    zero(t);
    Tile& tile = tiles_[t];
    for (int row = 0; row < tile.rows; ++row)
      std::memcpy(tile.data[row], static_cast<const std::byte*>(from) + row * stride,
                  static_cast<size_t>(tile.row_bytes));
  }
  void store(int t, void* to, int64_t stride) {
    const Tile& tile = full(t);
    for (int row = 0; row < tile.rows; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * stride, tile.data[row], static_cast<size_t>(tile.row_bytes));
  }

  // c += a b: bytes of a row of a, four by four, with those of a column of b.
  void add_products_of_bytes(int c_index, int a_index, int b_index) {
    Tile& c = fitting(c_index, a_index, b_index);
    const Tile &a = tiles_[a_index], &b = tiles_[b_index];
    for (int m = 0; m < c.rows; ++m) {
      int32_t sums[16];
      std::memcpy(sums, c.data[m], sizeof(sums));
      for (int k = 0; k < a.row_bytes; ++k) {
        for (int n = 0; n < c.row_bytes / 4; ++n)
          sums[n] += static_cast<int8_t>(a.data[m][k]) * static_cast<int8_t>(b.data[k / 4][4 * n + k % 4]);
      }
      std::memcpy(c.data[m], sums, sizeof(sums));
    }
  }

  // c += a b: pairs of bf16 numbers of a row of a with those of a column of b. The first
  // numbers of the pairs are added up, and the second ones, then both to c; what is below
  // 2^-126 is zero, before and after each addition.
  void add_products_of_pairs(int c_index, int a_index, int b_index) {
    Tile& c = fitting(c_index, a_index, b_index);
    const Tile &a = tiles_[a_index], &b = tiles_[b_index];
    for (int m = 0; m < c.rows; ++m) {
      float sums[2][16] = {};
      for (int k = 0; k < a.row_bytes / 2; ++k) {
        const float left = number(a.data[m] + 2 * k);
        float* const to = sums[k % 2];
        for (int n = 0; n < c.row_bytes / 4; ++n)
          to[n] = flushed(std::fma(left, number(b.data[k / 2] + 4 * n + 2 * (k % 2)), to[n]));
      }
      float results[16];
      std::memcpy(results, c.data[m], sizeof(results));
      for (int n = 0; n < c.row_bytes / 4; ++n)
        results[n] = flushed(flushed(results[n]) + flushed(sums[0][n] + sums[1][n]));
      std::memcpy(c.data[m], results, sizeof(results));
    }
  }

 private:
  Tile& configured(int t) {
    CHECK(configured_ && tiles_[t].rows > 0 && tiles_[t].row_bytes > 0);
    return tiles_[t];
  }
  Tile& full(int t) {
    CHECK(configured(t).holds);
    return tiles_[t];
  }
  Tile& fitting(int c_index, int a_index, int b_index) {
    Tile& c = full(c_index);
    const Tile &a = full(a_index), &b = full(b_index);
    CHECK(a.rows == c.rows && b.row_bytes == c.row_bytes && b.rows * 4 == a.row_bytes);
    return c;
  }
  static float flushed(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
  static float number(const std::byte* p) {
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    return flushed(bf16_to_f32(bits));
  }

  bool configured_ = false;
  Tile tiles_[kTiles];
};

Unit& unit() {
  static thread_local Unit unit;
  return unit;
}

}  // namespace emulated_amx
}  // namespace loralei

// The compilers' own names, which are macros in part.
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) loralei::emulated_amx::unit().configure(config)
#define _tile_release() loralei::emulated_amx::unit().release()
#define _tile_zero(t) loralei::emulated_amx::unit().zero(t)
#define _tile_loadd(t, from, stride) loralei::emulated_amx::unit().load(t, from, stride)
#define _tile_stored(t, to, stride) loralei::emulated_amx::unit().store(t, to, stride)
#define _tile_dpbssd(c, a, b) loralei::emulated_amx::unit().add_products_of_bytes(c, a, b)
#define _tile_dpbf16ps(c, a, b) loralei::emulated_amx::unit().add_products_of_pairs(c, a, b)
#define matmul_halves_amx matmul_halves_emulated_amx
#define matmul_tiles_amx matmul_tiles_emulated_amx
#define matmul_tile_runs_amx matmul_tile_runs_emulated_amx
#include "ops/cpu/amx/matmul_amx.cc"
#include "ops/cpu/amx/tiles_amx.cc"
#undef matmul_halves_amx
#undef matmul_tiles_amx
#undef matmul_tile_runs_amx

namespace loralei {
namespace {

const OpTable* vectors() {
  const auto table = select_op_table("avx512_vnni");
  return table.ok() && host_isa().avx512_bf16 ? *table : nullptr;
}

void matmul(OpContext& ctx, const MatmulArgs& args) {
  const bool halves = args.w.dtype == DType::kBF16 || args.w.dtype == DType::kF16;
  halves ? matmul_halves_emulated_amx(ctx, args) : vectors()->matmul(ctx, args);
}

}  // namespace

std::vector<const OpTable*> emulated_amx_tables() {
  if (vectors() == nullptr) return {};
  static const OpTable table = [] {
    OpTable emulated = *vectors();
    emulated.name = "emulated_amx";
    emulated.matmul = matmul;
    emulated.matmul_tiles = matmul_tiles_emulated_amx;
    emulated.matmul_tile_runs = matmul_tile_runs_emulated_amx;
    emulated.scratch_bytes = matrix_scratch_bytes;
    emulated.has_matrix_unit = true;
    return emulated;
  }();
  return {&table};
}

namespace {

// What it is worth: on a machine that has the unit, both give the same bits.
TEST(EmulatedAmx, IsTheProcessorsUnit) {
  const auto real = select_op_table("amx");
  if (!real.ok() || !host_isa().amx_bf16) GTEST_SKIP() << "this processor has no AMX-BF16 to compare with";
  Prng prng(301);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int32_t rows : {1, 17, 70}) {
      const TestWeights weights(prng, dtype, 53, 333, 2);
      const std::vector<float> x = random_floats(prng, int64_t{rows} * 333);
      std::vector<std::vector<float>> results;
      for (const OpTable* table : {*real, emulated_amx_tables().at(0)}) {
        std::vector<float>& y = results.emplace_back(size_t{53} * static_cast<size_t>(rows));
        table->matmul(fresh_context(*table).ctx,
                      {.x = x.data(), .x_stride = 333, .rows = rows, .w = weights.view, .y = y.data(), .y_stride = 53});
      }
      EXPECT_TRUE(same_bits(results[0], results[1])) << dtype_info(dtype).name << " rows " << rows;
    }
  }
}

}  // namespace
}  // namespace loralei

#else

namespace loralei {
std::vector<const OpTable*> emulated_amx_tables() { return {}; }
}  // namespace loralei

#endif

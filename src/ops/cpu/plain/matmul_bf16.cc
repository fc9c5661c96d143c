// SPDX-License-Identifier: Apache-2.0
// Products of bf16 weights with inputs rounded to bf16, on the processor's dot products
// of pairs (AVX512_BF16).
//
// The number for (row, output) is one vector of sixteen sums over steps of 32 inputs in
// ascending order (VDPBF16PS: each lane adds the products of a pair of neighbours; what
// is below 2^-126 counts as zero), then reduce4's fixed order. How many rows and outputs
// share the registers, and how many steps are taken at a time, changes which numbers are
// computed together, never one of them (batch invariance).
//
// Rows meet a tile of sixteen outputs in groups: some steps of a group's inputs stay
// in the first-level cache while the tile's weights pass by as they lie in the file.
// Up to twelve rows are one group, so their weights stream from memory once; more rows
// meet a tile, which then stays in the second-level cache, six at a time, while the next
// one is called there.
#include "ops/cpu/plain/matmul_bf16.h"

#if defined(__x86_64__)

#if !defined(__clang__)
// GCC 12's own AVX-512 header fills "undefined" results from an uninitialised variable
// and then warns about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <iterator>

#include "ops/cpu/scratch.h"
#include "ops/cpu/target.h"
#include "ops/tiles.h"

LORALEI_TARGET_BEGIN_AVX512_BF16
namespace loralei {
namespace {
namespace matmul_bf16 {

// clang-format off
#include "ops/cpu/lanes/simd_avx512.inl.h"
#include "ops/cpu/plain/product_out.inl.h"
// clang-format on

using Pairs = __m512bh;  // sixteen pairs of bf16 numbers: a step of one row

constexpr int kStepInputs = kRoundedStepInputs;
constexpr int kStepBytes = kStepInputs * 2;
constexpr int kManyGroupRows = 6;               // with four outputs they fill the registers
constexpr int64_t kGroupBlockBytes = 24 << 10;  // of a group's inputs, half a first-level cache
constexpr int kSecondLevel = 2;                 // where __builtin_prefetch brings a line to

LORALEI_INLINE Pairs load_pairs(const std::byte* p) { return reinterpret_cast<Pairs>(_mm512_loadu_si512(p)); }
LORALEI_INLINE Pairs load_pairs(const std::byte* p, __mmask32 inputs) {
  return reinterpret_cast<Pairs>(_mm512_maskz_loadu_epi16(inputs, p));
}

// Rounded rows: group after group, each [steps][rows of the group][kStepInputs], with
// zeros behind a row's last input.
struct Inputs {
  std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t group_rows = 0;  // of all groups but the last

  int64_t groups() const { return (rows + group_rows - 1) / group_rows; }
  int64_t rows_of(int64_t group) const { return std::min(group_rows, rows - group * group_rows); }
  std::byte* at(int64_t group) const { return data + group * group_rows * row_bytes; }
};

// The weights of up to sixteen outputs; behind the last output its row again.
struct Tile {
  const std::byte* row[kRowTile];
  int outputs = 0;
  int64_t whole_steps = 0;
  __mmask32 rest = 0;      // inputs of a last step that is not whole
  int64_t ask_stride = 0;  // bytes from one row to the next if those that come next are asked for, else 0 (TileTuning)

  Tile(const WeightView& w, const RowTile& rows, bool ask)
      : outputs(rows.count),
        whole_steps(w.cols / kStepInputs),
        rest((__mmask32{1} << w.cols % kStepInputs) - 1),
        ask_stride(ask ? row_bytes(w.dtype, w.cols) : 0) {
    for (int o = 0; o < kRowTile; ++o) row[o] = rows.data + std::min(o, outputs - 1) * row_bytes(w.dtype, w.cols);
  }
  int64_t steps() const { return whole_steps + (rest != 0 ? 1 : 0); }
};

// The tile that comes next, asked for some lines at each call.
struct TileAhead {
  const std::byte* at = nullptr;
  int64_t lines = 0;
  int64_t each = 0;

  LORALEI_INLINE void fetch() {
    for (int64_t i = 0; i < each && lines > 0; ++i, --lines, at += 64) __builtin_prefetch(at, 0, kSecondLevel);
  }
};

// sums [kRows][kOutputs] += products of the steps [step, end) of outputs from `first` on
// with a group's inputs.
template <int kOutputs, int kRows>
LORALEI_INLINE void add_steps(const Tile& tile, int first, const std::byte* inputs, int64_t step, int64_t end,
                              F (&sums)[kRows][kOutputs]) {
  const int64_t whole = std::min(end, tile.whole_steps);
  const std::byte* const* const rows = tile.row + first;
  for (; step < whole; ++step) {
    if (tile.ask_stride != 0) {
      LORALEI_UNROLL
      for (int o = 0; o < kOutputs; ++o)
        __builtin_prefetch(rows[o] + kOutputs * tile.ask_stride + step * kStepBytes, 0, kSecondLevel);
    }
    Pairs weights[kOutputs];
    LORALEI_UNROLL
    for (int o = 0; o < kOutputs; ++o) weights[o] = load_pairs(rows[o] + step * kStepBytes);
    LORALEI_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Pairs x = load_pairs(inputs + (step * kRows + r) * kStepBytes);
      LORALEI_UNROLL
      for (int o = 0; o < kOutputs; ++o) sums[r][o] = _mm512_dpbf16_ps(sums[r][o], x, weights[o]);
    }
  }
  if (step == end) return;
  // Not unrolled, it would make the compiler keep the sums in memory, above too.
  LORALEI_UNROLL
  for (int o = 0; o < kOutputs; ++o) {
    const Pairs weights = load_pairs(rows[o] + step * kStepBytes, tile.rest);
    LORALEI_UNROLL
    for (int r = 0; r < kRows; ++r)
      sums[r][o] = _mm512_dpbf16_ps(sums[r][o], load_pairs(inputs + (step * kRows + r) * kStepBytes), weights);
  }
}

// A group of kRows rows from `row` on, kOutputs outputs at a time. `waiting`:
// [kRows][kRowTile][kLanes].
template <int kOutputs, int kRows>
void group_product(const Tile& tile, const std::byte* inputs, int64_t row, const ProductOut& out, float* waiting,
                   TileAhead& ahead) {
  constexpr int64_t kBlockSteps = kGroupBlockBytes / (kRows * kStepBytes);
  constexpr int64_t kWaitingStride = kRowTile * kLanes;
  static_assert(kRowTile % kOutputs == 0 && kRows * kWaitingStride * 4 <= rounded_worker_bytes());
  const int64_t steps = tile.steps();
  for (int64_t step = 0; step < steps; step += kBlockSteps) {
    for (int first = 0; first < tile.outputs; first += kOutputs) {
      ahead.fetch();
      float* const held = waiting + first * kLanes;
      F sums[kRows][kOutputs];
      LORALEI_UNROLL
      for (int r = 0; r < kRows; ++r) {
        LORALEI_UNROLL
        for (int o = 0; o < kOutputs; ++o)
          sums[r][o] = step == 0 ? zero() : load(held + r * kWaitingStride + o * kLanes);
      }
      add_steps<kOutputs, kRows>(tile, first, inputs, step, std::min(step + kBlockSteps, steps), sums);
      LORALEI_UNROLL
      for (int r = 0; r < kRows; ++r) {
        LORALEI_UNROLL
        for (int o = 0; o < kOutputs; ++o) store(held + r * kWaitingStride + o * kLanes, sums[r][o]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) write_lane_sums(waiting + r * kWaitingStride, tile.outputs, row + r, out);
}

// The fewer the rows, the more outputs are in flight, up to what the registers hold.
using GroupProduct = void (*)(const Tile&, const std::byte*, int64_t, const ProductOut&, float*, TileAhead&);
constexpr GroupProduct kGroupProducts[kRoundedGroupRows] = {
    group_product<8, 1>, group_product<8, 2>,  group_product<4, 3>,  group_product<4, 4>,
    group_product<4, 5>, group_product<4, 6>,  group_product<2, 7>,  group_product<2, 8>,
    group_product<2, 9>, group_product<2, 10>, group_product<2, 11>, group_product<2, 12>};
// One row of weights after the other, where they stream from memory and prefetchers stay
// close (TileTuning).
constexpr GroupProduct kProductsInOrder[] = {group_product<1, 1>, group_product<1, 2>, group_product<1, 3>};

// A tile and some groups of the rows.
void tile_product(const Tile& tile, const Inputs& inputs, int64_t group, int64_t end, const ProductOut& out,
                  float* waiting, TileAhead ahead) {
  for (; group < end; ++group) {
    const int64_t rows = inputs.rows_of(group);
    const bool in_order = tile.ask_stride != 0 && rows <= std::ssize(kProductsInOrder);
    (in_order ? kProductsInOrder : kGroupProducts)[rows - 1](tile, inputs.at(group), group * inputs.group_rows, out,
                                                             waiting, ahead);
  }
}

LORALEI_INLINE void store_rounded(std::byte* to, F low, F high) {
  _mm512_storeu_si512(to, reinterpret_cast<I>(_mm512_cvtne2ps_pbh(high, low)));
}

// One row, `stride` bytes from step to step.
void round_row(const float* x, int64_t cols, int64_t stride, std::byte* to) {
  for (; cols >= kStepInputs; cols -= kStepInputs, x += kStepInputs, to += stride)
    store_rounded(to, load(x), load(x + kLanes));
  if (cols == 0) return;
  const int low = std::min(static_cast<int>(cols), kLanes);
  store_rounded(to, load_n(x, low), load_n(x + low, static_cast<int>(cols) - low));
}

void round_rows(OpContext& ctx, const MatmulArgs& args, int64_t first_row, const Inputs& inputs) {
  constexpr int64_t kGrainInputs = 1 << 15;  // less is not worth waking anybody
  ctx.pool->parallel_for(inputs.rows, 1 + kGrainInputs / args.w.cols, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t group = row / inputs.group_rows, index = row % inputs.group_rows;
      round_row(args.x + (first_row + row) * args.x_stride, args.w.cols, inputs.rows_of(group) * kStepBytes,
                inputs.at(group) + index * kStepBytes);
    }
  });
}

void matmul(OpContext& ctx, const MatmulArgs& args) {
  if (args.rows <= 0 || args.w.rows <= 0) return;
  ++ctx.op_count;
  Inputs inputs{.row_bytes = rounded_row_bytes(args.w.cols)};
  const int64_t part_rows = std::min<int64_t>(args.rows, kRoundedPartRows);
  const Scratch scratch(ctx, part_rows * inputs.row_bytes, rounded_worker_bytes());
  inputs.data = scratch.shared<std::byte>();
  const int64_t tiles = tile_count(args.w);
  for (int64_t first_row = 0; first_row < args.rows; first_row += part_rows) {
    inputs.rows = std::min(part_rows, args.rows - first_row);
    const bool one_group = inputs.rows <= kRoundedGroupRows;
    inputs.group_rows = one_group ? inputs.rows : kManyGroupRows;
    round_rows(ctx, args, first_row, inputs);
    const int64_t splits = row_splits(tiles, inputs.rows, ctx.pool->threads());
    const int64_t groups = (inputs.groups() + splits - 1) / splits;
    ctx.pool->parallel_for_runs(tiles * splits, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t item = begin; item < end; ++item) {
        const RowTile rows = row_tile(args.w, item % tiles);
        TileAhead ahead;
        if (!one_group && item + 1 < end) {
          const RowTile next = row_tile(args.w, (item + 1) % tiles);
          ahead.at = next.data;
          ahead.lines = next.count * row_bytes(args.w.dtype, args.w.cols) / 64;
          ahead.each = 1 + ahead.lines / (groups * kRowTile / 4);
        }
        const int64_t group = item / tiles * groups;
        const ProductOut out{args.y + first_row * args.y_stride + rows.output, args.y_stride,
                             args.bias != nullptr ? args.bias + rows.output : nullptr, args.accumulate};
        tile_product(Tile(args.w, rows, one_group && ctx.tuning.ask_for_rows), inputs, group,
                     std::min(group + groups, inputs.groups()), out, scratch.worker<float>(worker), ahead);
      }
    });
  }
}

}  // namespace matmul_bf16
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

namespace loralei {
void matmul_rounded_bf16(OpContext& ctx, const MatmulArgs& args) { matmul_bf16::matmul(ctx, args); }
}  // namespace loralei

#endif

// SPDX-License-Identifier: Apache-2.0
#include "ops/tile_tuning.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "device/host/arena.h"
#include "device/host/isa.h"
#include "ops/op_table.h"
#include "tensor/tile_layout.h"

namespace loralei {
namespace {

constexpr int32_t kOut = 512, kIn = 2048;  // small enough to stay in a cache: what is compared is computing
constexpr int32_t kRows[] = {12, 16, 32, 64};
constexpr int kRepeats = 3;
constexpr int32_t kFewRows = 8;
constexpr int kFewRepeats = 12;    // of some ten microseconds each
constexpr double kClearly = 0.98;  // of the time: what is known of the processor stays unless the other way is faster

struct Trial {
  HostBuffer weights;  // zeros: no kernel's time depends on the numbers
  WeightPanel panel;
  std::vector<float> x, y;
};

double seconds(OpContext& ctx, const OpTable& table, DType dtype, int32_t rows, Trial& trial, const Clock& clock) {
  const TileProduct product{{dtype, LayoutId::kTile16, kOut, kIn, {&trial.panel, 1}}, nullptr, trial.y.data(), kOut};
  const double start_s = clock.now_s();
  table.matmul_tiles(ctx, {.x = trial.x.data(), .x_stride = kIn, .rows = rows, .products = {&product, 1}});
  return clock.now_s() - start_s;
}

// The fewest rows from which on the matrix unit is faster at every size tried.
int32_t matrix_rows(OpContext& ctx, const OpTable& table, DType dtype, Trial& trial, const Clock& clock) {
  int32_t& threshold = ctx.tuning.matrix_rows[static_cast<size_t>(dtype)];
  int32_t from = std::numeric_limits<int32_t>::max();
  for (auto rows = std::rbegin(kRows); rows != std::rend(kRows); ++rows) {
    double vectors_s = std::numeric_limits<double>::max(), matrix_s = vectors_s;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      threshold = std::numeric_limits<int32_t>::max();
      vectors_s = std::min(vectors_s, seconds(ctx, table, dtype, *rows, trial, clock));
      threshold = 1;
      matrix_s = std::min(matrix_s, seconds(ctx, table, dtype, *rows, trial, clock));
    }
    if (matrix_s >= vectors_s) break;
    from = *rows;
  }
  return from;
}

// Whether few rows are faster with their sums in registers.
bool sums_in_registers(OpContext& ctx, const OpTable& table, DType dtype, Trial& trial, const Clock& clock) {
  const bool known = ctx.tuning.sums_in_registers;
  double known_s = std::numeric_limits<double>::max(), other_s = known_s;
  for (int repeat = 0; repeat < kFewRepeats; ++repeat) {
    ctx.tuning.sums_in_registers = known;
    known_s = std::min(known_s, seconds(ctx, table, dtype, kFewRows, trial, clock));
    ctx.tuning.sums_in_registers = !known;
    other_s = std::min(other_s, seconds(ctx, table, dtype, kFewRows, trial, clock));
  }
  ctx.tuning.sums_in_registers = known;
  return other_s < kClearly * known_s ? !known : known;
}

}  // namespace

// Intel's prefetchers run far ahead of a stream within its page, so it is enough to
// call lines to the first-level cache. AMD's stay close: lines are asked for about as
// early as memory takes to answer, on Zen 3 best into its second-level cache. Zen 4's
// prefetchers alone are faster than being asked as long as little is computed for each
// line; large blocks and those of three sections, which take many lines on their way,
// are best brought to its second-level cache. AMD's dot products leave two of its four
// vector units free, which unpack.
TileTuning::TileTuning() {
  matrix_rows.fill(12);
  const bool amd = host_vendor() == CpuVendor::kAmd;
  const bool zen3_or_4 = amd && host_family() == 25, zen4 = zen3_or_4 && host_isa().avx512;
  packed_rows = amd ? 16 : 8;
  sums_in_registers = amd;
  tiles_asked.fill({.ahead_bytes = amd ? 3584 : 896});
  unasked_rows.fill(0);
  ask_for_rows = amd;
  factors_to_second_level = zen4;
  if (zen3_or_4 && !zen4) tiles_asked.fill({.ahead_bytes = 2240, .second_level = true});
  if (!zen4) return;
  for (const DType format : {DType::kQ8_0, DType::kQ5_K, DType::kQ6_K})
    tiles_asked[static_cast<size_t>(format)].second_level = true;
  unasked_rows[static_cast<size_t>(DType::kQ8_0)] = 4;
  for (const DType format : {DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kInt4G})
    unasked_rows[static_cast<size_t>(format)] = 2;
}

void tune_tiles(OpContext& ctx, const OpTable& table, std::span<const DType> formats, const Clock& clock) {
  if (!table.has_matrix_unit && !table.has_register_sums) return;
  // With scratch for its own sizes, which a small model's would not hold.
  OpContext own{.pool = ctx.pool, .tuning = ctx.tuning};
  const OpLimits limits{.rows_max = kRows[std::size(kRows) - 1],
                        .in_max = kIn,
                        .heads = 1,
                        .kv_heads = 1,
                        .head_dim = 64,
                        .rank_max = 1,
                        .segments_max = 1,
                        .threads = ctx.pool->threads()};
  auto scratch = HostBuffer::allocate(table.scratch_bytes(limits));
  if (!scratch.ok()) return;
  own.scratch = scratch->bytes();
  bool sums_tried = !table.has_register_sums;
  for (const DType dtype : formats) {
    if (!has_tiles(dtype)) continue;
    const bool try_sums = !sums_tried && dtype_info(dtype).block_elems == kActivationBlock;
    if (!table.has_matrix_unit && !try_sums) continue;
    auto weights = HostBuffer::allocate(matrix_bytes(dtype, LayoutId::kTile16, kOut, kIn));
    if (!weights.ok()) return;
    Trial trial;
    trial.weights = std::move(*weights);
    trial.panel = {trial.weights.data(), 0, kOut};
    trial.x.assign(size_t{kRows[std::size(kRows) - 1]} * kIn, 1.0f);
    trial.y.resize(size_t{kRows[std::size(kRows) - 1]} * kOut);
    if (try_sums) {
      ctx.tuning.sums_in_registers = sums_in_registers(own, table, dtype, trial, clock);
      sums_tried = true;
    }
    if (table.has_matrix_unit)
      ctx.tuning.matrix_rows[static_cast<size_t>(dtype)] = matrix_rows(own, table, dtype, trial, clock);
  }
}

}  // namespace loralei

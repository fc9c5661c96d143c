// SPDX-License-Identifier: Apache-2.0
// Integer products with AVX2.
#include "ops/cpu/tiles/tile_table.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>
#include <cstring>
#include <limits>
#include <span>

#include "ops/cpu/scratch.h"
#include "ops/cpu/target.h"
#include "ops/cpu/tiles/activations.h"
#include "ops/tiles.h"
#include "tensor/small_blocks.h"
#include "tensor/tile_layout.h"

LORALEI_TARGET_BEGIN_AVX2
namespace loralei {
namespace {
namespace tiles_avx2 {

// Each body uses the ones above it, hence their order.
// clang-format off
#include "ops/cpu/lanes/simd_avx2.inl.h"
#include "ops/cpu/dots/in_order.inl.h"
#include "ops/cpu/dots/dot_madd256.inl.h"
#include "ops/cpu/dots/madd_in_order.inl.h"
#include "ops/cpu/dots/sums_in_memory.inl.h"
#include "ops/cpu/tiles/round_rows.inl.h"
#include "ops/cpu/tiles/tile_formats.inl.h"
#include "ops/cpu/tiles/tile_blocks.inl.h"
#include "ops/cpu/tiles/row_groups.inl.h"
#include "ops/cpu/wide/tile_wide.inl.h"
#include "ops/cpu/tiles/tile_pair.inl.h"
#include "ops/cpu/tiles/tile_packed_pairs.inl.h"
#include "ops/cpu/wide/tile_wide_pairs.inl.h"
#include "ops/cpu/wide/tile_wide_groups.inl.h"
#include "ops/cpu/wide/tile_wide_matmul.inl.h"
#include "ops/cpu/tiles/tile_matmul.inl.h"
#include "ops/cpu/tiles/tile_matmul_runs.inl.h"
// clang-format on

}  // namespace tiles_avx2
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

namespace loralei {
void matmul_tiles_avx2(OpContext& ctx, const TileMatmulArgs& args) { tiles_avx2::matmul_tiles(ctx, args); }
void matmul_tile_runs_avx2(OpContext& ctx, const TileRunsArgs& args) { tiles_avx2::matmul_tile_runs(ctx, args); }
}  // namespace loralei

#endif

// SPDX-License-Identifier: Apache-2.0
// Integer products with AVX-512 VNNI.
#include "ops/cpu/tiles/tile_table.h"

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
#include <limits>
#include <span>

#include "ops/cpu/scratch.h"
#include "ops/cpu/target.h"
#include "ops/cpu/tiles/activations.h"
#include "ops/tiles.h"
#include "tensor/small_blocks.h"
#include "tensor/tile_layout.h"

LORALEI_TARGET_BEGIN_VNNI
namespace loralei {
namespace {
namespace tiles_avx512_vnni {

// Each body uses the ones above it, hence their order.
// clang-format off
#include "ops/cpu/lanes/simd_avx512.inl.h"
#include "ops/cpu/dots/dot_vnni512.inl.h"
#include "ops/cpu/dots/dot_rows.inl.h"
#include "ops/cpu/tiles/round_rows.inl.h"
#include "ops/cpu/tiles/tile_formats.inl.h"
#include "ops/cpu/tiles/tile_blocks.inl.h"
#include "ops/cpu/tiles/tile_product.inl.h"
#include "ops/cpu/tiles/row_groups.inl.h"
#include "ops/cpu/dots/in_order.inl.h"
#include "ops/cpu/dots/dot_in_order.inl.h"
#include "ops/cpu/dots/sums_in_order512.inl.h"
#include "ops/cpu/wide/tile_wide.inl.h"
#include "ops/cpu/wide/wide_dots_vnni.inl.h"
#include "ops/cpu/wide/tile_wide_vector.inl.h"
#include "ops/cpu/wide/tile_wide_groups.inl.h"
#include "ops/cpu/tiles/tile_pair.inl.h"
#include "ops/cpu/tiles/tile_packed.inl.h"
#include "ops/cpu/wide/tile_wide_matmul.inl.h"
#include "ops/cpu/tiles/tile_matmul.inl.h"
#include "ops/cpu/tiles/tile_matmul_runs.inl.h"
// clang-format on

}  // namespace tiles_avx512_vnni
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

namespace loralei {
void matmul_tiles_avx512_vnni(OpContext& ctx, const TileMatmulArgs& args) {
  tiles_avx512_vnni::matmul_tiles(ctx, args);
}
void matmul_tile_runs_avx512_vnni(OpContext& ctx, const TileRunsArgs& args) {
  tiles_avx512_vnni::matmul_tile_runs(ctx, args);
}
}  // namespace loralei

#endif

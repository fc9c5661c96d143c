// SPDX-License-Identifier: Apache-2.0
// Integer products with NEON and dotprod.
#include "ops/cpu/tiles/tile_table.h"

#if defined(__aarch64__)

#include <arm_neon.h>

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

LORALEI_TARGET_BEGIN_DOTPROD
namespace loralei {
namespace {
namespace tiles_neon_dotprod {

// Each body uses the ones above it, hence their order.
// clang-format off
#include "ops/cpu/lanes/simd_neon.inl.h"
#include "ops/cpu/dots/dot_sdot.inl.h"
#include "ops/cpu/dots/dot_words_sdot.inl.h"
#include "ops/cpu/tiles/round_rows.inl.h"
#include "ops/cpu/tiles/tile_formats.inl.h"
#include "ops/cpu/tiles/tile_blocks.inl.h"
#include "ops/cpu/tiles/tile_product.inl.h"
#include "ops/cpu/tiles/row_groups.inl.h"
#include "ops/cpu/tiles/tile_vector.inl.h"
#include "ops/cpu/tiles/tile_matmul.inl.h"
#include "ops/cpu/tiles/tile_matmul_runs.inl.h"
// clang-format on

}  // namespace tiles_neon_dotprod
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

namespace loralei {
void matmul_tiles_neon_dotprod(OpContext& ctx, const TileMatmulArgs& args) {
  tiles_neon_dotprod::matmul_tiles(ctx, args);
}
void matmul_tile_runs_neon_dotprod(OpContext& ctx, const TileRunsArgs& args) {
  tiles_neon_dotprod::matmul_tile_runs(ctx, args);
}
}  // namespace loralei

#endif

// SPDX-License-Identifier: Apache-2.0
// The integer products of each instruction set (OpTable::matmul_tiles and
// matmul_tile_runs). Call what the machine offers.
#pragma once

#include "ops/op_table.h"

namespace loralei {

void matmul_tiles_avx2(OpContext& ctx, const TileMatmulArgs& args);
void matmul_tiles_avx2_vnni(OpContext& ctx, const TileMatmulArgs& args);
void matmul_tiles_avx512(OpContext& ctx, const TileMatmulArgs& args);
void matmul_tiles_avx512_vnni(OpContext& ctx, const TileMatmulArgs& args);
void matmul_tiles_amx(OpContext& ctx, const TileMatmulArgs& args);
void matmul_tiles_neon(OpContext& ctx, const TileMatmulArgs& args);
void matmul_tiles_neon_dotprod(OpContext& ctx, const TileMatmulArgs& args);
void matmul_tiles_neon_i8mm(OpContext& ctx, const TileMatmulArgs& args);

void matmul_tile_runs_avx2(OpContext& ctx, const TileRunsArgs& args);
void matmul_tile_runs_avx2_vnni(OpContext& ctx, const TileRunsArgs& args);
void matmul_tile_runs_avx512(OpContext& ctx, const TileRunsArgs& args);
void matmul_tile_runs_avx512_vnni(OpContext& ctx, const TileRunsArgs& args);
void matmul_tile_runs_amx(OpContext& ctx, const TileRunsArgs& args);
void matmul_tile_runs_neon(OpContext& ctx, const TileRunsArgs& args);
void matmul_tile_runs_neon_dotprod(OpContext& ctx, const TileRunsArgs& args);
void matmul_tile_runs_neon_i8mm(OpContext& ctx, const TileRunsArgs& args);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// The integer products of each instruction set (OpTable::matmul_tiles). Call what
// the machine offers.
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

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// DType: the number formats of weights and caches, with their block geometry.
//
// Pure functions, any thread. A row of `cols` numbers takes row_bytes(dtype, cols);
// quantised rows are whole blocks, so cols must be a multiple of block_elems (row_bytes
// CHECKs it: callers validate file shapes before).
// kI8 and kF8 (e4m3: a sign, four bits of exponent, three of mantissa; tensor/codec.h)
// are formats of the KV cache alone: bytes whose scale lies elsewhere (ops/args.h);
// no file holds them. Block layouts are those of GGUF (ggml's published block structs),
// little-endian. Two are our own, for numbers of checkpoints that no format of GGUF
// keeps:
//
//   kInt4G  f16 d, f16 z, nibbles as those of q4_0: (q - z) * d
//   kF8G    f32 d, 128 e4m3: number * d; computed with as plain numbers, not in tiles
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/check.h"

namespace loralei {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kI8,
  kF8,
  kQ2_K,
  kQ3_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kInt4G,
  kF8G
};
inline constexpr int kDTypeCount = 20;

struct DTypeInfo {
  const char* name;  // "bf16", "q4_k", ...
  int block_elems;   // numbers per block; 1 for plain formats
  int block_bytes;
};

constexpr DTypeInfo dtype_info(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {"f32", 1, 4};
    case DType::kF16:
      return {"f16", 1, 2};
    case DType::kBF16:
      return {"bf16", 1, 2};
    case DType::kQ8_0:
      return {"q8_0", 32, 34};
    case DType::kQ4_0:
      return {"q4_0", 32, 18};
    case DType::kQ4_1:
      return {"q4_1", 32, 20};
    case DType::kQ5_0:
      return {"q5_0", 32, 22};
    case DType::kQ5_1:
      return {"q5_1", 32, 24};
    case DType::kQ4_K:
      return {"q4_k", 256, 144};
    case DType::kQ5_K:
      return {"q5_k", 256, 176};
    case DType::kQ6_K:
      return {"q6_k", 256, 210};
    case DType::kI8:
      return {"int8", 1, 1};
    case DType::kF8:
      return {"fp8", 1, 1};
    case DType::kQ2_K:
      return {"q2_k", 256, 84};
    case DType::kQ3_K:
      return {"q3_k", 256, 110};
    case DType::kIQ4_NL:
      return {"iq4_nl", 32, 18};
    case DType::kIQ4_XS:
      return {"iq4_xs", 256, 136};
    case DType::kMXFP4:
      return {"mxfp4", 32, 17};
    case DType::kInt4G:
      return {"int4g", 32, 20};
    case DType::kF8G:
      return {"fp8g", 128, 132};
  }
  return {"?", 1, 4};
}

constexpr bool is_quantised(DType dtype) { return dtype_info(dtype).block_elems > 1; }

// Whether its rows may lie in tiles (tensor/tile_layout.h) and meet inputs as integers.
constexpr bool has_tiles(DType dtype) { return is_quantised(dtype) && dtype != DType::kF8G; }

// A cache's vector in this format has a scale of its own.
constexpr bool has_vector_scale(DType dtype) { return dtype == DType::kI8 || dtype == DType::kF8; }

constexpr bool fits_blocks(DType dtype, int64_t cols) { return cols >= 0 && cols % dtype_info(dtype).block_elems == 0; }

constexpr int64_t row_bytes(DType dtype, int64_t cols) {
  const DTypeInfo info = dtype_info(dtype);
  CHECK(fits_blocks(dtype, cols));
  return cols / info.block_elems * info.block_bytes;
}

// "bf16" -> kBF16; case-insensitive. nullopt for an unknown name.
std::optional<DType> parse_dtype(std::string_view name);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// KvStreams: what blocks hold beside K and V where prefixes are lent (kv/README): the
// residual stream of their positions before some layers, the levels. A prefill that has
// the base's K and V below a level begins there.
//
//   block | slices (KvView) | level 0: [kKvBlockTokens, dim] bf16 | level 1 | ...
//
// bf16, since a residual stream may be larger than any f16.
//
// Plain values; no failure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/limits.h"

namespace loralei {

struct KvStreamShape {
  static constexpr int32_t kLevelsMost = 4;
  int32_t dim = 0;                            // of the stream; 0: nothing is lent
  int32_t levels = 0;                         // 0: no stream is kept: who borrows has all layers
  std::array<int32_t, kLevelsMost> layers{};  // [levels] ascending, the stream before each

  int64_t block_bytes() const {
    return int64_t{levels} * kKvBlockTokens * dim * static_cast<int64_t>(sizeof(uint16_t));
  }
  // How many levels lie before layer `layer` or at it, and their bytes of a block.
  int32_t levels_to(int32_t layer) const {
    int32_t count = 0;
    while (count < levels && layers[static_cast<size_t>(count)] <= layer) ++count;
    return count;
  }
  int64_t bytes_to(int32_t layer) const {
    return int64_t{levels_to(layer)} * kKvBlockTokens * dim * static_cast<int64_t>(sizeof(uint16_t));
  }
  // The level before this layer; -1: there is none.
  int32_t level_of(int32_t layer) const {
    for (int32_t level = 0; level < levels; ++level) {
      if (layers[static_cast<size_t>(level)] == layer) return level;
    }
    return -1;
  }
};

struct KvStreams {
  KvStreamShape shape;
  std::byte* base = nullptr;  // of block 0's streams
  int64_t block_stride_bytes = 0;

  // [kKvBlockTokens, dim] bf16
  uint16_t* rows(int32_t block, int32_t level) const {
    return reinterpret_cast<uint16_t*>(base + block * block_stride_bytes) + int64_t{level} * kKvBlockTokens * shape.dim;
  }
};

// What the rows of one sequence have to do with them in a step.
struct GroupStream {
  // They begin at this layer, with the stream that their blocks have before it; 0: with
  // the embedding. Else it is a level, or behind the last layer.
  int32_t begin_layer = 0;
  // The first `rows` of them are the base's below this layer: at each level up to there
  // their stream is kept in their blocks, and at this layer they go on with what was
  // kept, so that it is the same whoever computed it. kWholeStream: all of it is the
  // base's, and goes on as it is.
  int32_t base_layers = 0;
  int32_t rows = 0;
};
inline constexpr int32_t kWholeStream = INT32_MAX;

}  // namespace loralei

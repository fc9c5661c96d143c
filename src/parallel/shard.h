// SPDX-License-Identifier: Apache-2.0
// Shard: which part of a model one of several ranks computes (CaraServe §6), and how a
// matrix is cut for that.
//
//   kRows  q k v gate up, lm_head: outputs. An adapter's A is whole, its B is cut
//   kCols  o down: inputs. An adapter's A is cut, its B is whole; the parts are summed
//
// Pure values, any thread, no failure.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace loralei {

struct Shard {
  int rank = 0;
  int size = 1;
  bool whole() const { return size == 1; }
  friend bool operator==(const Shard&, const Shard&) = default;
};

// The most ranks of a group.
inline constexpr int kRanksMax = 64;

enum class Cut : uint8_t { kNone, kRows, kCols };

// [begin, begin + count) of something.
struct ShardPart {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t end() const { return begin + count; }
};

// The rank's part of `count` things, which the size divides.
inline ShardPart even_part(const Shard& shard, int64_t count) {
  CHECK(count % shard.size == 0);
  const int64_t each = count / shard.size;
  return {each * shard.rank, each};
}

// The rank's part of `count` rows in tiles of `tile`: as even as whole tiles are. The
// last tile may be short, and a rank may have none.
inline ShardPart tiled_part(const Shard& shard, int64_t count, int64_t tile) {
  const int64_t tiles = (count + tile - 1) / tile;
  const auto border = [&](int64_t rank) {
    const int64_t row = tiles * rank / shard.size * tile;
    return row < count ? row : count;
  };
  return {border(shard.rank), border(shard.rank + 1) - border(shard.rank)};
}

}  // namespace loralei

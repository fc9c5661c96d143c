// SPDX-License-Identifier: Apache-2.0
// KvTables: which layers have their K and V in one block, and so how many block tables a
// sequence has. Layers that attend to a window need the blocks of the last window only;
// in tables of their own those behind it can be given back.
//
//   place        |   0   |   1   |   2   |   3   |   4     (of 16 tokens each)
//   full table   |  b 3  |  b 9  |  b 4  |  b 7  |  b 2    layers that attend to all
//   sliding      |   -   |   -   |   -   |  b 8  |  b 1    layers of a window, in one
//   sliding      |   -   |   -   |   -   |  b 0  |  b 6    table or several
//
// A block of every table has room for the same number of layers, so that one pool serves
// all. Without windows there is one table, and a block holds all layers.
//
// Plain values, pure functions; no failure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/limits.h"

namespace loralei {

struct KvTables {
  int32_t full = 1;     // of layers that attend to all
  int32_t sliding = 0;  // of layers that attend to a window
  int32_t layers = 0;   // that a block has room for; 0: for all
  int32_t window = 0;   // tokens; the largest of the sliding layers
  int32_t rows = 0;     // that a step has at most of one sequence

  bool operator==(const KvTables&) const = default;
  bool has_windows() const { return sliding > 0; }
  int32_t count() const { return full + sliding; }
  // The first place that a row at this position, or a later one, reads in the sliding
  // tables. With no windows: 0.
  int32_t first_read(int32_t position) const {
    return has_windows() ? std::max(0, position - window + 1) / kKvBlockTokens : 0;
  }
  // Places that a sequence has in the sliding tables at most, where its steps have one
  // row each; and where they have as many as they may.
  int64_t places_least() const { return (int64_t{window} + kKvBlockTokens - 2) / kKvBlockTokens + 1; }
  int64_t places_most() const { return places_least() + (int64_t{rows} + kKvBlockTokens - 1) / kKvBlockTokens; }
  // Blocks that one sequence of so many tokens has at most, by either.
  int64_t blocks_least(int64_t tokens) const { return blocks(places_of(tokens), places_least()); }
  int64_t blocks_most(int64_t tokens) const { return blocks(places_of(tokens), places_most()); }
  // The longest sequence that has no more than so many, by blocks_most().
  int64_t tokens_within(int64_t blocks) const {
    const int64_t most = places_most();
    if (!has_windows() || blocks < count() * most) return blocks / count() * kKvBlockTokens;
    if (full == 0) return std::numeric_limits<int64_t>::max();
    return (blocks - sliding * most) / full * kKvBlockTokens;
  }
  // Blocks of so many places, of which the sliding tables have `sliding_most` at once.
  int64_t blocks(int64_t places, int64_t sliding_most) const {
    return full * places + sliding * std::min(places, sliding_most);
  }

 private:
  static int64_t places_of(int64_t tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }
};

// Where a layer's K and V lie: in the blocks of this table, as this layer of them.
struct KvPlace {
  int32_t table = 0, layer = 0;
};

// [layers]
inline std::vector<KvPlace> kv_places(const KvTables& tables, std::span<const int32_t> sliding, int32_t layers) {
  std::vector<KvPlace> places;
  int32_t before[2] = {};  // layers of each kind
  for (int32_t layer = 0; layer < layers; ++layer) {
    if (!tables.has_windows()) {
      places.push_back({0, layer});
      continue;
    }
    const bool slides = sliding[static_cast<size_t>(layer)] > 0;
    const int32_t index = before[slides ? 1 : 0]++;
    places.push_back({(slides ? tables.full : 0) + index / tables.layers, index % tables.layers});
  }
  return places;
}

// Tables for windows of [layers] tokens (0: the layer attends to all) and sequences of so
// many tokens, in steps of so many rows: few tables, and blocks with few places for
// layers that are not there. One table, as without windows, where none is shorter than
// the sequences, or nothing is gained.
inline KvTables kv_tables(std::span<const int32_t> sliding, int64_t tokens, int32_t rows) {
  constexpr int32_t kTablesMost = 8, kWastePart = 8;
  const auto layers = static_cast<int32_t>(sliding.size());
  int32_t slide = 0, window = 0;
  for (const int32_t one : sliding) {
    slide += one > 0 ? 1 : 0;
    window = std::max(window, one);
  }
  KvTables best;
  if (slide == 0 || window >= tokens) return best;
  const int32_t attend_all = layers - slide;
  const auto parts = [](int32_t count, int32_t size) { return (count + size - 1) / size; };
  for (int32_t size = layers; size > 0; --size) {
    const KvTables tables{parts(attend_all, size), parts(slide, size), size, window, rows};
    const int32_t room = tables.count() * size;
    if (tables.count() > kTablesMost || room > layers + layers / kWastePart || tables.full * size >= layers) continue;
    const bool is_first = !best.has_windows();
    const int32_t of_full = tables.full * size - best.full * best.layers;
    const int32_t of_sliding = tables.sliding * size - best.sliding * best.layers;
    if (is_first || of_full < 0 || (of_full == 0 && of_sliding < 0)) best = tables;
  }
  return best;
}

}  // namespace loralei

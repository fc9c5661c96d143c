// SPDX-License-Identifier: Apache-2.0
// TileRound: the tiles of some panels that have arrived, worked on side by side
// by all threads.
//
// Thread: one caller, which works along with the pool (null: alone).
// Ownership: borrows matrices and bytes until run() returns.
// Invariant: allocates nothing beyond the panels it was made for.
// Failure: run() answers that of one tile; those of others may not have
// been visited then.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/result.h"
#include "device/host/thread_pool.h"
#include "formats/packed_index.h"

namespace loralei {

class TileRound {
 public:
  struct Panel {
    const PackedMatrix* matrix = nullptr;
    const std::byte* stored = nullptr;
    std::byte* out = nullptr;  // where there is a place for what is made of them
    int64_t first_tile = 0;
    int64_t end = 0;  // tiles of all panels up to and with this one
  };

  explicit TileRound(size_t panels_max = 0) { panels_.reserve(panels_max); }

  void clear() { panels_.clear(); }
  size_t size() const { return panels_.size(); }
  void add(const PackedMatrix& matrix, int64_t first_tile, int64_t tiles, const std::byte* stored,
           std::byte* out = nullptr) {
    panels_.push_back({&matrix, stored, out, first_tile, (panels_.empty() ? 0 : panels_.back().end) + tiles});
  }

  // visit(panel, number): Status of the tile of that number within the panel. The round
  // is empty afterwards.
  template <typename Visit>
  Status run(ThreadPool* pool, Visit&& visit) {
    if (panels_.empty()) return {};
    std::atomic<bool> failed{false};
    Status failure;
    const auto visit_tiles = [&](int64_t begin, int64_t end, int) {
      auto panel = std::upper_bound(panels_.begin(), panels_.end(), begin,
                                    [](int64_t tile, const Panel& one) { return tile < one.end; });
      for (int64_t i = begin; i < end; ++i) {
        if (i == panel->end) ++panel;
        Status status = visit(std::as_const(*panel), i - (panel == panels_.begin() ? 0 : (panel - 1)->end));
        if (!status.ok() && !failed.exchange(true)) failure = std::move(status);
      }
    };
    const int64_t tiles = panels_.back().end;
    if (pool != nullptr) {
      pool->parallel_for(tiles, 1, visit_tiles);
    } else {
      visit_tiles(0, tiles, 0);
    }
    panels_.clear();
    return failure;
  }

 private:
  std::vector<Panel> panels_;
};

}  // namespace loralei

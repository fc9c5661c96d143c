// SPDX-License-Identifier: Apache-2.0
// PanelDecoder: the shrunk panels of one round, decoded side by side by all threads into
// memory of its own.
//
// Thread: one caller, which works along with the pool (null: alone).
// Ownership: owns the decoded bytes, valid until begin_round(); matrices and stored bytes
// are the caller's until decode() returns.
// Invariant: it holds the bytes it was made with and allocates
// nothing afterwards.
// Failure: decode() answers a sentence for a damaged tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/host/arena.h"
#include "device/host/thread_pool.h"
#include "formats/packed_index.h"
#include "weights/tile_round.h"

namespace loralei {

class PanelDecoder {
 public:
  static Result<std::unique_ptr<PanelDecoder>> create(int64_t bytes, size_t panels_max, ThreadPool* pool);

  void begin_round();
  // Whether that many tiles more can be added in this round.
  bool fits(const PackedMatrix& matrix, int64_t tiles) const;
  // Tiles that fit; answers where they will be once decode() has returned.
  const std::byte* add(const PackedMatrix& matrix, int64_t first_tile, int64_t tiles, const std::byte* stored);
  // What was added since begin_round() or the last decode().
  Status decode();

 private:
  PanelDecoder(size_t panels_max, ThreadPool* pool) : panels_max_(panels_max), pool_(pool), panels_(panels_max) {}

  HostBuffer memory_;
  const size_t panels_max_;
  ThreadPool* const pool_;
  TileRound panels_;
  int64_t used_bytes_ = 0;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// KvCoder: blocks of a cache to blobs of an arena and back, on several threads at once.
// Of holdings it knows nothing but where their integers are.
//
// By KvDelta::kPaper a delta of the arena is told from what the anchor's blob says,
// whether it has a block or not; what is encoded as one has a block, and is encoded alone
// where it is too far from its anchor. Bytes from elsewhere are always integers.
//
// Thread: one at a time; it works along with those of the pool.
// Ownership: owns the grid and what it works in; borrows arena, pool and the cache's
// bytes, which outlive it.
// Invariants: nothing is allocated after the making.
// Failure: an encode answers no bytes where a number has no integer; a decode says false
// where a blob is not whole or its anchor is another one. Then the block's bytes are
// undefined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/kv_grid.h"
#include "codec/kv_numbers.h"
#include "codec/kv_paper.h"
#include "device/host/thread_pool.h"
#include "kv/blob_arena.h"
#include "kv/block_pool.h"
#include "kv/holding_table.h"
#include "kv/sharing.h"

namespace loralei {

// Where the integers of a holding are: in a block, else in a blob; if that is a delta, in
// what its anchor has likewise.
struct KvSource {
  int32_t block = kNoBlock, blob = kNoBlob;
  bool delta = false;
  int32_t anchor_block = kNoBlock, anchor_blob = kNoBlob;
  // In the place of the two blobs: these bytes, from elsewhere.
  std::span<const std::byte> bytes, anchor_bytes;
};

struct KvEncodeJob {
  KvSource from;
  bool delta = false;  // to `anchor`, which is not a delta; kPaper: false afterwards where it became none
  KvSource anchor;
  std::span<const std::byte> blob;  // the answer, until the next call; empty: it has no integers, or is damaged
};

struct KvDecodeJob {
  KvSource from;  // a blob, of the arena or bytes
  int32_t block = kNoBlock;
  bool ok = false;  // the answer
};

KvGridShape kv_grid_shape(const KvShape& shape);

class KvCoder {
 public:
  static constexpr int kLanesMost = 8;
  // pool null: the caller's thread alone.
  KvCoder(KvGrid grid, KvDelta delta, const KvView& view, const BlobArena& arena, ThreadPool* pool);
  static int64_t scratch_bytes(const KvGridShape& shape, KvDelta delta, int threads);

  int32_t lanes() const { return static_cast<int32_t>(lanes_.size()); }
  // At most lanes() of them (CHECKed).
  void encode(std::span<KvEncodeJob> jobs);
  void decode(std::span<KvDecodeJob> jobs);

 private:
  struct Lane {
    KvNumbers numbers, anchor;
    std::vector<std::byte> in, out;  // [kv_blob_bound]
    std::vector<std::byte> block;    // kPaper: of the anchor, decoded
  };
  template <typename Body>
  void on_lanes(int64_t count, Body&& body);
  bool read(const KvSource& from, Lane& lane);
  void encode_one(KvEncodeJob& job, Lane& lane);
  bool decode_one(const KvDecodeJob& job, Lane& lane);
  KvBlockAt decoded_anchor(int32_t blob, Lane& lane);
  bool read_alone(int32_t block, int32_t blob, std::span<const std::byte> bytes, Lane& lane, KvNumbers& numbers);
  bool read_blob(int32_t blob, std::span<const std::byte> bytes, const KvNumbers* anchor, Lane& lane,
                 KvNumbers& numbers);

  KvGrid grid_;
  KvDelta delta_;
  KvView view_;
  const BlobArena& arena_;
  ThreadPool* pool_;
  std::vector<Lane> lanes_;
};

}  // namespace loralei

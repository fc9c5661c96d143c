// SPDX-License-Identifier: Apache-2.0
// BlockPool: KV blocks of kKvBlockTokens tokens, cut from one aligned allocation under a
// ledger grant; or their ids alone, where the bytes are a device's. Addresses may be set
// aside for more, so that the pool grows and shrinks in place.
//
//   base -> | block 0: layer 0 K | layer 0 V | layer 1 K | ... | block 1: ... |
//
// What a slice of it holds: KvView. Behind a block's slices lie its streams: KvStreams.
//
// Thread: the engine's; the bytes are written by the executor through view().
// Ownership: owns bytes and grant; hands out ids only.
// Invariants: every block is free or taken, never both; view() stays valid
// through resize().
// Failure: create() and resize() say with the numbers when the ledger or the system
// refuses; take() says nullopt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/limits.h"
#include "base/result.h"
#include "device/host/arena.h"
#include "kv/block_count.h"
#include "memory/ledger.h"
#include "ops/args.h"
#include "ops/kv_streams.h"
#include "ops/kv_tables.h"

namespace loralei {

struct KvShape {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kF16;
  KvStreamShape streams = {};
  KvTables tables = {};

  int32_t block_layers() const { return tables.has_windows() ? tables.layers : layers; }
};

// Bytes of one block: of all layers, its streams among them, or of those of one table
// (KvTables); rounded up to a cache line.
int64_t kv_block_bytes(const KvShape& shape);

class BlockPool {
 public:
  // `capacity`: the most that resize() can make of it, if that is more than `blocks`.
  // Where the system refuses so many addresses, `blocks` is the most.
  static Result<std::unique_ptr<BlockPool>> create(const KvShape& shape, int32_t blocks, Ledger& ledger,
                                                   int32_t capacity = 0);
  // Ids of blocks whose bytes are elsewhere: the view is empty. With a ledger they count
  // there, as blocks of so many bytes do. CHECKs blocks > 0, and that they have room.
  struct Counted {
    Ledger* ledger = nullptr;
    int64_t block_bytes = 0;
    int32_t capacity = 0;
  };
  static std::unique_ptr<BlockPool> create_ids(int32_t blocks, const Counted& counted);

  KvView view() const { return view_; }
  const KvShape& shape() const { return shape_; }  // of ids: nothing
  const KvStreams& streams() const { return streams_; }
  int32_t total() const { return total_; }
  int32_t capacity() const { return capacity_; }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int64_t bytes() const { return grant_.bytes(); }
  int64_t block_bytes() const { return block_bytes_; }  // 0: of ids that count nowhere

  std::optional<int32_t> take();
  void give_back(int32_t block);
  bool is_taken(int32_t block) const { return taken_[static_cast<size_t>(block)] != 0; }
  // `blocks` in all from now on. Taken ones that have no place any more move,
  // bytes and all, to the lowest free ones; memory above goes back to the system and
  // the ledger. Answers the id now of each block before [total]. CHECKs that no more
  // are taken. Refused (growing only: beyond capacity(), by the ledger or the system)
  // it changes nothing.
  Result<std::vector<int32_t>> resize(int32_t blocks);
  void check() const;

 private:
  explicit BlockPool(int32_t blocks);
  void list_free();

  Grant grant_;
  int64_t block_bytes_ = 0;
  HostBuffer bytes_;
  KvShape shape_;
  KvView view_;
  KvStreams streams_;
  int32_t total_ = 0, capacity_ = 0;
  std::vector<int32_t> free_;   // a stack: the block given back last is the warmest
  std::vector<uint8_t> taken_;  // [total]
};

}  // namespace loralei

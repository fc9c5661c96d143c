// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <string>
#include <utility>

#include "base/units.h"

namespace loralei {
namespace {

constexpr int64_t kAlignment = 64;

}  // namespace

int64_t kv_block_bytes(const KvShape& shape) {
  const int64_t bytes = int64_t{2} * shape.layers * shape.kv_heads * kv_head_bytes(shape.dtype, shape.head_dim);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

BlockPool::BlockPool(int32_t blocks) : total_(blocks), taken_(static_cast<size_t>(blocks), 0) {
  free_.reserve(static_cast<size_t>(blocks));
  for (int32_t block = blocks - 1; block >= 0; --block) free_.push_back(block);
}

std::unique_ptr<BlockPool> BlockPool::create_ids(int32_t blocks) {
  CHECK(blocks > 0);
  return std::unique_ptr<BlockPool>(new BlockPool(blocks));
}

Result<std::unique_ptr<BlockPool>> BlockPool::create(const KvShape& shape, int32_t blocks, Ledger& ledger) {
  CHECK(shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0 && !is_quantised(shape.dtype));
  if (blocks < 1) return invalid_argument("the KV cache must hold at least one block; give it more memory");
  const int64_t block_bytes = kv_block_bytes(shape);
  const int64_t bytes = block_bytes * blocks;
  auto grant = ledger.try_grant(MemoryUse::kKv, bytes);
  if (!grant) {
    return too_large("the KV cache needs " + format_bytes(bytes) + " (" + std::to_string(blocks) +
                     " blocks), but only " + format_bytes(ledger.available_bytes(MemoryUse::kKv)) +
                     " of the memory budget are left for it");
  }
  std::unique_ptr<BlockPool> pool(new BlockPool(blocks));
  TRY_ASSIGN(pool->bytes_, HostBuffer::allocate(bytes));
  pool->grant_ = std::move(*grant);
  KvView& view = pool->view_;
  view.base = pool->bytes_.data();
  view.dtype = shape.dtype;
  view.kv_heads = shape.kv_heads;
  view.head_dim = shape.head_dim;
  view.head_stride_bytes = kv_head_bytes(shape.dtype, shape.head_dim);
  view.kv_stride_bytes = shape.kv_heads * view.head_stride_bytes;
  view.layer_stride_bytes = 2 * view.kv_stride_bytes;
  view.block_stride_bytes = block_bytes;
  return pool;
}

std::optional<int32_t> BlockPool::take() {
  if (free_.empty()) return std::nullopt;
  const int32_t block = free_.back();
  free_.pop_back();
  taken_[static_cast<size_t>(block)] = 1;
  return block;
}

void BlockPool::give_back(int32_t block) {
  CHECK(block >= 0 && block < total_ && is_taken(block));
  taken_[static_cast<size_t>(block)] = 0;
  free_.push_back(block);
}

void BlockPool::check() const {
  int32_t taken = 0;
  for (const uint8_t flag : taken_) taken += flag;
  CHECK(taken + free() == total_);
  for (const int32_t block : free_) CHECK(!is_taken(block));
}

}  // namespace loralei

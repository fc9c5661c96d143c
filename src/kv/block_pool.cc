// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/units.h"

namespace loralei {
namespace {

constexpr int64_t kAlignment = 64;

constexpr int64_t padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Of the K and V of a block's layers.
int64_t slice_bytes(const KvShape& shape) {
  return int64_t{2} * shape.block_layers() * shape.kv_heads * kv_head_bytes(shape.dtype, shape.head_dim);
}

}  // namespace

int64_t kv_block_bytes(const KvShape& shape) {
  return padded(slice_bytes(shape)) + padded(shape.streams.block_bytes());
}

BlockPool::BlockPool(int32_t blocks) : total_(blocks), capacity_(blocks), taken_(static_cast<size_t>(blocks), 0) {
  list_free();
}

std::unique_ptr<BlockPool> BlockPool::create_ids(int32_t blocks, const Counted& counted) {
  CHECK(blocks > 0);
  std::unique_ptr<BlockPool> pool(new BlockPool(blocks));
  pool->capacity_ = std::max(blocks, counted.capacity);
  if (counted.ledger == nullptr) return pool;
  pool->block_bytes_ = counted.block_bytes;
  auto grant = counted.ledger->try_grant(MemoryUse::kKv, counted.block_bytes * blocks);
  CHECK(grant);
  pool->grant_ = *std::move(grant);
  return pool;
}

Result<std::unique_ptr<BlockPool>> BlockPool::create(const KvShape& shape, int32_t blocks, Ledger& ledger,
                                                     int32_t capacity) {
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
  pool->grant_ = std::move(*grant);
  pool->block_bytes_ = block_bytes;
  pool->capacity_ = std::max(blocks, capacity);
  auto reserved = HostBuffer::reserve(block_bytes * pool->capacity_);
  if (!reserved.ok()) {
    pool->capacity_ = blocks;
    reserved = HostBuffer::reserve(bytes);
  }
  TRY_ASSIGN(pool->bytes_, std::move(reserved));
  TRY(pool->bytes_.resize(bytes));
  KvView& view = pool->view_;
  view.base = pool->bytes_.data();
  view.dtype = shape.dtype;
  view.kv_heads = shape.kv_heads;
  view.head_dim = shape.head_dim;
  view.head_stride_bytes = kv_head_bytes(shape.dtype, shape.head_dim);
  view.kv_stride_bytes = shape.kv_heads * view.head_stride_bytes;
  view.layer_stride_bytes = 2 * view.kv_stride_bytes;
  view.block_stride_bytes = block_bytes;
  pool->shape_ = shape;
  pool->streams_ = {
      .shape = shape.streams, .base = view.base + padded(slice_bytes(shape)), .block_stride_bytes = block_bytes};
  return pool;
}

// The lowest is taken next.
void BlockPool::list_free() {
  free_.clear();
  free_.reserve(static_cast<size_t>(total_));
  for (int32_t block = total_ - 1; block >= 0; --block) {
    if (!is_taken(block)) free_.push_back(block);
  }
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

Result<std::vector<int32_t>> BlockPool::resize(int32_t blocks) {
  CHECK(blocks >= 1 && total_ - free() <= blocks);
  if (blocks > capacity_) {
    return too_large("the KV cache cannot grow to " + std::to_string(blocks) +
                     " blocks: addresses were set aside for " + std::to_string(capacity_) + " when it started");
  }
  const int64_t before = grant_.bytes(), bytes = block_bytes_ * blocks;
  if (bytes > before && !grant_.grow_to(bytes)) {
    return too_large("the KV cache has " + format_bytes(before) + " and cannot grow to " + format_bytes(bytes) + " (" +
                     std::to_string(blocks) + " blocks): the memory budget does not have so much left for it");
  }
  std::vector<int32_t> names(static_cast<size_t>(total_));
  std::iota(names.begin(), names.end(), 0);
  for (int32_t block = blocks, place = 0; block < total_; ++block) {
    if (!is_taken(block)) continue;
    while (is_taken(place)) ++place;
    if (view_.base != nullptr)
      std::memcpy(view_.slice(place, 0, 0), view_.slice(block, 0, 0), static_cast<size_t>(block_bytes_));
    taken_[static_cast<size_t>(place)] = 1;
    names[static_cast<size_t>(block)] = place;
  }
  if (view_.base != nullptr) {
    if (Status resized = bytes_.resize(bytes); !resized.ok()) {
      grant_.shrink_to(before);
      return std::move(resized).error();
    }
  }
  grant_.shrink_to(bytes);
  total_ = blocks;
  taken_.resize(static_cast<size_t>(blocks), 0);
  list_free();
  return names;
}

void BlockPool::check() const {
  int32_t taken = 0;
  for (const uint8_t flag : taken_) taken += flag;
  CHECK(taken + free() == total_ && total_ <= capacity_ && std::ssize(taken_) == total_);
  CHECK(bytes() == block_bytes_ * total_ && (view_.base == nullptr || bytes() == bytes_.size_bytes()));
  for (const int32_t block : free_) CHECK(!is_taken(block));
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_coder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "codec/kv_blob.h"

namespace loralei {

KvGridShape kv_grid_shape(const KvShape& shape) {
  return {.layers = shape.layers, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim, .dtype = shape.dtype};
}

KvCoder::KvCoder(KvGrid grid, const KvView& view, const BlobArena& arena, ThreadPool* pool)
    : grid_(std::move(grid)), view_(view), arena_(arena), pool_(pool) {
  const int lanes = std::clamp(pool == nullptr ? 1 : pool->threads(), 1, kLanesMost);
  const size_t bound = kv_blob_bound(grid_);
  lanes_.reserve(static_cast<size_t>(lanes));
  for (int lane = 0; lane < lanes; ++lane) {
    lanes_.push_back({.numbers = KvNumbers(grid_),
                      .anchor = KvNumbers(grid_),
                      .in = std::vector<std::byte>(bound),
                      .out = std::vector<std::byte>(bound)});
  }
}

int64_t KvCoder::scratch_bytes(const KvGridShape& shape, int threads) {
  // Integers of 2 bytes twice, and two blobs of about as much.
  constexpr int64_t kBytesOfNumber = 9;
  return std::clamp(threads, 1, kLanesMost) * (kBytesOfNumber * shape.numbers() + 4096);
}

template <typename Body>
void KvCoder::on_lanes(int64_t count, Body&& body) {
  const int64_t lanes = std::min<int64_t>(lanes_.size(), count);
  const auto run = [&](int64_t begin, int64_t end, int) {
    for (int64_t lane = begin; lane < end; ++lane) {
      for (int64_t index = lane; index < count; index += lanes) body(lanes_[static_cast<size_t>(lane)], index);
    }
  };
  if (pool_ == nullptr || lanes == 1) return run(0, lanes, 0);
  pool_->parallel_for(lanes, 1, run);
}

bool KvCoder::read_blob(int32_t blob, std::span<const std::byte> bytes, const KvNumbers* anchor, Lane& lane,
                        KvNumbers& numbers) {
  if (!bytes.empty()) return kv_decode(grid_, bytes, anchor, numbers).ok();
  const std::span<std::byte> loaded = std::span(lane.in).first(static_cast<size_t>(arena_.size(blob)));
  arena_.load(blob, loaded);
  return kv_decode(grid_, loaded, anchor, numbers).ok();
}

bool KvCoder::read_alone(int32_t block, int32_t blob, std::span<const std::byte> bytes, Lane& lane,
                         KvNumbers& numbers) {
  if (block != kNoBlock) return kv_read(grid_, view_, block, numbers);
  CHECK(blob != kNoBlob || !bytes.empty());
  return read_blob(blob, bytes, nullptr, lane, numbers);
}

// Into lane.numbers; lane.anchor may change.
bool KvCoder::read(const KvSource& from, Lane& lane) {
  if (from.block != kNoBlock || !from.delta) return read_alone(from.block, from.blob, from.bytes, lane, lane.numbers);
  return read_alone(from.anchor_block, from.anchor_blob, from.anchor_bytes, lane, lane.anchor) &&
         read_blob(from.blob, from.bytes, &lane.anchor, lane, lane.numbers);
}

void KvCoder::encode(std::span<KvEncodeJob> jobs) {
  CHECK(jobs.size() <= lanes_.size());
  on_lanes(std::ssize(jobs), [&](Lane& lane, int64_t index) {
    KvEncodeJob& job = jobs[static_cast<size_t>(index)];
    job.blob = {};
    CHECK(!job.anchor.delta);
    if (!read(job.from, lane)) return;
    if (job.delta && !read_alone(job.anchor.block, job.anchor.blob, {}, lane, lane.anchor)) return;
    const size_t size = kv_encode(grid_, lane.numbers, job.delta ? &lane.anchor : nullptr, lane.out);
    job.blob = std::span(lane.out).first(size);
  });
}

void KvCoder::decode(std::span<KvDecodeJob> jobs) {
  on_lanes(std::ssize(jobs), [&](Lane& lane, int64_t index) {
    KvDecodeJob& job = jobs[static_cast<size_t>(index)];
    CHECK(job.from.block == kNoBlock && (job.from.blob != kNoBlob || !job.from.bytes.empty()) && job.block != kNoBlock);
    job.ok = read(job.from, lane);
    if (job.ok) kv_write(grid_, lane.numbers, view_, job.block);
  });
}

}  // namespace loralei

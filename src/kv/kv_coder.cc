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

KvCoder::KvCoder(KvGrid grid, KvDelta delta, const KvView& view, const BlobArena& arena, ThreadPool* pool)
    : grid_(std::move(grid)), delta_(delta), view_(view), arena_(arena), pool_(pool) {
  const int lanes = std::clamp(pool == nullptr ? 1 : pool->threads(), 1, kLanesMost);
  const size_t bound = kv_blob_bound(grid_);
  const int64_t block = delta == KvDelta::kPaper ? grid_.shape().layers * view.layer_stride_bytes : 0;
  lanes_.reserve(static_cast<size_t>(lanes));
  for (int lane = 0; lane < lanes; ++lane) {
    lanes_.push_back({.numbers = KvNumbers(grid_),
                      .anchor = KvNumbers(grid_),
                      .in = std::vector<std::byte>(bound),
                      .out = std::vector<std::byte>(bound),
                      .block = std::vector<std::byte>(static_cast<size_t>(block))});
  }
}

int64_t KvCoder::scratch_bytes(const KvGridShape& shape, KvDelta delta, int threads) {
  // Integers of 2 bytes twice, and two blobs of about as much; and a block.
  const int64_t bytes_of_number = delta == KvDelta::kPaper ? 9 + 4 : 9;
  return std::clamp(threads, 1, kLanesMost) * (bytes_of_number * shape.numbers() + 4096);
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

// What the blob of an anchor says, in the lane's block; no view: it is damaged.
KvBlockAt KvCoder::decoded_anchor(int32_t blob, Lane& lane) {
  CHECK(blob != kNoBlob);
  KvBlockAt at{.view = view_, .block = 0};
  at.view.base = lane.block.data();
  if (!read_blob(blob, {}, nullptr, lane, lane.anchor)) return {};
  kv_write(grid_, lane.anchor, at.view, at.block);
  return at;
}

void KvCoder::encode_one(KvEncodeJob& job, Lane& lane) {
  job.blob = {};
  CHECK(!job.anchor.delta);
  if (job.delta && delta_ == KvDelta::kPaper) {
    CHECK(job.from.block != kNoBlock);
    const KvBlockAt anchor = decoded_anchor(job.anchor.blob, lane);
    const size_t size =
        anchor.view.base == nullptr ? 0 : kv_encode_paper(grid_, {view_, job.from.block}, anchor, lane.out);
    job.blob = std::span(lane.out).first(size);
    if (size > 0) return;
    job.delta = false;
  }
  if (!read(job.from, lane)) return;
  if (job.delta && !read_alone(job.anchor.block, job.anchor.blob, {}, lane, lane.anchor)) return;
  const size_t size = kv_encode(grid_, lane.numbers, job.delta ? &lane.anchor : nullptr, lane.out);
  job.blob = std::span(lane.out).first(size);
}

void KvCoder::encode(std::span<KvEncodeJob> jobs) {
  CHECK(jobs.size() <= lanes_.size());
  on_lanes(std::ssize(jobs), [&](Lane& lane, int64_t index) { encode_one(jobs[static_cast<size_t>(index)], lane); });
}

bool KvCoder::decode_one(const KvDecodeJob& job, Lane& lane) {
  const KvSource& from = job.from;
  CHECK(from.block == kNoBlock && (from.blob != kNoBlob || !from.bytes.empty()) && job.block != kNoBlock);
  if (delta_ == KvDelta::kPaper && from.delta && from.bytes.empty()) {
    const KvBlockAt anchor = decoded_anchor(from.anchor_blob, lane);
    if (anchor.view.base == nullptr) return false;
    const std::span<std::byte> blob = std::span(lane.in).first(static_cast<size_t>(arena_.size(from.blob)));
    arena_.load(from.blob, blob);
    return kv_decode_paper(grid_, blob, anchor, {view_, job.block}).ok();
  }
  if (!read(from, lane)) return false;
  kv_write(grid_, lane.numbers, view_, job.block);
  return true;
}

void KvCoder::decode(std::span<KvDecodeJob> jobs) {
  on_lanes(std::ssize(jobs), [&](Lane& lane, int64_t index) {
    KvDecodeJob& job = jobs[static_cast<size_t>(index)];
    job.ok = decode_one(job, lane);
  });
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// What all blobs of this room have in common: header, stream, and the parts behind it.
//
//   0   u8[2]  "LK"
//   2   u8     format version
//   3   u8     kind (KvBlobKind)
//   4   u32    bytes of the blob
//   8   u64    checksum: of all other bytes
//   16  u64    digest of the grid
//   24  u16    layers
//   26  u16    exceptions (kPaper), else 0
//   28         extra: kAlone none; kDelta u64 anchor, u32 [layers]; kPaper: kv_paper.cc
//              words, choices, scales, coders: see kv_blob.h
//
// Thread: one writer or reader, one thread. Ownership: the caller's buffers.
// Invariants: words are followed by at least kRansOverread bytes of the blob.
// Failure: the writer says false where there is no room; open_blob refuses with a
// sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "codec/kv_blob.h"

namespace loralei {

inline constexpr size_t kBlobHeaderBytes = 28;

size_t blob_extra_bytes(KvBlobKind kind, int32_t layers, int32_t exceptions);

// A group's place in KvNumbers.
struct KvHeadPlace {
  int32_t layer = 0, v = 0, kv_head = 0;
};
inline int64_t kv_groups(const KvGridShape& shape, int32_t layers) { return int64_t{2} * layers * shape.kv_heads; }
inline KvHeadPlace kv_head_place(const KvGridShape& shape, int64_t group) {
  const int64_t heads = kv_groups(shape, 1), in_layer = group % heads;
  return {static_cast<int32_t>(group / heads), static_cast<int32_t>(in_layer / shape.kv_heads),
          static_cast<int32_t>(in_layer % shape.kv_heads)};
}

// The integers of one head, on the stack.
struct alignas(64) KvHeadScratch {
  int16_t integers[kKvBlockTokens * kKvCodecMaxHeadDim];
};

// Groups come last first, as the coders work; then finish().
class BlobWriter {
 public:
  BlobWriter(const KvGrid& grid, KvBlobKind kind, int32_t exceptions, std::span<std::byte> out,
             const KvCodecPath& path);

  // `group` counts heads in the order of KvNumbers.
  [[nodiscard]] bool put(int64_t group, const int16_t* integers);
  // blob_extra_bytes of them.
  std::span<std::byte> extra() { return out_.subspan(kBlobHeaderBytes, extra_bytes_); }
  // Bytes of the blob; 0: it had no room.
  [[nodiscard]] size_t finish(std::span<const float> scales);

 private:
  std::byte* choices() { return out_.data() + out_.size() - tail_bytes_; }

  const KvGrid& grid_;
  const KvCodecPath& path_;
  std::span<std::byte> out_;
  KvBlobKind kind_;
  int32_t exceptions_;
  size_t extra_bytes_, tail_bytes_;
  bool fits_ = false;
  RansWriter writer_;
};

struct BlobReader {
  KvBlobInfo info;
  int32_t exceptions = 0;
  std::span<const std::byte> extra;
  const std::byte* choices = nullptr;
  const std::byte* scales = nullptr;
  RansReader rans;

  // The integers of one group, in order.
  [[nodiscard]] bool take(const KvGridShape& shape, int64_t group, const KvCodecPath& path, int16_t* out);
  // All words were used, and every coder is where it began.
  bool at_its_end() const;
};

// A whole blob of this grid.
Result<BlobReader> open_blob(const KvGrid& grid, std::span<const std::byte> blob);

Error damaged_blob();

}  // namespace loralei

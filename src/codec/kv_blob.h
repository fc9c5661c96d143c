// SPDX-License-Identifier: Apache-2.0
// A block of a cache as a blob: its integers, or their differences from another block's
// (the anchor), entropy-coded.
//
//   header    28 bytes, see kv_blob.cc; of a delta the anchor's hash, and 32 bits of each
//             of its layers' hashes
//   words     the stream of codec/path.h, the groups in the order of KvNumbers
//   choices   u8 [layers][2][kv_heads], how each group is coded
//   scales    f32 [layers][2][kv_heads][16], of int8 and fp8
//   coders    u32 [32], where they begin
//
// A reader may stop after any layer. Differences are modulo 2^16, which is exact for
// integers of 16 bits.
//
// Thread: pure functions. No allocation but for the sentences of refusals.
// Ownership: the caller's buffers.
// Invariants: the same integers give the same blob on every machine.
// Failure: kv_decode refuses with a sentence whatever is not a whole blob of this grid
// and this anchor: another grid, another anchor, cut or changed at any bit. `numbers`
// then holds no layers. Any bytes are read within their bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "codec/kv_grid.h"
#include "codec/kv_numbers.h"
#include "codec/path.h"

namespace loralei {

enum class KvBlobKind : uint8_t { kAlone, kDelta, kPaper };

struct KvBlobInfo {
  KvBlobKind kind = KvBlobKind::kAlone;
  int32_t layers = 0;
  uint64_t grid = 0;    // digest
  uint64_t anchor = 0;  // kv_numbers_hash of a delta's anchor; of kPaper of its raw bytes
};

// The most bytes that any block of this grid takes.
size_t kv_blob_bound(const KvGrid& grid);

// Bytes written; 0: `out` is too small. All layers of `numbers`, and of `anchor` (null:
// none), are there (CHECKed).
[[nodiscard]] size_t kv_encode(const KvGrid& grid, const KvNumbers& numbers, const KvNumbers* anchor,
                               std::span<std::byte> out, const KvCodecPath& path = kv_codec_path());

// What a blob says of itself; its checksum was found right.
Result<KvBlobInfo> kv_blob_info(std::span<const std::byte> blob);

// The first `layers` layers. Of a delta `anchor` holds at least as many; else it is not
// looked at and may be null. `anchor` may not be `numbers`.
Status kv_decode(const KvGrid& grid, std::span<const std::byte> blob, const KvNumbers* anchor, int32_t layers,
                 KvNumbers& numbers, const KvCodecPath& path = kv_codec_path());
inline Status kv_decode(const KvGrid& grid, std::span<const std::byte> blob, const KvNumbers* anchor,
                        KvNumbers& numbers) {
  return kv_decode(grid, blob, anchor, grid.shape().layers, numbers);
}

}  // namespace loralei

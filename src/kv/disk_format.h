// SPDX-License-Identifier: Apache-2.0
// The bytes of the disk tier: segments of records, each the keys and values of one block
// of 16 tokens of one identity. Little-endian, everything at multiples of 64:
//
//   file     128 bytes: magic, version, number of the segment, digest of the format, sum
//   records  each a header of 128 bytes and its payload
//   table    of a sealed segment: the headers of its records once more
//   footer   64 bytes: magic, records, where the table is, number of the segment, sum
//
//   header   magic, form, exact, segment, bytes of the payload, place, grid, sum of the
//            payload, sum of the anchor's payload, sum of the header, key, anchor's key
//
// Nothing is written in the clear: a key is a hash of the text so far, of who computed on
// it, and of the salt. Every sum begins from the digest of the format, that of a payload
// payload from its key as well, and a header names its own place; so no record stands for
// another, whatever is copied where.
//
// Thread: pure functions; a DiskFormat is a value.
// Ownership: the caller's buffers.
// Failure: what is not whole is not answered; any bytes are read within their bounds, and
// nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "base/digest.h"
#include "base/ids.h"
#include "sys/file.h"

namespace loralei {

using KvDiskKey = Digest;

// Of the block behind the one of key `before` (all zero: the first), computed for
// `identity` (kv/identity.h: adapters, scales, salt).
KvDiskKey kv_disk_key(const KvDiskKey& before, std::string_view identity, std::span<const TokenId> tokens);

// The bytes as they lie in the cache; or a blob (codec/kv_blob.h) alone or told from
// another's, the anchor.
enum class KvDiskForm : uint8_t { kRaw, kAlone, kDelta };

struct KvDiskRecord {
  KvDiskKey key{};
  KvDiskForm form = KvDiskForm::kRaw;
  bool exact = false;    // computed as if nothing had ever been encoded with loss
  bool streams = false;  // of a raw one: the residual stream in it is that of its text (ops/kv_streams.h)
  uint64_t grid = 0;     // digest of a blob's; 0: raw
  KvDiskKey anchor{};    // of a delta
  friend bool operator==(const KvDiskRecord&, const KvDiskRecord&) = default;
};

inline constexpr int64_t kDiskHeaderBytes = 128, kDiskFooterBytes = 64, kDiskAlign = 64;
// Of a payload; a segment's records lie below 2^40.
inline constexpr int64_t kDiskPayloadBytesMost = int64_t{1} << 31;

struct DiskHeader {
  KvDiskRecord record;
  uint32_t segment = 0, payload_bytes = 0;
  uint64_t offset = 0;  // of the header in its file
  uint64_t sum = 0, anchor_sum = 0;
  friend bool operator==(const DiskHeader&, const DiskHeader&) = default;
};

// What a record takes in a segment, and in memory when it is read.
constexpr int64_t disk_record_bytes(int64_t payload_bytes) {
  return (kDiskHeaderBytes + payload_bytes + kDiskAlign - 1) / kDiskAlign * kDiskAlign;
}
constexpr int64_t disk_table_bytes(int64_t records) { return records * kDiskHeaderBytes + kDiskFooterBytes; }

enum class DiskFile : uint8_t { kOurs, kDamaged, kForeign };

// What a segment was found to hold.
struct DiskScan {
  bool sealed = false;
  int64_t records = 0;
  int64_t end = kDiskHeaderBytes;  // behind the last of them
};

// Whether a file is a segment, of whatever format.
bool is_disk_segment(const File& file);

class DiskFormat {
 public:
  explicit DiskFormat(const Digest& digest);

  uint64_t payload_sum(const KvDiskKey& key, std::span<const std::byte> payload) const;

  void write_header(const DiskHeader& header, std::span<std::byte> out) const;  // [kDiskHeaderBytes]
  void write_segment(uint32_t segment, std::span<std::byte> out) const;         // [kDiskHeaderBytes]
  void write_footer(uint32_t segment, int64_t records, int64_t table, std::span<std::byte> out) const;  // [..Footer..]

  // nullopt: this is none.
  std::optional<DiskHeader> read_header(std::span<const std::byte> bytes) const;
  // kForeign: of something else, of another version or format, or of another number.
  DiskFile look(const File& file, uint32_t segment) const;

  // Tells `found` of the records of a file that look() calls ours, in their order. Of a
  // sealed one by its table: payloads are not looked at. Else header by header, up to the
  // first record that is not whole. What a table says before it turns out to be none was
  // told as well, and is told again. `buffer`: of a record at least.
  DiskScan scan(const File& file, uint32_t segment, std::span<std::byte> buffer,
                const std::function<void(const DiskHeader&)>& found) const;
  // The record that `header` tells of, with its header: false where that is not there,
  // whole. [disk_record_bytes]
  bool read(const File& file, const DiskHeader& header, std::span<std::byte> out) const;

 private:
  std::optional<DiskScan> scan_table(const File& file, uint32_t segment, std::span<std::byte> buffer,
                                     const std::function<void(const DiskHeader&)>& found) const;

  Digest digest_;
  uint64_t seed_;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "kv/disk_format.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/fast_hash.h"
#include "base/sha256.h"

namespace loralei {
namespace {

constexpr uint64_t kSegmentMagic = 0x4b5349444b56524cu;  // "LRVKDISK"
constexpr uint64_t kFooterMagic = 0x454c424154564b4cu;   // "LKVTABLE"
constexpr uint32_t kRecordMagic = 0x52564b4cu;           // "LKVR"
constexpr uint32_t kVersion = 1;

// Where the parts of the three headers lie.
enum SegmentAt : size_t { kSegmentVersion = 8, kSegmentNumber = 12, kSegmentSum = 16, kSegmentDigest = 32 };
enum FooterAt : size_t { kFooterRecords = 8, kFooterTable = 16, kFooterNumber = 24, kFooterSum = 32 };
enum RecordAt : size_t {
  kForm = 4,
  kExact = 5,
  kStreams = 6,
  kSegment = 8,
  kPayloadBytes = 12,
  kOffset = 16,
  kGrid = 24,
  kSum = 32,
  kAnchorSum = 40,
  kHeaderSum = 48,
  kKey = 64,
  kAnchor = 96
};

template <typename Int>
void put(std::span<std::byte> out, size_t at, Int value) {
  for (size_t i = 0; i < sizeof value; ++i) out[at + i] = static_cast<std::byte>(uint64_t{value} >> (8 * i));
}
template <typename Int>
Int get(std::span<const std::byte> in, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Int); ++i) value |= std::to_integer<uint64_t>(in[at + i]) << (8 * i);
  return static_cast<Int>(value);
}

uint64_t first_word(const Digest& digest) { return get<uint64_t>(std::as_bytes(std::span(digest)), 0); }

// The sum of a header lies within it, and is of the rest.
uint64_t sum_of(std::span<const std::byte> header, size_t sum_at, uint64_t seed) {
  std::byte copy[kDiskHeaderBytes];
  std::copy(header.begin(), header.end(), copy);
  put(std::span(copy), sum_at, uint64_t{0});
  return fast_hash(copy, header.size(), seed);
}

template <typename T>
void hash_number(Sha256& hash, T value) {
  std::byte bytes[sizeof value];
  put(std::span<std::byte>(bytes), 0, value);
  hash.update(bytes);
}

bool is_aligned(uint64_t value) { return value % kDiskAlign == 0; }

// kOurs: of some format.
using SegmentBytes = std::array<std::byte, kDiskHeaderBytes>;
DiskFile look_at_segment(const File& file, SegmentBytes& bytes) {
  const std::span<std::byte> all(bytes);
  const auto size = static_cast<size_t>(std::min(kDiskHeaderBytes, file.size_bytes()));
  if (size < sizeof kSegmentMagic || !file.read_exact(0, all.first(size)).ok() ||
      get<uint64_t>(all, 0) != kSegmentMagic)
    return DiskFile::kForeign;
  const bool whole = size == bytes.size() && get<uint64_t>(all, kSegmentSum) == sum_of(all, kSegmentSum, 0);
  return whole ? DiskFile::kOurs : DiskFile::kDamaged;
}

}  // namespace

KvDiskKey kv_disk_key(const KvDiskKey& before, std::string_view identity, std::span<const TokenId> tokens) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span("loralei kv block")));
  hash.update(std::as_bytes(std::span(before)));
  hash_number(hash, uint64_t{identity.size()});
  hash.update(std::as_bytes(std::span(identity)));
  hash_number(hash, uint64_t{tokens.size()});
  for (const TokenId token : tokens) hash_number(hash, static_cast<uint32_t>(token));
  return hash.finish();
}

DiskFormat::DiskFormat(const Digest& digest) : digest_(digest), seed_(mix64(first_word(digest))) {}

uint64_t DiskFormat::payload_sum(const KvDiskKey& key, std::span<const std::byte> payload) const {
  return fast_hash(payload.data(), payload.size(), seed_ ^ first_word(key));
}

void DiskFormat::write_header(const DiskHeader& header, std::span<std::byte> out) const {
  CHECK(out.size() == kDiskHeaderBytes);
  std::fill(out.begin(), out.end(), std::byte{0});
  put(out, 0, kRecordMagic);
  put(out, kForm, static_cast<uint8_t>(header.record.form));
  put(out, kExact, uint8_t{header.record.exact});
  put(out, kStreams, uint8_t{header.record.streams});
  put(out, kSegment, header.segment);
  put(out, kPayloadBytes, header.payload_bytes);
  put(out, kOffset, header.offset);
  put(out, kGrid, header.record.grid);
  put(out, kSum, header.sum);
  put(out, kAnchorSum, header.anchor_sum);
  std::memcpy(out.data() + kKey, header.record.key.data(), sizeof(KvDiskKey));
  std::memcpy(out.data() + kAnchor, header.record.anchor.data(), sizeof(KvDiskKey));
  put(out, kHeaderSum, sum_of(out, kHeaderSum, seed_));
}

std::optional<DiskHeader> DiskFormat::read_header(std::span<const std::byte> bytes) const {
  CHECK(bytes.size() == kDiskHeaderBytes);
  if (get<uint32_t>(bytes, 0) != kRecordMagic || get<uint64_t>(bytes, kHeaderSum) != sum_of(bytes, kHeaderSum, seed_))
    return std::nullopt;
  const auto form = get<uint8_t>(bytes, kForm), exact = get<uint8_t>(bytes, kExact);
  const auto streams = get<uint8_t>(bytes, kStreams);
  DiskHeader header;
  header.record.form = static_cast<KvDiskForm>(form);
  header.record.exact = exact != 0;
  header.record.streams = streams != 0;
  header.record.grid = get<uint64_t>(bytes, kGrid);
  std::memcpy(header.record.key.data(), bytes.data() + kKey, sizeof(KvDiskKey));
  std::memcpy(header.record.anchor.data(), bytes.data() + kAnchor, sizeof(KvDiskKey));
  header.segment = get<uint32_t>(bytes, kSegment);
  header.payload_bytes = get<uint32_t>(bytes, kPayloadBytes);
  header.offset = get<uint64_t>(bytes, kOffset);
  header.sum = get<uint64_t>(bytes, kSum);
  header.anchor_sum = get<uint64_t>(bytes, kAnchorSum);
  const bool sound = form <= static_cast<uint8_t>(KvDiskForm::kDelta) && exact <= 1 && streams <= 1 &&
                     header.payload_bytes > 0 && header.payload_bytes <= kDiskPayloadBytesMost &&
                     is_aligned(header.offset) && header.offset >= kDiskHeaderBytes &&
                     header.offset < uint64_t{1} << 40;
  return sound ? std::optional(header) : std::nullopt;
}

void DiskFormat::write_segment(uint32_t segment, std::span<std::byte> out) const {
  CHECK(out.size() == kDiskHeaderBytes);
  std::fill(out.begin(), out.end(), std::byte{0});
  put(out, 0, kSegmentMagic);
  put(out, kSegmentVersion, kVersion);
  put(out, kSegmentNumber, segment);
  std::memcpy(out.data() + kSegmentDigest, digest_.data(), digest_.size());
  put(out, kSegmentSum, sum_of(out, kSegmentSum, 0));
}

DiskFile DiskFormat::look(const File& file, uint32_t segment) const {
  SegmentBytes bytes, own;
  const DiskFile seen = look_at_segment(file, bytes);
  if (seen != DiskFile::kOurs) return seen;
  write_segment(segment, own);
  return bytes == own ? DiskFile::kOurs : DiskFile::kForeign;
}

bool is_disk_segment(const File& file) {
  SegmentBytes bytes;
  return look_at_segment(file, bytes) == DiskFile::kOurs;
}

void DiskFormat::write_footer(uint32_t segment, int64_t records, int64_t table, std::span<std::byte> out) const {
  CHECK(out.size() == kDiskFooterBytes);
  std::fill(out.begin(), out.end(), std::byte{0});
  put(out, 0, kFooterMagic);
  put(out, kFooterRecords, static_cast<uint64_t>(records));
  put(out, kFooterTable, static_cast<uint64_t>(table));
  put(out, kFooterNumber, segment);
  put(out, kFooterSum, sum_of(out, kFooterSum, seed_));
}

std::optional<DiskScan> DiskFormat::scan_table(const File& file, uint32_t segment, std::span<std::byte> buffer,
                                               const std::function<void(const DiskHeader&)>& found) const {
  std::byte bytes[kDiskFooterBytes], own[kDiskFooterBytes];
  const int64_t table_most = file.size_bytes() - kDiskFooterBytes;
  if (table_most < kDiskHeaderBytes || !file.read_exact(table_most, bytes).ok()) return std::nullopt;
  const auto records = static_cast<int64_t>(get<uint64_t>(bytes, kFooterRecords));
  if (records < 0 || records > table_most / kDiskHeaderBytes) return std::nullopt;
  const int64_t table = table_most - records * kDiskHeaderBytes;
  write_footer(segment, records, table, own);
  if (!std::equal(bytes, bytes + sizeof bytes, own)) return std::nullopt;
  DiskScan scan{.sealed = true};
  while (scan.records < records) {
    const int64_t count = std::min(std::ssize(buffer) / kDiskHeaderBytes, records - scan.records);
    const auto part = buffer.first(static_cast<size_t>(count * kDiskHeaderBytes));
    if (!file.read_exact(table + scan.records * kDiskHeaderBytes, part).ok()) return std::nullopt;
    for (size_t at = 0; at < part.size(); at += kDiskHeaderBytes) {
      const auto header = read_header(part.subspan(at, kDiskHeaderBytes));
      if (!header || header->segment != segment || static_cast<int64_t>(header->offset) < scan.end) return std::nullopt;
      scan.end = static_cast<int64_t>(header->offset) + disk_record_bytes(header->payload_bytes);
      if (scan.end > table) return std::nullopt;
      found(*header);
    }
    scan.records += count;
  }
  return scan;
}

DiskScan DiskFormat::scan(const File& file, uint32_t segment, std::span<std::byte> buffer,
                          const std::function<void(const DiskHeader&)>& found) const {
  CHECK(std::ssize(buffer) >= kDiskHeaderBytes);
  if (const auto sealed = scan_table(file, segment, buffer, found)) return *sealed;
  DiskScan scan;
  while (file.size_bytes() - scan.end >= kDiskHeaderBytes) {
    const auto head = buffer.first(kDiskHeaderBytes);
    if (!file.read_exact(scan.end, head).ok()) break;
    const auto header = read_header(head);
    if (!header || header->segment != segment || static_cast<int64_t>(header->offset) != scan.end) break;
    const int64_t bytes = disk_record_bytes(header->payload_bytes);
    if (bytes > std::ssize(buffer) || bytes > file.size_bytes() - scan.end || !read(file, *header, buffer)) break;
    found(*header);
    scan.end += bytes;
    ++scan.records;
  }
  return scan;
}

bool DiskFormat::read(const File& file, const DiskHeader& header, std::span<std::byte> out) const {
  const int64_t bytes = disk_record_bytes(header.payload_bytes);
  CHECK(std::ssize(out) >= bytes);
  if (!file.read_exact(static_cast<int64_t>(header.offset), out.first(static_cast<size_t>(bytes))).ok()) return false;
  std::byte own[kDiskHeaderBytes];
  write_header(header, own);
  const auto payload = out.subspan(kDiskHeaderBytes, header.payload_bytes);
  return std::equal(own, own + sizeof own, out.begin()) && payload_sum(header.record.key, payload) == header.sum;
}

}  // namespace loralei

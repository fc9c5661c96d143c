// SPDX-License-Identifier: Apache-2.0
#include "codec/blob_parts.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/fast_hash.h"
#include "base/limits.h"

namespace loralei {
namespace {

constexpr uint8_t kMagic[2] = {'L', 'K'};
constexpr uint8_t kVersion = 1;
constexpr size_t kChecksumAt = 8, kCheckedAt = 16;

template <typename T>
T load(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
template <typename T>
void store(std::span<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// Of at least a header.
uint64_t checksum(std::span<const std::byte> blob) {
  return fast_hash(blob.data() + kCheckedAt, blob.size() - kCheckedAt, load<uint64_t>(blob, 0));
}

size_t groups_of(const KvGridShape& shape) { return static_cast<size_t>(kv_groups(shape, shape.layers)); }
size_t scale_bytes(const KvGridShape& shape) {
  return static_cast<size_t>(shape.layers * shape.layer_scales()) * sizeof(float);
}
constexpr size_t kCoderBytes = kRansLanes * sizeof(uint32_t);
static_assert(kCoderBytes >= kRansOverread);
size_t tail_bytes(const KvGridShape& shape) { return groups_of(shape) + scale_bytes(shape) + kCoderBytes; }

// Header and checksum.
Result<KvBlobInfo> read_header(std::span<const std::byte> blob) {
  if (blob.size() < kBlobHeaderBytes || std::memcmp(blob.data(), kMagic, sizeof kMagic) != 0) return damaged_blob();
  if (const auto version = load<uint8_t>(blob, 2); version != kVersion)
    return unsupported("this KV block was encoded in format " + std::to_string(version) + ", this program reads " +
                       std::to_string(kVersion) + "; drop it and compute the block anew.");
  const auto kind = load<uint8_t>(blob, 3);
  if (load<uint32_t>(blob, 4) != blob.size() || load<uint64_t>(blob, kChecksumAt) != checksum(blob) ||
      kind > static_cast<uint8_t>(KvBlobKind::kPaper))
    return damaged_blob();
  KvBlobInfo info{
      .kind = static_cast<KvBlobKind>(kind), .layers = load<uint16_t>(blob, 24), .grid = load<uint64_t>(blob, 16)};
  const int32_t exceptions = load<uint16_t>(blob, 26);
  const bool has_anchor = info.kind != KvBlobKind::kAlone;
  if (info.layers < 1 || info.layers > kMaxLayers || (exceptions > 0 && info.kind != KvBlobKind::kPaper) ||
      blob.size() - kBlobHeaderBytes < blob_extra_bytes(info.kind, info.layers, exceptions))
    return damaged_blob();
  if (has_anchor) info.anchor = load<uint64_t>(blob, kBlobHeaderBytes);
  return info;
}

}  // namespace

Error damaged_blob() { return corrupt("an encoded KV block is cut or damaged; drop it and compute the block anew."); }

size_t blob_extra_bytes(KvBlobKind kind, int32_t layers, int32_t exceptions) {
  const auto count = static_cast<size_t>(layers);
  if (kind == KvBlobKind::kDelta) return sizeof(uint64_t) + count * sizeof(uint32_t);
  // Two bits for each token of K and V; place and value of each exception.
  if (kind == KvBlobKind::kPaper)
    return sizeof(uint64_t) + count * (2 * kKvBlockTokens / 4) + static_cast<size_t>(exceptions) * 2 * sizeof(uint32_t);
  return 0;
}

BlobWriter::BlobWriter(const KvGrid& grid, KvBlobKind kind, int32_t exceptions, std::span<std::byte> out,
                       const KvCodecPath& path)
    : grid_(grid),
      path_(path),
      out_(out.first(std::min<size_t>(out.size(), UINT32_MAX))),
      kind_(kind),
      exceptions_(exceptions),
      extra_bytes_(blob_extra_bytes(kind, grid.shape().layers, exceptions)),
      tail_bytes_(tail_bytes(grid.shape())) {
  fits_ = out_.size() >= kBlobHeaderBytes + extra_bytes_ + tail_bytes_;
  if (!fits_) return;
  writer_.at = choices();
  writer_.floor = out_.data() + kBlobHeaderBytes + extra_bytes_;
  writer_.x.fill(kRansLow);
}

bool BlobWriter::put(int64_t group, const int16_t* integers) {
  if (!fits_) return false;
  const int64_t count = grid_.shape().head_numbers();
  const uint8_t choice = path_.choose(integers, count);
  choices()[group] = std::byte{choice};
  fits_ = path_.encode_group(writer_, choice, integers, count);
  return fits_;
}

size_t BlobWriter::finish(std::span<const float> scales) {
  if (!fits_) return 0;
  std::byte* tail = choices() + groups_of(grid_.shape());
  if (!scales.empty()) std::memcpy(tail, scales.data(), scales.size_bytes());
  std::memcpy(tail + scale_bytes(grid_.shape()), writer_.x.data(), kCoderBytes);
  const auto behind = static_cast<size_t>(out_.data() + out_.size() - writer_.at);
  std::memmove(writer_.floor, writer_.at, behind);
  const std::span<std::byte> blob = out_.first(kBlobHeaderBytes + extra_bytes_ + behind);
  std::memcpy(blob.data(), kMagic, sizeof kMagic);
  store(blob, 2, kVersion);
  store(blob, 3, static_cast<uint8_t>(kind_));
  store(blob, 4, static_cast<uint32_t>(blob.size()));
  store(blob, 16, grid_.digest());
  store(blob, 24, static_cast<uint16_t>(grid_.shape().layers));
  store(blob, 26, static_cast<uint16_t>(exceptions_));
  store(blob, kChecksumAt, checksum(blob));
  return blob.size();
}

bool BlobReader::take(const KvGridShape& shape, int64_t group, const KvCodecPath& path, int16_t* out) {
  const auto choice = std::to_integer<uint8_t>(choices[group]);
  return RansChoice::valid(choice) && path.decode_group(rans, choice, shape.head_numbers(), out);
}

bool BlobReader::at_its_end() const {
  return rans.at == rans.end && std::all_of(rans.x.begin(), rans.x.end(), [](uint32_t x) { return x == kRansLow; });
}

Result<BlobReader> open_blob(const KvGrid& grid, std::span<const std::byte> blob) {
  BlobReader reader;
  TRY_ASSIGN(reader.info, read_header(blob));
  const KvGridShape& shape = grid.shape();
  if (reader.info.grid != grid.digest() || reader.info.layers != shape.layers)
    return invalid_argument(
        "an encoded KV block belongs to another grid (other steps, or a cache of another shape); decode it with the "
        "grid it was made with, or compute the block anew.");
  reader.exceptions = load<uint16_t>(blob, 26);
  const size_t extra = blob_extra_bytes(reader.info.kind, shape.layers, reader.exceptions);
  const size_t tail = tail_bytes(shape);
  if (blob.size() < kBlobHeaderBytes + extra + tail) return damaged_blob();
  reader.extra = blob.subspan(kBlobHeaderBytes, extra);
  reader.rans.at = blob.data() + kBlobHeaderBytes + extra;
  reader.rans.end = blob.data() + blob.size() - tail;
  reader.choices = reader.rans.end;
  reader.scales = reader.choices + groups_of(shape);
  std::memcpy(reader.rans.x.data(), reader.scales + scale_bytes(shape), kCoderBytes);
  for (const uint32_t x : reader.rans.x) {
    if (x < kRansLow || x >> 31 != 0) return damaged_blob();
  }
  return reader;
}

Result<KvBlobInfo> kv_blob_info(std::span<const std::byte> blob) { return read_header(blob); }

}  // namespace loralei

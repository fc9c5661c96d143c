// SPDX-License-Identifier: Apache-2.0
#include "codec/kv_blob.h"

#include <cstring>

#include "base/check.h"
#include "codec/blob_parts.h"

namespace loralei {
namespace {

// The anchor's hashes as a delta keeps them.
void store_anchor(const KvNumbers& anchor, std::span<std::byte> extra) {
  uint64_t hash = kKvHashStart;
  std::byte* at = extra.data() + sizeof hash;
  for (int32_t layer = 0; layer < anchor.layers(); ++layer, at += sizeof(uint32_t)) {
    const uint64_t layer_hash = kv_layer_hash(anchor, layer);
    const auto low = static_cast<uint32_t>(layer_hash);
    std::memcpy(at, &low, sizeof low);
    hash = kv_fold_hash(hash, layer_hash);
  }
  std::memcpy(extra.data(), &hash, sizeof hash);
}

Status check_anchor(const KvGrid& grid, const BlobReader& blob, const KvNumbers* anchor, int32_t layers) {
  if (blob.info.kind == KvBlobKind::kAlone) return {};
  if (blob.info.kind == KvBlobKind::kPaper)
    return invalid_argument(
        "an encoded KV block has the bounds of the paper and needs its anchor raw; decode it with kv_decode_paper.");
  if (anchor == nullptr || anchor->shape() != grid.shape() || anchor->layers() < layers)
    return invalid_argument(
        "an encoded KV block is a difference and its anchor is not there, or has fewer layers than are asked for; "
        "decode the anchor first, or compute the block anew.");
  const auto other = [] {
    return invalid_argument(
        "an encoded KV block is a difference to another anchor than the one given; decode it with the anchor it was "
        "made with, or compute the block anew.");
  };
  uint64_t hash = kKvHashStart;
  for (int32_t layer = 0; layer < layers; ++layer) {
    const uint64_t layer_hash = kv_layer_hash(*anchor, layer);
    hash = kv_fold_hash(hash, layer_hash);
    uint32_t expected;
    std::memcpy(&expected, blob.extra.data() + sizeof(uint64_t) + static_cast<size_t>(layer) * sizeof expected,
                sizeof expected);
    if (expected != static_cast<uint32_t>(layer_hash)) return other();
  }
  if (layers == grid.shape().layers && blob.info.anchor != hash) return other();
  return {};
}

}  // namespace

size_t kv_blob_bound(const KvGrid& grid) {
  const KvGridShape& shape = grid.shape();
  const auto numbers = static_cast<size_t>(shape.numbers());
  const auto scales = static_cast<size_t>(shape.layers * shape.layer_scales());
  const auto groups = static_cast<size_t>(kv_groups(shape, shape.layers));
  // A group takes at most 16 bits a number raw. One that is coded was expected to take
  // less, and a coder at its lowest takes up to 0.17 bits more than that.
  return kBlobHeaderBytes + blob_extra_bytes(KvBlobKind::kDelta, shape.layers, 0) + numbers * 9 / 4 + groups +
         scales * sizeof(float) + kRansLanes * sizeof(uint32_t);
}

size_t kv_encode(const KvGrid& grid, const KvNumbers& numbers, const KvNumbers* anchor, std::span<std::byte> out,
                 const KvCodecPath& path) {
  const KvGridShape& shape = grid.shape();
  CHECK(numbers.shape() == shape && numbers.layers() == shape.layers);
  CHECK(anchor == nullptr || (anchor->shape() == shape && anchor->layers() == shape.layers));
  BlobWriter writer(grid, anchor == nullptr ? KvBlobKind::kAlone : KvBlobKind::kDelta, 0, out, path);
  KvHeadScratch scratch;
  for (int64_t group = kv_groups(shape, shape.layers); group-- > 0;) {
    const auto [layer, v, kv_head] = kv_head_place(shape, group);
    const int16_t* integers = numbers.head(layer, v, kv_head);
    if (anchor != nullptr) {
      path.subtract(integers, anchor->head(layer, v, kv_head), shape.head_numbers(), scratch.integers);
      integers = scratch.integers;
    }
    if (!writer.put(group, integers)) return 0;
  }
  if (anchor != nullptr) store_anchor(*anchor, writer.extra());
  return writer.finish(numbers.scales(shape.layers));
}

Status kv_decode(const KvGrid& grid, std::span<const std::byte> blob, const KvNumbers* anchor, int32_t layers,
                 KvNumbers& numbers, const KvCodecPath& path) {
  const KvGridShape& shape = grid.shape();
  CHECK(numbers.shape() == shape && &numbers != anchor);
  CHECK(layers >= 0 && layers <= shape.layers);
  numbers.set_layers(0);
  TRY_ASSIGN(BlobReader reader, open_blob(grid, blob));
  TRY(check_anchor(grid, reader, anchor, layers));
  const bool is_delta = reader.info.kind == KvBlobKind::kDelta;
  for (int64_t group = 0; group < kv_groups(shape, layers); ++group) {
    const auto [layer, v, kv_head] = kv_head_place(shape, group);
    int16_t* const integers = numbers.head(layer, v, kv_head);
    if (!reader.take(shape, group, path, integers)) return damaged_blob();
    if (is_delta) path.add(anchor->head(layer, v, kv_head), shape.head_numbers(), integers);
  }
  if (layers == shape.layers && !reader.at_its_end()) return damaged_blob();
  const std::span<float> scales = numbers.scales(layers);
  if (!scales.empty()) std::memcpy(scales.data(), reader.scales, scales.size_bytes());
  numbers.set_layers(layers);
  return {};
}

}  // namespace loralei

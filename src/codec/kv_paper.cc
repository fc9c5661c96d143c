// SPDX-License-Identifier: Apache-2.0
// What kPaper has in the place of `extra` (blob_parts.h):
//
//   u64                hash of the anchor's bytes
//   2 bits             class of each (layer, K or V, token), from the lowest bits on
//   u32, i32 each      exceptions: place of a number in the block and its q, which is
//                      beyond 16 bits and stands as 0 in the stream; in order of places
#include "codec/kv_paper.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/fast_hash.h"
#include "codec/blob_parts.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr int kExceptionsMax = 65535;
constexpr size_t kExceptionBytes = 2 * sizeof(uint32_t);
constexpr double kFarthest = 2147483647.0;  // q is an int32
constexpr uint64_t kAnchorSeed = 0x6b762d70617065;

const std::byte* bytes_of(const KvBlockAt& at, const KvHeadPlace& head) {
  return at.view.head(at.block, head.layer, head.v, head.kv_head);
}
int64_t token_of(const KvGridShape& shape, const KvHeadPlace& head, int64_t i) {
  return head.v == 0 ? i % kKvBlockTokens : i / shape.head_dim;
}

void check_shapes(const KvGrid& grid, const KvBlockAt& a, const KvBlockAt& b) {
  const KvGridShape& shape = grid.shape();
  CHECK(!has_vector_scale(shape.dtype));
  for (const KvView* view : {&a.view, &b.view})
    CHECK(view->dtype == shape.dtype && view->kv_heads == shape.kv_heads && view->head_dim == shape.head_dim);
}

uint64_t hash_of(const KvGridShape& shape, const KvBlockAt& at) {
  uint64_t hash = kAnchorSeed;
  const auto size = static_cast<size_t>(kv_head_bytes(shape.dtype, shape.head_dim));
  for (int64_t group = 0; group < kv_groups(shape, shape.layers); ++group)
    hash = fast_hash(bytes_of(at, kv_head_place(shape, group)), size, hash);
  return hash;
}

// The classes of a block as they stand in `extra`.
class Classes {
 public:
  explicit Classes(const std::byte* bytes) : bytes_(bytes) {}
  int of(const KvHeadPlace& head, int64_t token) const {
    const int64_t at = (2 * head.layer + head.v) * kKvBlockTokens + token;
    return std::to_integer<int>(bytes_[at / 4]) >> (2 * (at % 4)) & 3;
  }

 private:
  const std::byte* bytes_;
};

// Sixteen numbers from `at` on of a head, as f32.
void load16(const KvGridShape& shape, const std::byte* head, int64_t at, float* out) {
  decode_row(shape.dtype, head + row_bytes(shape.dtype, at), out, 16);
}

// The integers of a head; visit(i, q) for those beyond 16 bits. False: there is none.
template <typename Visit>
bool quantise_head(const KvGridShape& shape, const KvBlockAt& block, const KvBlockAt& anchor, const KvHeadPlace& head,
                   const Classes& classes, int16_t* out, Visit visit) {
  for (int64_t at = 0; at < shape.head_numbers(); at += 16) {
    float own[16], other[16];
    load16(shape, bytes_of(block, head), at, own);
    load16(shape, bytes_of(anchor, head), at, other);
    for (int64_t i = 0; i < 16; ++i) {
      const double step = 2 * kKvPaperBounds[classes.of(head, token_of(shape, head, at + i))];
      const double q = std::floor((static_cast<double>(own[i]) - static_cast<double>(other[i])) / step + 0.5);
      if (!(std::fabs(q) <= kFarthest)) return false;
      const auto integer = static_cast<int32_t>(q);
      const bool fits = integer == static_cast<int16_t>(integer);
      out[at + i] = fits ? static_cast<int16_t>(integer) : int16_t{0};
      if (!fits) visit(at + i, integer);
    }
  }
  return true;
}

struct ClassScratch {
  std::byte bytes[2 * kKvBlockTokens / 4 * kMaxLayers];
};

void find_classes(const KvGridShape& shape, const KvBlockAt& block, const KvBlockAt& anchor, ClassScratch& scratch) {
  std::memset(scratch.bytes, 0, sizeof scratch.bytes);
  int64_t at = 0;
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    for (int32_t v = 0; v < 2; ++v) {
      for (int32_t token = 0; token < kKvBlockTokens; ++token, ++at) {
        const int kind = kv_paper_class(block, anchor, layer, v, token);
        scratch.bytes[at / 4] |= static_cast<std::byte>(kind << (2 * (at % 4)));
      }
    }
  }
}

float clamped(DType dtype, double x) {
  const auto value = static_cast<float>(x);
  return dtype == DType::kF16 ? std::clamp(value, -65504.0f, 65504.0f) : value;
}

}  // namespace

int kv_paper_class(const KvBlockAt& block, const KvBlockAt& anchor, int32_t layer, int32_t v, int32_t token) {
  const KvView& view = block.view;
  double dot = 0, own = 0, other = 0;
  for (int32_t head = 0; head < view.kv_heads; ++head) {
    const std::byte* const a = bytes_of(block, {layer, v, head});
    const std::byte* const b = bytes_of(anchor, {layer, v, head});
    for (int32_t d = 0; d < view.head_dim; ++d) {
      const int64_t i = v == 0 ? int64_t{d} * kKvBlockTokens + token : int64_t{token} * view.head_dim + d;
      float x, y;
      decode_row(view.dtype, a + row_bytes(view.dtype, i), &x, 1);
      decode_row(view.dtype, b + row_bytes(view.dtype, i), &y, 1);
      dot += static_cast<double>(x) * static_cast<double>(y);
      own += static_cast<double>(x) * static_cast<double>(x);
      other += static_cast<double>(y) * static_cast<double>(y);
    }
  }
  const double size = std::sqrt(own) * std::sqrt(other);
  if (dot > 0.975 * size || (own == 0 && other == 0)) return 0;
  return dot >= 0.85 * size && size > 0 ? 1 : 2;
}

size_t kv_encode_paper(const KvGrid& grid, const KvBlockAt& block, const KvBlockAt& anchor, std::span<std::byte> out,
                       const KvCodecPath& path) {
  check_shapes(grid, block, anchor);
  const KvGridShape& shape = grid.shape();
  const int64_t groups = kv_groups(shape, shape.layers);
  ClassScratch found;
  find_classes(shape, block, anchor, found);
  const Classes classes(found.bytes);
  KvHeadScratch scratch;
  int64_t exceptions = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const auto count = [&](int64_t, int32_t) { ++exceptions; };
    if (!quantise_head(shape, block, anchor, kv_head_place(shape, group), classes, scratch.integers, count)) return 0;
  }
  if (exceptions > kExceptionsMax) return 0;
  BlobWriter writer(grid, KvBlobKind::kPaper, static_cast<int32_t>(exceptions), out, path);
  std::byte* last = nullptr;  // the exceptions that are stored already begin here
  for (int64_t group = groups; group-- > 0;) {
    int32_t in_head = 0;
    const auto count = [&](int64_t, int32_t) { ++in_head; };
    const KvHeadPlace head = kv_head_place(shape, group);
    (void)quantise_head(shape, block, anchor, head, classes, scratch.integers, count);
    if (!writer.put(group, scratch.integers)) return 0;
    if (last == nullptr) last = writer.extra().data() + writer.extra().size();
    if (in_head == 0) continue;
    last -= kExceptionBytes * static_cast<size_t>(in_head);
    std::byte* at = last;
    const auto store = [&](int64_t i, int32_t q) {
      const auto place = static_cast<uint32_t>(group * shape.head_numbers() + i);
      std::memcpy(at, &place, sizeof place);
      std::memcpy(at + sizeof place, &q, sizeof q);
      at += kExceptionBytes;
    };
    (void)quantise_head(shape, block, anchor, head, classes, scratch.integers, store);
  }
  const uint64_t hash = hash_of(shape, anchor);
  std::memcpy(writer.extra().data(), &hash, sizeof hash);
  std::memcpy(writer.extra().data() + sizeof hash, found.bytes,
              static_cast<size_t>(2 * kKvBlockTokens / 4 * shape.layers));
  return writer.finish({});
}

Status kv_decode_paper(const KvGrid& grid, std::span<const std::byte> blob, const KvBlockAt& anchor,
                       const KvBlockAt& out, const KvCodecPath& path) {
  check_shapes(grid, out, anchor);
  const KvGridShape& shape = grid.shape();
  TRY_ASSIGN(BlobReader reader, open_blob(grid, blob));
  if (reader.info.kind != KvBlobKind::kPaper)
    return invalid_argument("an encoded KV block does not have the bounds of the paper; decode it with kv_decode.");
  if (reader.info.anchor != hash_of(shape, anchor))
    return invalid_argument(
        "an encoded KV block is a difference to another anchor than the one given; decode it with the anchor it was "
        "made with, or compute the block anew.");
  const Classes classes(reader.extra.data() + sizeof(uint64_t));
  const std::byte* exception =
      reader.extra.data() + reader.extra.size() - kExceptionBytes * static_cast<size_t>(reader.exceptions);
  int32_t left = reader.exceptions;
  KvHeadScratch scratch;
  for (int64_t group = 0; group < kv_groups(shape, shape.layers); ++group) {
    const KvHeadPlace head = kv_head_place(shape, group);
    if (!reader.take(shape, group, path, scratch.integers)) return damaged_blob();
    std::byte* const to = out.view.head(out.block, head.layer, head.v, head.kv_head);
    for (int64_t at = 0; at < shape.head_numbers(); at += 16) {
      float numbers[16];
      load16(shape, bytes_of(anchor, head), at, numbers);
      for (int64_t i = 0; i < 16; ++i) {
        int32_t q = scratch.integers[at + i];
        uint32_t place = 0;
        if (left > 0) std::memcpy(&place, exception, sizeof place);
        if (left > 0 && place == static_cast<uint32_t>(group * shape.head_numbers() + at + i)) {
          std::memcpy(&q, exception + sizeof place, sizeof q);
          exception += kExceptionBytes;
          --left;
        }
        const int kind = classes.of(head, token_of(shape, head, at + i));
        if (kind > 2) return damaged_blob();
        numbers[i] = clamped(shape.dtype, static_cast<double>(numbers[i]) + 2 * kKvPaperBounds[kind] * q);
      }
      encode_row(shape.dtype, numbers, to + row_bytes(shape.dtype, at), 16);
    }
  }
  if (left > 0 || !reader.at_its_end()) return damaged_blob();
  return {};
}

}  // namespace loralei

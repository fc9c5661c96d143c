// SPDX-License-Identifier: Apache-2.0
// Blocks of caches for tests: random shapes, bytes behind a KvView, numbers in and out
// one at a time. One thread. No failure but CHECKs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "codec/kv_blob.h"
#include "codec/kv_grid.h"
#include "codec/kv_numbers.h"
#include "tensor/codec.h"

namespace loralei {

inline constexpr DType kCacheTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8};

inline KvGridShape random_shape(Prng& prng, DType dtype) {
  return {.layers = 1 + static_cast<int32_t>(prng.below(6)),
          .kv_heads = 1 + static_cast<int32_t>(prng.below(4)),
          .head_dim = 16 + static_cast<int32_t>(prng.below(113)),
          .dtype = dtype};
}

inline float normal(Prng& prng) {
  double sum = -6;  // of twelve: nearly normal
  for (int i = 0; i < 12; ++i) sum += prng.uniform();
  return static_cast<float>(sum);
}

// A scale for each channel, from 1/16 to 16.
inline std::vector<float> random_scales(Prng& prng, const KvGridShape& shape) {
  std::vector<float> scales(2 * static_cast<size_t>(shape.layers * shape.channels()));
  for (float& scale : scales) scale = static_cast<float>(std::exp2(prng.uniform() * 8 - 4));
  return scales;
}

inline KvGrid grid_of(const KvGridShape& shape, const std::vector<float>& scales, float step) {
  std::vector<float> steps;
  for (const float scale : scales) steps.push_back(scale * step);
  if (has_vector_scale(shape.dtype)) steps.clear();
  auto grid = KvGrid::create(shape, steps);
  CHECK(grid.ok());
  return *grid;
}

// `blocks` blocks of a cache, as kv/ lays them out but for gaps between them.
class TestCache {
 public:
  explicit TestCache(const KvGridShape& shape, int32_t blocks = 1, uint8_t fill = 0xA5) {
    view_.dtype = shape.dtype;
    view_.kv_heads = shape.kv_heads;
    view_.head_dim = shape.head_dim;
    view_.head_stride_bytes = kv_head_bytes(shape.dtype, shape.head_dim);
    view_.kv_stride_bytes = view_.head_stride_bytes * shape.kv_heads + 64;
    view_.layer_stride_bytes = 2 * view_.kv_stride_bytes;
    view_.block_stride_bytes = shape.layers * view_.layer_stride_bytes;
    bytes_.assign(static_cast<size_t>(blocks * view_.block_stride_bytes), std::byte{fill});
    view_.base = bytes_.data();
  }
  const KvView& view() const { return view_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  // Place of number `i` of a head.
  std::byte* place(int32_t block, int32_t layer, int32_t v, int32_t head, int64_t i) const {
    return view_.head(block, layer, v, head) + i * row_bytes(view_.dtype, 1);
  }
  float get(int32_t block, int32_t layer, int32_t v, int32_t head, int64_t i) const {
    float x;
    decode_row(view_.dtype, place(block, layer, v, head, i), &x, 1);
    return x;
  }
  void set(int32_t block, int32_t layer, int32_t v, int32_t head, int64_t i, float x) const {
    encode_row(view_.dtype, &x, place(block, layer, v, head, i), 1);
  }

 private:
  KvView view_;
  std::vector<std::byte> bytes_;
};

template <typename Visit>
void for_numbers(const KvGridShape& shape, Visit visit) {
  for (int32_t layer = 0; layer < shape.layers; ++layer)
    for (int32_t v = 0; v < 2; ++v)
      for (int32_t head = 0; head < shape.kv_heads; ++head)
        for (int64_t i = 0; i < shape.head_numbers(); ++i) visit(layer, v, head, i);
}

// Channel of number `i` of a head, counted over all heads.
inline size_t channel_of(const KvGridShape& shape, int32_t v, int32_t head, int64_t i) {
  const int64_t d = v == 0 ? i / kKvBlockTokens : i % shape.head_dim;
  return static_cast<size_t>(head * shape.head_dim + d);
}

// Fills a block: numbers of each channel's scale, or of int8 and fp8 random codes.
inline void fill_block(Prng& prng, const KvGridShape& shape, const std::vector<float>& scales, const TestCache& cache,
                       int32_t block) {
  if (!has_vector_scale(shape.dtype)) {
    for_numbers(shape, [&](int32_t layer, int32_t v, int32_t head, int64_t i) {
      const size_t at = static_cast<size_t>(2 * layer + v) * static_cast<size_t>(shape.channels());
      cache.set(block, layer, v, head, i, normal(prng) * scales[at + channel_of(shape, v, head, i)]);
    });
    return;
  }
  const double spread = 4 + prng.uniform() * 60;
  for_numbers(shape, [&](int32_t layer, int32_t v, int32_t head, int64_t i) {
    const auto code = static_cast<int>(normal(prng) * spread);
    *cache.place(block, layer, v, head, i) = static_cast<std::byte>(code & 0xFF);
    if (i >= kKvBlockTokens) return;
    const auto scale = static_cast<float>(prng.uniform());
    std::memcpy(cache.place(block, layer, v, head, shape.head_numbers()) + sizeof(float) * static_cast<size_t>(i),
                &scale, sizeof scale);
  });
}

// The second = the first + noise of so many times each channel's scale.
inline void fill_near(Prng& prng, const KvGridShape& shape, const std::vector<float>& scales, const TestCache& from,
                      const TestCache& to, float noise) {
  for_numbers(shape, [&](int32_t layer, int32_t v, int32_t head, int64_t i) {
    if (has_vector_scale(shape.dtype)) {
      const auto code = std::to_integer<int>(*from.place(0, layer, v, head, i));
      *to.place(0, layer, v, head, i) = static_cast<std::byte>((code + static_cast<int>(normal(prng) * 3)) & 0xFF);
      return;
    }
    const size_t at = static_cast<size_t>(2 * layer + v) * static_cast<size_t>(shape.channels());
    const float scale = scales[at + channel_of(shape, v, head, i)];
    to.set(0, layer, v, head, i, from.get(0, layer, v, head, i) + noise * scale * normal(prng));
  });
}

// A buffer of exactly these bytes, so that a sanitizer sees what is read beyond.
__attribute__((noinline)) inline std::unique_ptr<std::byte[]> exact_copy(std::span<const std::byte> bytes) {
  auto copy = std::make_unique<std::byte[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  return copy;
}

inline std::vector<std::byte> encoded(const KvGrid& grid, const KvNumbers& numbers, const KvNumbers* anchor,
                                      const KvCodecPath& path = kv_codec_path()) {
  std::vector<std::byte> blob(kv_blob_bound(grid));
  const size_t size = kv_encode(grid, numbers, anchor, blob, path);
  CHECK(size > 0);
  blob.resize(size);
  return blob;
}

inline bool same_numbers(const KvNumbers& a, const KvNumbers& b) {
  if (a.layers() != b.layers()) return false;
  for (int32_t layer = 0; layer < a.layers(); ++layer) {
    if (std::memcmp(a.layer(layer).data(), b.layer(layer).data(), a.layer(layer).size_bytes()) != 0) return false;
  }
  const auto x = a.scales(a.layers()), y = b.scales(b.layers());
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size_bytes()) == 0);
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// KvNumbers: the integers of one block of a cache, and of int8 and fp8 its scales.
//
//   integers   int16 [layers][2][kv_heads][head_dim * 16], each head in the order of
//              storage (K [head_dim, 16], V [16, head_dim])
//   scales     f32 [layers][2][kv_heads][16], of int8 and fp8 alone
//
// A block may be held in part: layers [0, layers()) are there.
//
// Thread: a value; one thread at a time.
// Ownership: owns its memory, which is taken once when it is made.
// Invariants: the shape is a grid's. What is beyond layers() is not looked at.
// Failure: kv_read says false where a number has no integer (NaN, infinity, beyond 32767
// steps): the block stays raw, and `numbers` holds no layers. CHECKs that grid, view and
// numbers have one shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/kv_grid.h"
#include "codec/path.h"
#include "ops/args.h"

namespace loralei {

class KvNumbers {
 public:
  explicit KvNumbers(const KvGrid& grid);

  const KvGridShape& shape() const { return shape_; }
  int32_t layers() const { return layers_; }
  void set_layers(int32_t layers);  // whose integers are there now

  std::span<int16_t> layer(int32_t layer) { return {integers_.data() + layer_at(layer), layer_size()}; }
  std::span<const int16_t> layer(int32_t layer) const { return {integers_.data() + layer_at(layer), layer_size()}; }
  int16_t* head(int32_t layer, int32_t v, int32_t kv_head) { return integers_.data() + head_at(layer, v, kv_head); }
  const int16_t* head(int32_t layer, int32_t v, int32_t kv_head) const {
    return integers_.data() + head_at(layer, v, kv_head);
  }
  // Of layers [0, layers): [layers][2][kv_heads][16].
  std::span<float> scales(int32_t layers);
  std::span<const float> scales(int32_t layers) const;

  int64_t bytes() const;  // of memory

 private:
  size_t layer_size() const { return static_cast<size_t>(shape_.layer_numbers()); }
  size_t layer_at(int32_t layer) const { return static_cast<size_t>(layer) * layer_size(); }
  size_t head_at(int32_t layer, int32_t v, int32_t kv_head) const {
    return layer_at(layer) + static_cast<size_t>((v * shape_.kv_heads + kv_head) * shape_.head_numbers());
  }

  KvGridShape shape_;
  int32_t layers_ = 0;
  std::vector<int16_t> integers_;
  std::vector<float> scales_;
};

// The first `layers` layers of a block of a cache; false: not encodable.
[[nodiscard]] bool kv_read(const KvGrid& grid, const KvView& view, int32_t block, int32_t layers, KvNumbers& numbers,
                           const KvCodecPath& path = kv_codec_path());
[[nodiscard]] inline bool kv_read(const KvGrid& grid, const KvView& view, int32_t block, KvNumbers& numbers) {
  return kv_read(grid, view, block, grid.shape().layers, numbers);
}
// And back; CHECKs that so many layers are there.
void kv_write(const KvGrid& grid, const KvNumbers& numbers, int32_t layers, const KvView& view, int32_t block,
              const KvCodecPath& path = kv_codec_path());
inline void kv_write(const KvGrid& grid, const KvNumbers& numbers, const KvView& view, int32_t block) {
  kv_write(grid, numbers, grid.shape().layers, view, block);
}

// Of a layer's integers, and of all layers that are there: which block these are. Scales
// do not count: deltas are of integers alone.
uint64_t kv_layer_hash(const KvNumbers& numbers, int32_t layer);
uint64_t kv_numbers_hash(const KvNumbers& numbers);
// The latter from the former, layer by layer.
inline constexpr uint64_t kKvHashStart = 0x6b762d6e756d;
uint64_t kv_fold_hash(uint64_t hash, uint64_t layer_hash);

}  // namespace loralei

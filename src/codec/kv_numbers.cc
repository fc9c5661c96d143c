// SPDX-License-Identifier: Apache-2.0
#include "codec/kv_numbers.h"

#include <cstring>

#include "base/check.h"
#include "base/fast_hash.h"

namespace loralei {
namespace {

KvHeadForm head_form(const KvGrid& grid, int32_t layer, int32_t v, int32_t kv_head) {
  const KvGridShape& shape = grid.shape();
  KvHeadForm form{.dtype = shape.dtype, .is_v = v == 1, .head_dim = shape.head_dim};
  if (has_vector_scale(shape.dtype)) return form;
  form.steps = grid.steps(layer, v).data() + kv_head * shape.head_dim;
  form.inv_steps = grid.inv_steps(layer, v).data() + kv_head * shape.head_dim;
  return form;
}

void check_shapes(const KvGrid& grid, const KvView& view, int32_t layers, const KvNumbers& numbers) {
  const KvGridShape& shape = grid.shape();
  CHECK(numbers.shape() == shape);
  CHECK(view.dtype == shape.dtype && view.kv_heads == shape.kv_heads && view.head_dim == shape.head_dim);
  CHECK(layers >= 0 && layers <= shape.layers);
}

template <typename Visit>
void for_heads(const KvGridShape& shape, int32_t layers, Visit visit) {
  for (int32_t layer = 0; layer < layers; ++layer) {
    for (int32_t v = 0; v < 2; ++v) {
      for (int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) visit(layer, v, kv_head);
    }
  }
}

}  // namespace

KvNumbers::KvNumbers(const KvGrid& grid)
    : shape_(grid.shape()),
      integers_(static_cast<size_t>(shape_.numbers())),
      scales_(static_cast<size_t>(shape_.layers * shape_.layer_scales())) {}

void KvNumbers::set_layers(int32_t layers) {
  CHECK(layers >= 0 && layers <= shape_.layers);
  layers_ = layers;
}

std::span<float> KvNumbers::scales(int32_t layers) {
  return std::span(scales_).first(static_cast<size_t>(layers * shape_.layer_scales()));
}
std::span<const float> KvNumbers::scales(int32_t layers) const {
  return std::span(scales_).first(static_cast<size_t>(layers * shape_.layer_scales()));
}

int64_t KvNumbers::bytes() const {
  return static_cast<int64_t>(integers_.capacity() * sizeof(int16_t) + scales_.capacity() * sizeof(float));
}

bool kv_read(const KvGrid& grid, const KvView& view, int32_t block, int32_t layers, KvNumbers& numbers,
             const KvCodecPath& path) {
  check_shapes(grid, view, layers, numbers);
  const KvGridShape& shape = grid.shape();
  const bool scaled = has_vector_scale(shape.dtype);
  float* scale = numbers.scales(layers).data();
  bool good = true;
  numbers.set_layers(0);
  for_heads(shape, layers, [&](int32_t layer, int32_t v, int32_t kv_head) {
    if (!good) return;
    const std::byte* const head = view.head(block, layer, v, kv_head);
    good = path.read_head(head_form(grid, layer, v, kv_head), head, numbers.head(layer, v, kv_head));
    if (!scaled) return;
    std::memcpy(scale, head + shape.head_numbers(), kKvBlockTokens * sizeof(float));
    scale += kKvBlockTokens;
  });
  if (good) numbers.set_layers(layers);
  return good;
}

void kv_write(const KvGrid& grid, const KvNumbers& numbers, int32_t layers, const KvView& view, int32_t block,
              const KvCodecPath& path) {
  check_shapes(grid, view, layers, numbers);
  CHECK(layers <= numbers.layers());
  const KvGridShape& shape = grid.shape();
  const bool scaled = has_vector_scale(shape.dtype);
  const float* scale = numbers.scales(layers).data();
  for_heads(shape, layers, [&](int32_t layer, int32_t v, int32_t kv_head) {
    std::byte* const head = view.head(block, layer, v, kv_head);
    path.write_head(head_form(grid, layer, v, kv_head), numbers.head(layer, v, kv_head), head);
    if (!scaled) return;
    std::memcpy(head + shape.head_numbers(), scale, kKvBlockTokens * sizeof(float));
    scale += kKvBlockTokens;
  });
}

uint64_t kv_layer_hash(const KvNumbers& numbers, int32_t layer) {
  const std::span<const int16_t> integers = numbers.layer(layer);
  return fast_hash(reinterpret_cast<const std::byte*>(integers.data()), integers.size_bytes(),
                   kKvHashStart + static_cast<uint64_t>(layer));
}

uint64_t kv_fold_hash(uint64_t hash, uint64_t layer_hash) { return mix64(hash ^ layer_hash) + 1; }

uint64_t kv_numbers_hash(const KvNumbers& numbers) {
  uint64_t hash = kKvHashStart;
  for (int32_t layer = 0; layer < numbers.layers(); ++layer) hash = kv_fold_hash(hash, kv_layer_hash(numbers, layer));
  return hash;
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// For tests: adapters of random bytes in memory of their own, and whether a copy has
// them. The bytes are no numbers that anybody could compute with. Byte 0xFF, of which
// poisoned memory is made, is none of them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "adapters/adapter.h"
#include "base/prng.h"
#include "engine/emulated/adapter_copy.h"
#include "engine/emulated/adapter_places.h"
#include "ops/lora_factors.h"

namespace loralei::testing_support {

inline constexpr CopyShape kMadeShape{.layers = 2, .hidden = 24, .norms = {24, 24, 24, 24, 8, 16}};

class AdapterMaker {
 public:
  explicit AdapterMaker(Prng& random) : random_(random) {}

  // Of so many times 256 bytes, in two layers.
  std::shared_ptr<const Adapter> plain(uint64_t version, int64_t units) {
    auto adapter = begin(version);
    for (const size_t module : {size_t{0}, size_t{kLayerModules + 1}}) {
      LoraPair& pair = adapter->pairs[module];
      pair.rank = 1;
      pair.in = pair.out = static_cast<int32_t>(16 * units);
      pair.a = bytes(row_bytes(DType::kF32, pair.in));
      pair.b_t = bytes(row_bytes(DType::kF32, pair.out));
    }
    return end(std::move(adapter));
  }

  // Any arrays that an adapter can have, or none of a kind.
  std::shared_ptr<const Adapter> any(uint64_t version) {
    auto adapter = begin(version);
    for (size_t module = 0; module < adapter->pairs.size(); ++module)
      if (often()) make_pair(adapter->pairs[module], module + 1 == adapter->pairs.size());
    SavedTensors& saved = adapter->saved;
    const bool tied = often();
    if (often()) saved.embed = matrix();
    if (often()) saved.lm_head = tied && !saved.embed.empty() ? saved.embed : matrix();
    if (often()) saved.final_norm = floats(kMadeShape.hidden);
    for (size_t norm = 0; norm < kLayerNorms; ++norm) make_norms(saved.norms[norm], kMadeShape.norms[norm]);
    if (often()) saved.embed_tokens = {1, 5, 8};
    if (!saved.embed_tokens.empty()) saved.embed_rows = floats(3 * kMadeShape.hidden);
    if (often()) saved.head_tokens = {2, 3};
    if (!saved.head_tokens.empty()) saved.head_rows = floats(2 * kMadeShape.hidden);
    adapter->alora_invocation = {7, 7};
    return end(std::move(adapter));
  }

 private:
  // What an adapter's storage is.
  struct Storage {
    std::deque<std::vector<std::byte>> arrays;
    std::deque<WeightPanel> panels;
  };

  bool often() { return random_.below(3) != 0; }
  std::unique_ptr<Adapter> begin(uint64_t version) {
    storage_ = std::make_shared<Storage>();
    auto adapter = std::make_unique<Adapter>();
    adapter->version = {version};
    adapter->vocab = 99;
    adapter->pairs.resize(static_cast<size_t>(kMadeShape.layers) * kLayerModules + 2);
    return adapter;
  }
  std::shared_ptr<const Adapter> end(std::unique_ptr<Adapter> adapter) {
    adapter->bytes = AdapterPlaces::range_bytes(copy_bytes(*adapter, kMadeShape));  // as a tier counts them
    adapter->storage = std::move(storage_);
    return adapter;
  }
  std::byte* bytes(int64_t count) {
    auto& array = storage_->arrays.emplace_back(static_cast<size_t>(count));
    for (std::byte& byte : array) byte = static_cast<std::byte>(random_.below(255));
    return array.data();
  }
  const float* floats(int64_t count) {
    return reinterpret_cast<const float*>(bytes(count * static_cast<int64_t>(sizeof(float))));
  }
  WeightView matrix() {
    WeightView view;
    view.dtype = often() ? DType::kBF16 : DType::kF32;
    view.rows = 9;
    view.cols = kMadeShape.hidden;
    view.panels = {
        &storage_->panels.emplace_back(WeightPanel{bytes(view.rows * row_bytes(view.dtype, view.cols)), 0, 9}), 1};
    return view;
  }
  void make_norms(std::vector<const float*>& norms, int64_t count) {
    if (!often()) return;
    for (int layer = 0; layer < kMadeShape.layers; ++layer) norms.push_back(often() ? floats(count) : nullptr);
  }
  void make_pair(LoraPair& pair, bool embedding) {
    pair.in = static_cast<int32_t>(1 + random_.below(150));
    pair.out = static_cast<int32_t>(1 + random_.below(150));
    pair.scaling = 0.5f;
    pair.rank = often() ? static_cast<int32_t>(1 + random_.below(5)) : 0;
    const bool int8 = !embedding && !often();
    pair.dtype = int8 ? DType::kF32 : often() ? DType::kBF16 : DType::kF32;
    const auto make_scales = [&](int64_t count) { return floats(pair.rank * lora_quant_groups(count)); };
    if (pair.rank > 0 && int8) {
      pair.a_scale = make_scales(pair.in);
      pair.b_scale = make_scales(pair.out);
    }
    if (pair.rank > 0) {
      pair.a = bytes(pair.rank * lora_a_stride_bytes(pair));
      pair.b_t = bytes(pair.rank * lora_b_stride_bytes(pair));
    }
    if (pair.rank == 0 || !often()) pair.bias_delta = floats(pair.out);
    if (pair.rank > 0 && !often()) pair.b_bias = floats(pair.out);
  }

  Prng& random_;
  std::shared_ptr<Storage> storage_;
};

// One array of an adapter beside the same of its copy.
struct TwinArray {
  const std::byte* source = nullptr;
  const std::byte* copy = nullptr;
  int64_t bytes = 0;
  int32_t layer = 0;  // which brings it
};

// All of them, by name and not by the order in which they lie.
inline std::vector<TwinArray> twin_arrays(const Adapter& source, const Adapter& copy) {
  std::vector<TwinArray> arrays;
  const auto add = [&](const void* a, const void* b, int64_t bytes, int32_t layer) {
    EXPECT_EQ(a == nullptr, b == nullptr);
    if (a != nullptr)
      arrays.push_back({static_cast<const std::byte*>(a), static_cast<const std::byte*>(b), bytes, layer});
  };
  const auto add_floats = [&](const float* a, const float* b, int64_t count, int32_t layer) {
    add(a, b, count * static_cast<int64_t>(sizeof(float)), layer);
  };
  EXPECT_EQ(source.pairs.size(), copy.pairs.size());
  for (size_t module = 0; module < source.pairs.size(); ++module) {
    const LoraPair &a = source.pairs[module], &b = copy.pairs[module];
    const bool head = module + 2 == source.pairs.size(), embed = module + 1 == source.pairs.size();
    const int32_t layer = embed ? 0 : head ? kMadeShape.layers : static_cast<int32_t>(module / kLayerModules);
    EXPECT_TRUE(a.rank == b.rank && a.in == b.in && a.out == b.out && a.dtype == b.dtype && a.scaling == b.scaling);
    add(a.a, b.a, a.rank * lora_a_stride_bytes(a), layer);
    add(a.b_t, b.b_t, a.rank * lora_b_stride_bytes(a), layer);
    add_floats(a.a_scale, b.a_scale, a.rank * lora_quant_groups(a.in), layer);
    add_floats(a.b_scale, b.b_scale, a.rank * lora_quant_groups(a.out), layer);
    add_floats(a.b_bias, b.b_bias, a.out, layer);
    add_floats(a.bias_delta, b.bias_delta, a.out, layer);
  }
  const SavedTensors &a = source.saved, &b = copy.saved;
  const auto add_matrix = [&](const WeightView& x, const WeightView& y, int32_t layer) {
    ASSERT_EQ(x.rows, y.rows);
    EXPECT_TRUE(x.cols == y.cols && x.dtype == y.dtype && x.panels.size() == y.panels.size());
    if (x.empty()) return;
    EXPECT_EQ(y.panels[0].row_count, x.rows);
    add(x.panels[0].data, y.panels[0].data, x.rows * row_bytes(x.dtype, x.cols), layer);
  };
  const auto add_norms = [&](const std::vector<const float*>& x, const std::vector<const float*>& y, int64_t count) {
    ASSERT_EQ(x.size(), y.size());
    for (size_t layer = 0; layer < x.size(); ++layer)
      add_floats(x[layer], y[layer], count, static_cast<int32_t>(layer));
  };
  const bool tied = !a.embed.empty() && !a.lm_head.empty() && a.embed.panels[0].data == a.lm_head.panels[0].data;
  add_matrix(a.embed, b.embed, 0);
  add_matrix(a.lm_head, b.lm_head, tied ? 0 : kMadeShape.layers);
  add_floats(a.final_norm, b.final_norm, kMadeShape.hidden, kMadeShape.layers);
  for (size_t norm = 0; norm < kLayerNorms; ++norm) add_norms(a.norms[norm], b.norms[norm], kMadeShape.norms[norm]);
  EXPECT_TRUE(a.embed_tokens == b.embed_tokens && a.head_tokens == b.head_tokens);
  add_floats(a.embed_rows, b.embed_rows, std::ssize(a.embed_tokens) * kMadeShape.hidden, 0);
  add_floats(a.head_rows, b.head_rows, std::ssize(a.head_tokens) * kMadeShape.hidden, kMadeShape.layers);
  return arrays;
}

inline bool same(const TwinArray& array) {
  return std::memcmp(array.source, array.copy, static_cast<size_t>(array.bytes)) == 0;
}

}  // namespace loralei::testing_support

// SPDX-License-Identifier: Apache-2.0
// What tests of helpers share: adapters whose factors lie in shared memory, and the sums
// of one place beside those of helpers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "adapters/adapter.h"
#include "assist/assist_factors.h"
#include "assist/assist_pool.h"
#include "base/log_test_util.h"
#include "base/prng.h"
#include "device/host/arena.h"
#include "ops/lora_factors.h"
#include "ops/op_table.h"
#include "tensor/codec.h"

namespace loralei {

// Odd sizes, and several strides of every format.
inline AssistShape test_shape() {
  return {.layers = 3,
          .rank_max = 64,
          .ins = {70, 70, 70, 33, 70, 70, 130, 70},
          .outs = {96, 20, 17, 70, 130, 130, 70, 12}};
}

// An adapter that touches most modules: formats, ranks and biases are drawn.
class SharedAdapter {
 public:
  SharedAdapter(Prng& prng, const AssistShape& shape, int32_t rank_max = 0)
      : memory_(std::move(SharedMemory::create("adapter", bytes_for(shape))).value()) {
    if (rank_max == 0) rank_max = shape.rank_max;
    for (int32_t i = 0; i < shape.layers * kLayerModules; ++i) {
      const size_t module = static_cast<size_t>(i % kLayerModules);
      adapter_.pairs.push_back(pair(prng, rank_max, shape.ins[module], shape.outs[module]));
    }
    adapter_.pairs.resize(adapter_.pairs.size() + 2);  // none of the head and the embedding
  }

  const Adapter& adapter() const { return adapter_; }
  Adapter& adapter() { return adapter_; }
  const SharedMemory& memory() const { return memory_; }
  AssistFactors factors(const AssistShape& shape) const {
    return std::move(AssistFactors::make(adapter_, memory_, shape.layers)).value();
  }

 private:
  static int64_t bytes_for(const AssistShape& shape) {
    int64_t bytes = 0;
    for (size_t module = 0; module < kLayerModules; ++module)
      bytes += (int64_t{shape.rank_max} * (shape.ins[module] + shape.outs[module] + 256) + shape.outs[module] * 2) * 4;
    return bytes * shape.layers;
  }

  template <typename T>
  T* take(int64_t count) {
    T* const array = reinterpret_cast<T*>(memory_.data() + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return array;
  }

  float* floats(Prng& prng, int64_t count) {
    float* const values = take<float>(count);
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(prng.uniform() * 2 - 1);
    return values;
  }

  std::byte* factor(Prng& prng, const LoraPair& pair, bool int8, int32_t width, const float** scales, bool of_b) {
    std::vector<float> values(static_cast<size_t>(pair.rank) * static_cast<size_t>(width));
    for (float& value : values) value = static_cast<float>(prng.uniform() * 2 - 1);
    if (!int8) {
      std::byte* const rows = take<std::byte>(pair.rank * row_bytes(pair.dtype, width));
      encode_row(pair.dtype, values.data(), rows, static_cast<int64_t>(values.size()));
      return rows;
    }
    std::byte* const rows = take<std::byte>(pair.rank * lora_quant_row_bytes(width));
    float* const made = take<float>(pair.rank * lora_quant_groups(width));
    quantise_lora(values.data(), pair.rank, width, rows, made, of_b ? 1 : lora_quant_groups(width),
                  of_b ? pair.rank : 1);
    *scales = made;
    return rows;
  }

  LoraPair pair(Prng& prng, int32_t rank_max, int32_t in, int32_t out) {
    constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
    LoraPair pair{.dtype = kTypes[prng.below(3)], .in = in, .out = out};
    if (prng.below(8) == 0) return prng.below(2) == 0 ? LoraPair{} : with_delta(prng, pair);
    pair.rank = static_cast<int32_t>(1 + prng.below(static_cast<uint64_t>(rank_max)));
    const bool int8 = prng.below(4) == 0;
    pair.a = factor(prng, pair, int8, in, &pair.a_scale, false);
    pair.b_t = factor(prng, pair, int8, out, &pair.b_scale, true);
    pair.scaling = static_cast<float>(0.25 + prng.uniform());
    if (prng.below(2) == 0) pair.b_bias = floats(prng, out);
    return prng.below(2) == 0 ? with_delta(prng, pair) : pair;
  }
  LoraPair with_delta(Prng& prng, LoraPair pair) {
    pair.bias_delta = floats(prng, pair.out);
    return pair;
  }

  SharedMemory memory_;
  int64_t used_ = 0;
  Adapter adapter_;
};

// One thread with an op table, as the caller of a pool has it.
class OnePlace {
 public:
  OnePlace(const OpTable& table, const AssistShape& shape, int32_t rows_max) : table_(table), pool_(1) {
    const OpLimits limits{.rows_max = rows_max,
                          .in_max = shape.in_max(),
                          .heads = 1,
                          .kv_heads = 1,
                          .head_dim = 64,
                          .rank_max = shape.rank_max,
                          .segments_max = 1,
                          .threads = 1};
    scratch_ = HostBuffer::allocate(table.scratch_bytes(limits)).value();
    ctx_.pool = &pool_;
    ctx_.scratch = scratch_.bytes();
  }

  void lora(const LoraPair& pair, const float* x, int64_t x_stride, int32_t rows, float scale, float* y) {
    const LoraSource source{&pair};
    const LoraTarget target{y, pair.out, &source, pair.out};
    const LoraSegment segment{0, rows, 0, scale};
    table_.lora(ctx_, {x, x_stride, pair.in, {&segment, 1}, {&target, 1}});
  }
  void lora_add(const LoraSumArgs& args) { table_.lora_add(ctx_, args); }

 private:
  const OpTable& table_;
  ThreadPool pool_;
  HostBuffer scratch_;
  OpContext ctx_;
};

// A task over random rows, and what it must bring.
struct TestTask {
  const Adapter* adapter = nullptr;
  AssistTask task;
  std::vector<float> x;
  float scale = 1;

  TestTask(Prng& prng, const AssistShape& shape, const Adapter& of, AdapterVersionId version, int32_t rows_max)
      : adapter(&of), scale(static_cast<float>(prng.uniform() * 2)) {
    const uint32_t group = kAssistGroups[prng.below(kAssistGroups.size())];
    uint32_t modules = 0;
    while (modules == 0) modules = group & static_cast<uint32_t>(prng.below(1 << kLayerModules));
    size_t module = 0;
    while ((modules >> module & 1) == 0) ++module;
    const int32_t stride = shape.ins[module] + static_cast<int32_t>(prng.below(3));
    task = {.version = version,
            .layer = static_cast<int32_t>(prng.below(static_cast<uint64_t>(shape.layers))),
            .modules = modules,
            .x_stride = stride,
            .rows = static_cast<int32_t>(1 + prng.below(static_cast<uint64_t>(rows_max)))};
    x.resize(static_cast<size_t>(task.rows) * static_cast<size_t>(stride));
    for (float& value : x) value = prng.below(16) == 0 ? -0.0f : static_cast<float>(prng.uniform() * 2 - 1);
    task.x = x.data();
  }

  // y of one module in one place, from y = a little of everything.
  std::vector<float> start(Module module) const {
    const LoraPair& pair = adapter->pair(task.layer, module);
    std::vector<float> y(static_cast<size_t>(task.rows) * static_cast<size_t>(pair.out));
    for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(i % 7) - 3.0f;
    return y;
  }
};

// Whether the sums of a ticket, added, are the product in one place: bit for bit.
class SumCheck {
 public:
  SumCheck(OnePlace& place, const TestTask& test) : place_(place), test_(test), y_(kLayerModules) {
    for (int32_t i = 0; i < kLayerModules; ++i) {
      if ((test.task.modules >> i & 1) != 0) y_[static_cast<size_t>(i)] = test.start(static_cast<Module>(i));
    }
  }
  void operator()(int32_t row_begin, int32_t rows, Module module, const float* sums, int64_t stride) {
    const LoraPair& pair = test_.adapter->pair(test_.task.layer, module);
    rows_[static_cast<size_t>(module)] += rows;
    place_.lora_add({.sums = sums,
                     .sums_stride = stride,
                     .rows = rows,
                     .pair = &pair,
                     .scale = test_.scale,
                     .y = y_[static_cast<size_t>(module)].data() + int64_t{row_begin} * pair.out,
                     .y_stride = pair.out});
  }
  bool is_right() {
    for (int32_t i = 0; i < kLayerModules; ++i) {
      if ((test_.task.modules >> i & 1) == 0) continue;
      const auto module = static_cast<Module>(i);
      const LoraPair& pair = test_.adapter->pair(test_.task.layer, module);
      std::vector<float> expected = test_.start(module);
      const auto& y = y_[static_cast<size_t>(i)];
      place_.lora(pair, test_.task.x, test_.task.x_stride, test_.task.rows, test_.scale, expected.data());
      if (rows_[static_cast<size_t>(i)] != test_.task.rows) return false;
      if (!y.empty() && std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) != 0) return false;
    }
    return true;
  }

 private:
  OnePlace& place_;
  const TestTask& test_;
  std::vector<std::vector<float>> y_;
  std::array<int32_t, kLayerModules> rows_{};
};

inline AssistOptions test_options(int32_t helpers, const OpTable& table, int32_t rows_max = 24) {
  AssistOptions options;
  options.program = LORALEI_ASSIST_HELPER;
  options.helpers = helpers;
  options.rows_max = rows_max;
  options.shape = test_shape();
  options.ops_table = table.name;
  options.helper_spin_ns = options.caller_spin_ns = 5'000;  // tests share their cores
  options.start_at_most_ns = 60'000'000'000;
  return options;
}

}  // namespace loralei

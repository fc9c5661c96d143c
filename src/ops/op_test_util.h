// SPDX-License-Identifier: Apache-2.0
// What the tests of kernels share: seeded data, weights in any format and any panels,
// a context with scratch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "device/host/arena.h"
#include "ops/emulated_amx.h"
#include "ops/op_table.h"
#include "tensor/codec.h"

namespace loralei {

inline constexpr DType kAllDTypes[] = {DType::kF32,   DType::kF16,   DType::kBF16, DType::kQ8_0,   DType::kQ4_0,
                                       DType::kQ4_1,  DType::kQ5_0,  DType::kQ5_1, DType::kQ4_K,   DType::kQ5_K,
                                       DType::kQ6_K,  DType::kQ2_K,  DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS,
                                       DType::kMXFP4, DType::kInt4G, DType::kF8G};
inline constexpr DType kPlainDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
inline constexpr double kEps = 0x1p-24;  // half an ulp of f32, relative

inline std::vector<float> random_floats(Prng& prng, int64_t count, float scale = 1.0f) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(prng.uniform() * 2 - 1) * scale;
  return values;
}

// Any blocks with tame scales: the halves in a block's scale positions are replaced,
// everything else is random bits.
inline std::vector<std::byte> random_rows(Prng& prng, DType dtype, int64_t rows, int64_t cols) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows * row_bytes(dtype, cols)));
  if (can_encode(dtype)) {
    const std::vector<float> values = random_floats(prng, rows * cols);
    encode_row(dtype, values.data(), bytes.data(), rows * cols);
    return bytes;
  }
  const DTypeInfo info = dtype_info(dtype);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng());
  const int at_in_block = dtype == DType::kQ6_K ? 208 : dtype == DType::kQ2_K ? 80 : dtype == DType::kQ3_K ? 108 : 0;
  const bool two = dtype != DType::kQ6_K && dtype != DType::kQ5_0 && dtype != DType::kQ3_K && dtype != DType::kIQ4_NL &&
                   dtype != DType::kIQ4_XS;
  for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(info.block_bytes)) {
    if (dtype == DType::kF8G) {
      const float d = static_cast<float>(prng.uniform() * 0.001);
      std::memcpy(&bytes[block], &d, 4);
      for (size_t i = block + 4; i < block + 132; ++i) {  // no NaN
        if ((bytes[i] & std::byte{0x7F}) == std::byte{0x7F}) bytes[i] ^= std::byte{1};
      }
      continue;
    }
    const uint16_t d = f32_to_f16(static_cast<float>(prng.uniform() * 0.01)),
                   m = f32_to_f16(dtype == DType::kInt4G ? static_cast<float>(prng.below(17))
                                                         : static_cast<float>(prng.uniform() * 0.02));
    if (dtype == DType::kMXFP4) {  // a power of two from 2^-12 to 2^-6, halved
      bytes[block] = static_cast<std::byte>(115 + prng.below(7));
      continue;
    }
    const size_t at = block + static_cast<size_t>(at_in_block);
    std::memcpy(&bytes[at], &d, 2);
    if (two) std::memcpy(&bytes[at + 2], &m, 2);
  }
  return bytes;
}

// A weight matrix whose panels lie apart in memory.
struct TestWeights {
  std::vector<std::vector<std::byte>> parts;
  std::vector<WeightPanel> panels;
  std::vector<float> values;  // [rows, cols] decoded
  WeightView view;

  TestWeights(Prng& prng, DType dtype, int32_t rows, int32_t cols, int panel_count = 1) {
    for (int32_t row = 0; row < rows;) {
      const int32_t rest = rows - row;
      int32_t count = static_cast<int>(parts.size()) + 1 >= panel_count
                          ? rest
                          : std::min(rest, kRowTile * (1 + static_cast<int32_t>(prng.below(3))));
      parts.push_back(random_rows(prng, dtype, count, cols));
      panels.push_back({parts.back().data(), row, count});
      row += count;
    }
    for (const WeightPanel& panel : panels) {
      const size_t start = values.size();
      values.resize(start + static_cast<size_t>(panel.row_count) * static_cast<size_t>(cols));
      decode_row(dtype, panel.data, values.data() + start, int64_t{panel.row_count} * cols);
    }
    view = {dtype, LayoutId::kPlain, rows, cols, panels};
  }
};

inline constexpr OpLimits kTestLimits{.rows_max = 256,
                                      .in_max = 4608,
                                      .heads = 40,
                                      .kv_heads = 1,
                                      .head_dim = 256,
                                      .rank_max = 128,
                                      .segments_max = 64,
                                      .threads = 4,
                                      .key_dim = 256,
                                      .value_dim = 256};

struct TestContext {
  std::unique_ptr<ThreadPool> pool;
  HostBuffer scratch;
  OpContext ctx;
};

// A context with nothing counted yet. Pools are kept between calls: starting threads for
// each would be most of the time of these tests. Nothing may be read from scratch before
// it is written: it is filled with NaNs.
inline TestContext& fresh_context(const OpTable& table, int threads = 2) {
  static std::map<std::pair<std::string, int>, TestContext> contexts;
  TestContext& context = contexts[{table.name, threads}];
  if (context.pool == nullptr) {
    context.pool = std::make_unique<ThreadPool>(threads);
    context.scratch = HostBuffer::allocate(table.scratch_bytes(kTestLimits)).value();
    context.ctx.pool = context.pool.get();
    context.ctx.scratch = context.scratch.bytes();
  }
  std::fill(context.ctx.scratch.begin(), context.ctx.scratch.end(), std::byte{0xFF});
  context.ctx.op_count = 0;
  context.ctx.tuning = {};
  return context;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Every table of this machine as a test parameter.
class EveryTable : public testing::TestWithParam<const OpTable*> {
 protected:
  const OpTable& table() const { return *GetParam(); }
};
inline std::string table_name(const testing::TestParamInfo<const OpTable*>& info) { return info.param->name; }
#define FOR_EVERY_TABLE(fixture) \
  INSTANTIATE_TEST_SUITE_P(Ops, fixture, testing::ValuesIn(available_op_tables()), table_name)

// Products on the matrix unit of other machines are tested as well.
inline std::vector<const OpTable*> product_tables() {
  std::vector<const OpTable*> tables = available_op_tables();
  for (const OpTable* table : emulated_amx_tables()) tables.push_back(table);
  return tables;
}
#define FOR_EVERY_PRODUCT_TABLE(fixture) \
  INSTANTIATE_TEST_SUITE_P(Ops, fixture, testing::ValuesIn(product_tables()), table_name)

}  // namespace loralei

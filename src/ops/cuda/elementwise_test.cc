// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "ops/cuda/cuda_test_util.h"

namespace loralei::cuda {
namespace {

using CudaElementwise = CudaTest;

TEST_F(CudaElementwise, RmsNormAgreesWithTheReference) {
  Prng prng(901);
  // The last number of each: how far vectors lie apart beyond their size; whole fours
  // have kernels of their own.
  for (const auto& [rows, vectors, dim, more] : {std::tuple{1, 1, 2048, 4},
                                                 {3, 1, 2048, 3},
                                                 {2, 1, 4100, 4},
                                                 {1, 2, 8200, 4},
                                                 {1, 1, 16388, 4},
                                                 {7, 1, 333, 3},
                                                 {9, 4, 64, 3},
                                                 {5, 3, 5, 3},
                                                 {2, 1, 1, 3}}) {
    const int64_t stride = int64_t{vectors} * dim + more;
    const std::vector<float> x = random_floats(prng, rows * stride, 5.0f), weight = random_floats(prng, dim);
    std::vector<float> expected = x;
    ref_op_table().rms_norm(fresh_context(ref_op_table()).ctx, {.x = x.data(),
                                                                .x_stride = stride,
                                                                .y = expected.data(),
                                                                .y_stride = stride,
                                                                .weight = weight.data(),
                                                                .rows = rows,
                                                                .vectors = vectors,
                                                                .dim = dim});
    for (DType dtype : kPlainDTypes) {
      auto on_device = device(x), weights = device(weight);
      auto y = room(dtype, rows * stride);
      const bool in_place = dtype == DType::kF32;
      LAUNCH_OK(rms_norm(stream_, {.x = on_device.data(),
                                   .x_stride = stride,
                                   .y = in_place ? static_cast<void*>(on_device.data()) : y.data(),
                                   .y_dtype = dtype,
                                   .y_stride = stride,
                                   .weight = weights.data(),
                                   .rows = rows,
                                   .vectors = vectors,
                                   .dim = dim}));
      const std::vector<float> got = in_place ? on_device.get() : decoded(dtype, y.get());
      for (int64_t i = 0; i < rows * stride; ++i) {
        const auto at = static_cast<size_t>(i);
        if (i % stride >= stride - more) {
          EXPECT_TRUE(in_place ? got[at] == x[at] : std::isnan(got[at]));
          continue;
        }
        const double want = static_cast<double>(expected[at]);
        const double tiny = dtype == DType::kF16 ? 0x1p-25 : 0;  // half of f16's smallest step
        ASSERT_NEAR(static_cast<double>(got[at]), want,
                    (kEps * (dim / 32.0 + 16) + relative_error(dtype)) * std::fabs(want) + tiny);
      }
    }
  }
}

TEST_F(CudaElementwise, RopeTurnsByExactAnglesAtFarPositions) {
  Prng prng(902);
  for (int32_t head_dim : {2, 20, 64, 128}) {
    const int32_t heads = 6, rows = 9;
    const int64_t stride = int64_t{heads} * head_dim + 1;
    const std::vector<int32_t> positions = {0, 1, 2, 77, 1000, 4095, 32767, 131071, 1000003};
    std::vector<float> inv_freq;
    for (int32_t i = 0; i < head_dim / 2; ++i)
      inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / head_dim)));
    const std::vector<float> x = random_floats(prng, rows * stride);
    std::vector<float> expected = x;
    std::vector<float> angles(static_cast<size_t>(rows * head_dim));
    TestContext& context = fresh_context(ref_op_table());
    ref_op_table().rope_angles(context.ctx, {.positions = positions.data(),
                                             .inv_freq = inv_freq.data(),
                                             .attention_scale = 1.25f,
                                             .rows = rows,
                                             .head_dim = head_dim,
                                             .angles = angles.data()});
    ref_op_table().rope(context.ctx, {.x = expected.data(),
                                      .stride = stride,
                                      .rows = rows,
                                      .heads = heads,
                                      .head_dim = head_dim,
                                      .angles = angles.data()});
    auto y = device(x), freq = device(inv_freq);
    auto at = device(positions);
    LAUNCH_OK(rope(stream_, {y.data(), stride, rows, heads, head_dim, at.data(), freq.data(), 1.25f}));
    const std::vector<float> got = y.get();
    // Four roundings of numbers up to 1.25, sine and cosine to 2 ulp, the angle to
    // half an ulp of pi.
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(expected[i]), 40 * kEps) << i;
  }
}

TEST_F(CudaElementwise, SwigluAndSumsAgree) {
  Prng prng(903);
  for (const auto& [rows, dim] : {std::tuple{1, 1}, {3, 300}, {5, 1024}}) {
    const int64_t stride = dim + 5;
    const std::vector<float> gate = random_floats(prng, rows * stride, 20), up = random_floats(prng, rows * stride, 3);
    std::vector<float> product = gate, sum = gate;
    TestContext& context = fresh_context(ref_op_table());
    ref_op_table().swiglu(context.ctx, {product.data(), up.data(), stride, rows, dim});
    ref_op_table().add(context.ctx, {up.data(), stride, sum.data(), stride, rows, dim});
    auto g = device(gate), u = device(up);
    for (DType dtype : kPlainDTypes) {
      auto y = room(dtype, int64_t{rows} * dim);
      LAUNCH_OK(swiglu(stream_, {g.data(), u.data(), stride, y.data(), dtype, dim, rows, dim}));
      const std::vector<float> got = decoded(dtype, y.get());
      for (int32_t row = 0; row < rows; ++row) {
        for (int32_t i = 0; i < dim; ++i) {
          const double want = static_cast<double>(product[static_cast<size_t>(row * stride + i)]);
          // exp of 20 at worst: 20 * 2^-24 relative from its argument, more from the
          // fast exponential.
          ASSERT_NEAR(static_cast<double>(got[static_cast<size_t>(row * dim + i)]), want,
                      (kEps * 64 + relative_error(dtype)) * std::fabs(want) + 1e-7);
        }
      }
    }
    LAUNCH_OK(add(stream_, {u.data(), stride, g.data(), stride, rows, dim}));
    EXPECT_TRUE(same_bits(g.get(), sum));
    LAUNCH_OK(add(stream_, {u.data(), 0, g.data(), stride, rows, dim}));  // a bias
    for (int32_t row = 0; row < rows; ++row)
      for (int32_t i = 0; i < dim; ++i) sum[static_cast<size_t>(row * stride + i)] += up[static_cast<size_t>(i)];
    EXPECT_TRUE(same_bits(g.get(), sum));
  }
}

TEST_F(CudaElementwise, EmbeddingsAndDecodedWeightsAreTheCodecsBits) {
  Prng prng(904);
  for (DType dtype : kAllDTypes) {
    const int32_t vocab = 37, dim = is_quantised(dtype) ? 512 : 77, rows = 12;
    const std::vector<std::byte> table = random_rows(prng, dtype, vocab, dim);
    std::vector<float> values(static_cast<size_t>(vocab * dim));
    decode_row(dtype, table.data(), values.data(), int64_t{vocab} * dim);
    std::vector<TokenId> tokens;
    for (int i = 0; i < rows; ++i) tokens.push_back(static_cast<TokenId>(prng.below(vocab)));
    tokens[3] = vocab - 1;
    tokens[7] = -1;
    for (LayoutId layout : {LayoutId::kPlain, LayoutId::kTile16}) {
      if (layout == LayoutId::kTile16 && !has_tiles(dtype)) continue;
      auto weights = device(layout == LayoutId::kPlain ? table : in_tiles(dtype, table, vocab, dim));
      const DeviceWeight w{weights.data(), dtype, layout, vocab, dim};
      auto ids = device(tokens);
      auto y = room(DType::kF32, rows * dim);
      const EmbedArgs args{ids.data(), rows, w, reinterpret_cast<float*>(y.data()), dim};
      if (!reads_weights(dtype)) {
        EXPECT_FALSE(embed(stream_, args).ok()) << dtype_info(dtype).name;
        continue;
      }
      LAUNCH_OK(embed(stream_, args));
      const std::vector<float> got = decoded(DType::kF32, y.get());
      for (size_t i = 0; i < got.size(); ++i) {
        const TokenId token = tokens[i / static_cast<size_t>(dim)];
        const float want =
            token < 0 ? 0
                      : values[static_cast<size_t>(token) * static_cast<size_t>(dim) + i % static_cast<size_t>(dim)];
        ASSERT_EQ(got[i], want) << dtype_info(dtype).name << " " << i;
      }
      for (DType to : kPlainDTypes) {
        auto all = room(to, int64_t{vocab} * dim);
        LAUNCH_OK(decode_weights(stream_, {w, all.data(), to}));
        EXPECT_EQ(all.get(), encoded(to, values)) << dtype_info(dtype).name << " to " << dtype_info(to).name;
      }
    }
  }
}

TEST_F(CudaElementwise, GatheredRowsAndRounding) {
  Prng prng(905);
  const int32_t dim = 300;
  const std::vector<float> x = random_floats(prng, 5 * dim, 1000);
  const std::vector<int32_t> from = {4, 0, -1, 4};
  auto source = device(x);
  auto rows = device(from);
  for (DType dtype : kPlainDTypes) {
    auto y = room(dtype, 4 * dim);
    LAUNCH_OK(gather_rows(stream_, {source.data(), dim, rows.data(), y.data(), dtype, dim, 4, dim}));
    std::vector<float> expected;
    for (int32_t row : from)
      for (int32_t i = 0; i < dim; ++i) expected.push_back(row < 0 ? 0 : x[static_cast<size_t>(row * dim + i)]);
    EXPECT_EQ(y.get(), encoded(dtype, expected));
  }
}

TEST_F(CudaElementwise, GatheredRowsGoWhereTheyAreSent) {
  Prng prng(906);
  const int32_t dim = 300;
  const std::vector<float> x = random_floats(prng, 3 * dim), start = random_floats(prng, 5 * dim);
  const std::vector<int32_t> from = {2, 0, 2}, to = {4, 0, 1};
  auto source = device(x), y = device(start);
  auto from_rows = device(from), to_rows = device(to);
  LAUNCH_OK(gather_rows(stream_, {.x = source.data(),
                                  .x_stride = dim,
                                  .from = from_rows.data(),
                                  .y = y.data(),
                                  .y_stride = dim,
                                  .rows = 3,
                                  .dim = dim,
                                  .to = to_rows.data()}));
  std::vector<float> expected = start;
  for (size_t i = 0; i < from.size(); ++i) std::copy_n(x.begin() + from[i] * dim, dim, expected.begin() + to[i] * dim);
  EXPECT_TRUE(same_bits(y.get(), expected));
}

}  // namespace
}  // namespace loralei::cuda

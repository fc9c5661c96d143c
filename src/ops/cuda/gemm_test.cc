// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/gemm.h"

#include "ops/cuda/cuda_test_util.h"
#ifdef LORALEI_CUDA_EMULATION
#include "device/cuda/emulated/emulator.h"
#endif

namespace loralei::cuda {
namespace {

using CudaGemm = CudaTest;

// f32 sums of `in` products of 16-bit numbers, which are exact in f32.
TEST_F(CudaGemm, AgreesWithTheReference) {
  Prng prng(941);
  Gemm gemm = Gemm::open(int64_t{4} << 20).value();
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int32_t rows : {9, 33, 65}) {
      const int32_t in = 128, out = 72;
      TestWeights weights(prng, dtype, out, in);
      const std::vector<float> x = rounded(dtype, random_floats(prng, int64_t{rows} * in));
      const std::vector<float> start = random_floats(prng, int64_t{rows} * out);
      auto dw = device(weights.parts[0]), dx = device(encoded(dtype, x));
      for (bool accumulate : {false, true}) {
        std::vector<float> expected = start;
        ref_op_table().matmul(fresh_context(ref_op_table()).ctx,
                              {x.data(), in, rows, weights.view, nullptr, expected.data(), out, accumulate});
        for (DType y_dtype : {DType::kF32, dtype}) {
          if (accumulate && y_dtype != DType::kF32) continue;
          auto y = device(encoded(y_dtype, start));
          LAUNCH_OK(gemm.run(stream_, {.shape = {in, out, dtype, y_dtype},
                                       .x = dx.data(),
                                       .x_stride = in,
                                       .rows = rows,
                                       .w = dw.data(),
                                       .y = y.data(),
                                       .y_stride = out,
                                       .accumulate = accumulate}));
          const std::vector<float> got = decoded(y_dtype, y.get());
          for (size_t i = 0; i < got.size(); ++i) {
            const double want = static_cast<double>(expected[i]);
            ASSERT_NEAR(static_cast<double>(got[i]), want,
                        kEps * in * (in * 0.3 + 1) / 4 + relative_error(y_dtype) * std::fabs(want));
          }
        }
      }
    }
  }
  EXPECT_EQ(gemm.plan_count(), 8u);  // up to 64 rows are one class
}

// The stride of results decides which algorithms can be used: what a shape does not
// promise is refused, not tried.
TEST_F(CudaGemm, StridesKeepTheShapesAlignment) {
  Prng prng(942);
  Gemm gemm = Gemm::open(int64_t{4} << 20).value();
  const int32_t in = 64, out = 48, rows = 12, stride = out + 5;
  TestWeights weights(prng, DType::kBF16, out, in);
  const std::vector<float> x = rounded(DType::kBF16, random_floats(prng, int64_t{rows} * in));
  auto dw = device(weights.parts[0]), dx = device(encoded(DType::kBF16, x));
  std::vector<float> expected(static_cast<size_t>(rows) * stride);
  ref_op_table().matmul(fresh_context(ref_op_table()).ctx,
                        {x.data(), in, rows, weights.view, nullptr, expected.data(), stride, false});
  auto y = device(std::vector<float>(static_cast<size_t>(rows) * stride + 1));
  GemmArgs args{.shape = {in, out},
                .x = dx.data(),
                .x_stride = in,
                .rows = rows,
                .w = dw.data(),
                .y = y.data() + 1,
                .y_stride = stride};
  EXPECT_FALSE(gemm.run(stream_, args).ok());
  args.shape.alignment_bytes = common_alignment(in * 2, stride * 4);
  EXPECT_EQ(args.shape.alignment_bytes, 4);
  LAUNCH_OK(gemm.run(stream_, args));
  const std::vector<float> got = y.get();
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t o = 0; o < out; ++o) {
      const auto at = static_cast<size_t>(row * stride + o);
      ASSERT_NEAR(static_cast<double>(got[at + 1]), static_cast<double>(expected[at]), kEps * in * (in * 0.3 + 1) / 4);
    }
  }
}

TEST_F(CudaGemm, PlansAreMadeOnceAndOtherFormatsRefused) {
  Gemm gemm = Gemm::open(1 << 20).value();
  const GemmShape shape{.in = 64, .out = 64};
  for (int32_t rows : {100, 128, 65, 129}) ASSERT_TRUE(gemm.prepare(shape, rows).ok());
  EXPECT_EQ(gemm.plan_count(), 2u);
  EXPECT_FALSE(gemm.prepare({.in = 64, .out = 64, .dtype = DType::kF32}, 16).ok());
  Gemm moved = std::move(gemm);
  EXPECT_EQ(moved.plan_count(), 2u);
  EXPECT_TRUE(moved.prepare(shape, 7).ok());
}

#ifdef LORALEI_CUDA_EMULATION
// A library may refuse the algorithm of a class for some of its rows: these have one of
// their own from then on.
TEST_F(CudaGemm, RowsThatTheirClassesPlanDoesNotDoForHaveTheirOwn) {
  Prng prng(943);
  const int32_t in = 32, out = 16, rows = 13;
  TestWeights weights(prng, DType::kBF16, out, in);
  auto dw = device(weights.parts[0]), dx = device(encoded(DType::kBF16, random_floats(prng, int64_t{16} * in)));
  Gemm gemm = Gemm::open(1 << 20).value();
  const auto product = [&](int32_t count) {
    auto y = device(std::vector<float>(size_t{16} * out));
    const GemmArgs args{.shape = {in, out},
                        .x = dx.data(),
                        .x_stride = in,
                        .rows = count,
                        .w = dw.data(),
                        .y = y.data(),
                        .y_stride = out};
    EXPECT_TRUE(gemm.run(stream_, args).ok());
    std::vector<float> got = y.get();
    got.resize(static_cast<size_t>(rows) * out);
    return got;
  };
  const std::vector<float> want = product(16);
  EXPECT_EQ(gemm.plan_count(), 1u);
  cuda_emulated::refused_product_rows = rows;
  EXPECT_EQ(product(rows), want);
  EXPECT_EQ(gemm.plan_count(), 2u);
  EXPECT_EQ(product(rows), want);
  product(12);
  EXPECT_EQ(gemm.plan_count(), 2u);
  cuda_emulated::refused_product_rows = 0;
}
#endif

}  // namespace
}  // namespace loralei::cuda

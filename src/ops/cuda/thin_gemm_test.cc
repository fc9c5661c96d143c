// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "ops/cuda/cuda_test_util.h"

namespace loralei::cuda {
namespace {

constexpr DType kThinDTypes[] = {DType::kBF16, DType::kF16};

class CudaThinGemm : public CudaTest {
 protected:
  struct Product {
    DeviceWeight w;
    const float* bias = nullptr;
    std::vector<float> start;  // [rows, stride]
    int32_t stride = 0;
  };
  // All products by one launch; x is [rows, x_stride].
  std::vector<std::vector<float>> run(const std::vector<float>& x, int32_t x_stride, int32_t rows,
                                      const std::vector<Product>& products, bool accumulate) {
    auto dx = device(encoded(DType::kBF16, x));
    ThinGemmArgs args{.x = dx.data(), .x_stride = x_stride, .rows = rows, .accumulate = accumulate};
    std::vector<DeviceArray<float>> y;
    for (const Product& product : products) y.push_back(device(product.start));
    for (size_t i = 0; i < products.size(); ++i) {
      args.targets[i] = {products[i].w, products[i].bias, y[i].data(), products[i].stride};
    }
    args.target_count = static_cast<int32_t>(products.size());
    const Status launched = thin_gemm(stream_, args);
    EXPECT_TRUE(launched.ok()) << launched.error().message;
    std::vector<std::vector<float>> got;
    for (const auto& each : y) got.push_back(each.get());
    return got;
  }
  std::vector<float> run(const std::vector<float>& x, int32_t rows, const DeviceWeight& w) {
    const Product product{w, nullptr, std::vector<float>(static_cast<size_t>(rows * w.rows), NAN), w.rows};
    return run(x, w.cols, rows, {product}, false)[0];
  }
  // Against the reference, with a bias, gaps between the rows of y, and more behind a
  // row of x than it has.
  void compare(Prng& prng, DType dtype, int32_t out, int32_t in, int32_t rows) {
    SCOPED_TRACE(std::string(dtype_info(dtype).name) + " [" + std::to_string(out) + ", " + std::to_string(in) +
                 "] rows " + std::to_string(rows));
    const int32_t x_stride = in + 8, stride = out + 3;
    TestWeights weights(prng, dtype, out, in);
    std::vector<float> x(static_cast<size_t>(rows * x_stride - 8), NAN), dense;
    const std::vector<float> numbers = rounded(DType::kBF16, random_floats(prng, int64_t{rows} * in));
    for (int32_t row = 0; row < rows; ++row) {
      std::copy_n(numbers.begin() + row * in, in, x.begin() + row * x_stride);
    }
    const std::vector<float> bias = random_floats(prng, out), start = random_floats(prng, int64_t{rows} * stride);
    auto w = device(weights.parts[0]);
    auto db = device(bias);
    for (bool accumulate : {false, true}) {
      std::vector<float> expected = start;
      ref_op_table().matmul(fresh_context(ref_op_table()).ctx,
                            {numbers.data(), in, rows, weights.view, bias.data(), expected.data(), stride, accumulate});
      const Product product{{w.data(), dtype, LayoutId::kPlain, out, in}, db.data(), start, stride};
      const std::vector<float> got = run(x, x_stride, rows, {product}, accumulate)[0];
      for (int32_t row = 0; row < rows; ++row) {
        for (int32_t o = 0; o < stride; ++o) {
          const auto at = static_cast<size_t>(row * stride + o);
          const double room = o < out ? kEps * (in / 32.0 + 16) * (in * 0.5 + 2) : 0;
          ASSERT_NEAR(static_cast<double>(got[at]), static_cast<double>(expected[at]), room) << row << " " << o;
        }
      }
    }
  }
};

// Every number of rows: inputs end within a chunk and within four lanes' loads,
// outputs within a tile.
TEST_F(CudaThinGemm, EveryNumberOfRowsAgreesWithTheReference) {
  Prng prng(951);
  for (int32_t rows = 1; rows <= kThinRows; ++rows) compare(prng, kThinDTypes[rows % 2], 35, 200, rows);
}

TEST_F(CudaThinGemm, EveryShapeAgreesWithTheReference) {
  Prng prng(952);
  for (DType dtype : kThinDTypes) {
    for (const auto& [out, in] :
         {std::pair{1, 32}, {16, 128}, {15, 40}, {17, 1024}, {33, 1160}, {48, 2200}, {5, 1016}}) {
      for (int32_t rows : {1, 9, 17, 33}) compare(prng, dtype, out, in, rows);
    }
    for (int32_t rows : {8, 17, 64}) compare(prng, dtype, 4101, 72, rows);  // blocks of two tiles
  }
}

// A row has the bits of the row alone: whatever their number, their place, what the
// others hold, and however many outputs the launch has.
TEST_F(CudaThinGemm, ARowAloneIsTheRowAmongOthers) {
  Prng prng(953);
  for (DType dtype : kThinDTypes) {
    for (int32_t out : {19, 4100}) {
      const int32_t in = out == 19 ? 1064 : 136;
      TestWeights weights(prng, dtype, out, in);
      auto w = device(weights.parts[0]);
      const DeviceWeight view{w.data(), dtype, LayoutId::kPlain, out, in};
      std::vector<float> x = random_floats(prng, kThinRows * in);
      std::vector<float> alone;
      for (int32_t row = 0; row < kThinRows; ++row) {
        const std::vector<float> one = run({x.begin() + row * in, x.begin() + (row + 1) * in}, 1, view);
        alone.insert(alone.end(), one.begin(), one.end());
        if (out > 19 && row == 6) break;  // those that are looked at
      }
      const auto same = [&](const std::vector<float>& got, int32_t row, int32_t as) {
        EXPECT_EQ(std::memcmp(&got[static_cast<size_t>(row * out)], &alone[static_cast<size_t>(as * out)],
                              static_cast<size_t>(out) * sizeof(float)),
                  0)
            << dtype_info(dtype).name << " " << out << " row " << row << " as " << as;
      };
      for (int32_t rows = 2; rows <= kThinRows; rows += out == 19 ? 1 : 31) {
        const std::vector<float> some = run({x.begin(), x.begin() + rows * in}, rows, view);
        for (int32_t row = 0; row < std::min(rows, out == 19 ? rows : 6); ++row) same(some, row, row);
      }
      // Elsewhere, beside rows without one finite number.
      for (int32_t rows : {7, 16, 30, 64}) {
        std::vector<float> moved(static_cast<size_t>(rows * in), NAN);
        std::copy_n(x.begin() + 5 * in, in, moved.begin() + (rows - 2) * in);
        same(run(moved, rows, view), rows - 2, 5);
      }
    }
  }
}

TEST_F(CudaThinGemm, ProductsOfOneLaunchAreThoseOfLaunchesOfTheirOwn) {
  Prng prng(954);
  const int32_t in = 264;
  for (DType dtype : kThinDTypes) {
    for (int32_t rows : {1, 20}) {
      const std::vector<float> x = random_floats(prng, int64_t{rows} * in);
      std::vector<DeviceArray<std::byte>> bytes;
      std::vector<Product> products;
      std::vector<std::vector<float>> expected;
      for (int32_t out : {40, 7, 4100}) {
        bytes.push_back(device(TestWeights(prng, dtype, out, in).parts[0]));
        const std::vector<float> start = random_floats(prng, int64_t{rows} * out);
        products.push_back({{bytes.back().data(), dtype, LayoutId::kPlain, out, in}, nullptr, start, out});
        for (auto& each : run(x, in, rows, {products.back()}, true)) expected.push_back(std::move(each));
        const auto together = run(x, in, rows, products, true);
        for (size_t i = 0; i < together.size(); ++i) EXPECT_TRUE(same_bits(together[i], expected[i])) << i;
      }
    }
  }
}

// One number at a time, where nothing is rounded: each meets its own input, and f16 ones
// keep all their bits.
TEST_F(CudaThinGemm, EveryNumberIsMultipliedWithItsOwnInputExactly) {
  Prng prng(955);
  const int32_t out = 24, in = 320;
  for (DType dtype : kThinDTypes) {
    std::vector<float> values = rounded(dtype, random_floats(prng, out * in));
    values[0] = 0x1p-24f, values[1] = 0x1.ffcp-15f, values[2] = -65504.0f;  // f16's ends
    values = rounded(dtype, values);
    auto w = device(encoded(dtype, values));
    for (int32_t first = 0; first < in; first += kThinRows) {  // row i has input first + i alone
      std::vector<float> x(static_cast<size_t>(kThinRows * in));
      for (int32_t i = 0; i < kThinRows; ++i) x[static_cast<size_t>(i * in + first + i)] = -2.0f;
      const std::vector<float> got = run(x, kThinRows, {w.data(), dtype, LayoutId::kPlain, out, in});
      for (int32_t i = 0; i < kThinRows; ++i) {
        for (int32_t o = 0; o < out; ++o) {
          ASSERT_EQ(got[static_cast<size_t>(i * out + o)], -2 * values[static_cast<size_t>(o * in + first + i)])
              << dtype_info(dtype).name << " input " << first + i << " output " << o;
        }
      }
    }
  }
}

TEST_F(CudaThinGemm, WeightsItCannotReadAreTold) {
  auto bytes = device(std::vector<std::byte>(1024));
  const DeviceWeight w{bytes.data(), DType::kBF16, LayoutId::kPlain, 4, 64};
  EXPECT_TRUE(has_thin_gemm(w));
  DeviceWeight other = w;
  for (const int32_t cols : {24, 60}) {
    other.cols = cols;
    EXPECT_FALSE(has_thin_gemm(other)) << cols;
  }
  other = w;
  other.data = bytes.data() + 8;
  EXPECT_FALSE(has_thin_gemm(other));
  for (DType dtype : {DType::kF32, DType::kQ8_0}) {
    other = w;
    other.dtype = dtype;
    EXPECT_FALSE(has_thin_gemm(other));
  }
}

}  // namespace
}  // namespace loralei::cuda

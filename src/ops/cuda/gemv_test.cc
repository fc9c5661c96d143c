// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "ops/cuda/cuda_test_util.h"

namespace loralei::cuda {
namespace {

class CudaGemv : public CudaTest {
 protected:
  // round_rows, then tile_gemv.
  std::vector<float> run_tiles(const DeviceWeight& w, const std::vector<float>& x, int32_t rows, const float* bias,
                               const std::vector<float>& start, bool accumulate) {
    const int32_t in = w.cols;
    auto dx = device(x), y = device(start);
    auto q = device(std::vector<int8_t>(static_cast<size_t>(rows * in), 77));
    auto d = room(DType::kF32, rows * in / 32), sums = room(DType::kF32, rows * in / 32);
    const RoundedRows rounded{q.data(), reinterpret_cast<float*>(d.data()), reinterpret_cast<float*>(sums.data())};
    EXPECT_TRUE(round_rows(stream_, {dx.data(), in, rows, in, rounded}).ok());
    EXPECT_TRUE(tile_gemv(stream_, {rounded, rows, {{w, bias, y.data(), w.rows}}, 1, accumulate}).ok());
    return y.get();
  }
};

TEST_F(CudaGemv, RoundedRowsAreTheDefinitionsBits) {
  Prng prng(931);
  std::vector<float> x = random_floats(prng, 3 * 288, 50);
  for (size_t i = 0; i < 32; ++i) x[i] = 0, x[64 + i] = 1e-31f;
  x[288 + 70] = NAN;
  x[288 + 100] = -INFINITY;
  x[576] = 3.4e38f;
  auto dx = device(x);
  auto q = device(std::vector<int8_t>(3 * 288));
  auto d = device(std::vector<float>(27)), sums = device(std::vector<float>(27));
  LAUNCH_OK(round_rows(stream_, {dx.data(), 288, 3, 288, {q.data(), d.data(), sums.data()}}));
  const std::vector<int8_t> got = q.get();
  const std::vector<float> scales = d.get(), totals = sums.get();
  for (size_t block = 0; block < 27; ++block) {
    float largest = 0;
    bool finite = true;
    for (size_t i = 0; i < 32; ++i) {
      finite = finite && std::isfinite(x[block * 32 + i]);
      largest = std::max(largest, std::fabs(x[block * 32 + i]));
    }
    if (!finite) {
      EXPECT_TRUE(std::isnan(scales[block]));
      continue;
    }
    const bool zero = largest < 1e-30f;
    ASSERT_EQ(scales[block], zero ? 0.0f : largest / 127.0f);
    int sum = 0;
    for (size_t i = 0; i < 32; ++i) {
      const float inverse = 127.0f / largest;
      const int want = zero ? 0 : static_cast<int>(std::nearbyint(x[block * 32 + i] * inverse));
      ASSERT_EQ(got[block * 32 + i], want);
      sum += want;
    }
    ASSERT_EQ(totals[block], scales[block] * static_cast<float>(sum));
  }
}

// The reference's terms are the same; only the order of the f32 sum over blocks differs:
// eps * blocks * sum|terms|, and a term is at most what the decoded numbers give.
TEST_F(CudaGemv, TilesAgreeWithTheReference) {
  Prng prng(932);
  for (DType dtype : kAllDTypes) {
    if (!is_quantised(dtype) || !reads_weights(dtype)) continue;
    for (const auto& [out, in, rows] : {std::tuple{1, 256, 1}, {16, 512, 3}, {37, 2304, 8}, {100, 768, 2}}) {
      const std::vector<std::byte> weights = random_rows(prng, dtype, out, in);
      std::vector<float> values(static_cast<size_t>(out * in));
      decode_row(dtype, weights.data(), values.data(), int64_t{out} * in);
      const std::vector<std::byte> tiles = in_tiles(dtype, weights, out, in);
      const std::vector<float> x = random_floats(prng, int64_t{rows} * in, 3), bias = random_floats(prng, out);
      const std::vector<float> start = random_floats(prng, int64_t{rows} * out);
      for (bool accumulate : {false, true}) {
        std::vector<float> expected = start;
        const WeightPanel panel{tiles.data(), 0, out};
        const TileProduct product{{dtype, LayoutId::kTile16, out, in, {&panel, 1}}, bias.data(), expected.data(), out};
        ref_op_table().matmul_tiles(fresh_context(ref_op_table()).ctx, {x.data(), in, rows, {&product, 1}, accumulate});
        auto device_tiles = device(tiles);
        auto device_bias = device(bias);
        const std::vector<float> got = run_tiles({device_tiles.data(), dtype, LayoutId::kTile16, out, in}, x, rows,
                                                 device_bias.data(), start, accumulate);
        for (int32_t row = 0; row < rows; ++row) {
          for (int32_t o = 0; o < out; ++o) {
            double magnitude = 2;
            for (int32_t k = 0; k < in; ++k) {
              // What cancels inside a number's own terms counts as well: 8 to 32, or the
              // minimum, times the scale.
              magnitude += 3.0 * (std::fabs(static_cast<double>(values[static_cast<size_t>(o * in + k)])) + 0.1) *
                           std::fabs(static_cast<double>(x[static_cast<size_t>(row * in + k)]));
            }
            const auto at = static_cast<size_t>(row * out + o);
            ASSERT_NEAR(static_cast<double>(got[at]), static_cast<double>(expected[at]),
                        kEps * (in / 64.0 + 8) * magnitude)
                << dtype_info(dtype).name << " " << out << "x" << in << " row " << row << " output " << o;
          }
        }
      }
    }
  }
}

TEST_F(CudaGemv, ARowAloneIsTheRowAmongOthers) {
  Prng prng(933);
  for (DType dtype : kAllDTypes) {
    if (!reads_weights(dtype) || (!is_quantised(dtype) && dtype != DType::kBF16)) continue;
    const int32_t out = 35, in = 1024;
    const std::vector<std::byte> weights = random_rows(prng, dtype, out, in);
    auto w = device(is_quantised(dtype) ? in_tiles(dtype, weights, out, in) : weights);
    const LayoutId layout = is_quantised(dtype) ? LayoutId::kTile16 : LayoutId::kPlain;
    const DeviceWeight view{w.data(), dtype, layout, out, in};
    const std::vector<float> x = random_floats(prng, 8 * in);
    const auto product = [&](const std::vector<float>& input, int32_t rows) {
      const std::vector<float> start(static_cast<size_t>(rows * out), NAN);
      if (is_quantised(dtype)) return run_tiles(view, input, rows, nullptr, start, false);
      auto dx = device(encoded(DType::kBF16, input));
      auto y = device(start);
      EXPECT_TRUE(plain_gemv(stream_, {dx.data(), DType::kBF16, in, rows, view, nullptr, y.data(), out}).ok());
      return y.get();
    };
    const std::vector<float> all = product(x, 8);
    for (int32_t rows : {1, 2, 3, 5}) {
      const std::vector<float> some = product({x.begin() + 2 * in, x.begin() + (2 + rows) * in}, rows);
      EXPECT_EQ(std::memcmp(some.data(), &all[2 * static_cast<size_t>(out)], some.size() * 4), 0)
          << dtype_info(dtype).name << " " << rows;
    }
  }
}

// Tiles of several matrices in one launch, the last of each not full; more blocks than
// a warp has on their way.
TEST_F(CudaGemv, TilesOfOneLaunchAreThoseOfLaunchesOfTheirOwn) {
  Prng prng(937);
  for (DType dtype : kAllDTypes) {
    if (!is_quantised(dtype) || !reads_weights(dtype)) continue;
    for (const auto& [in, rows] : {std::pair{256, 1}, {1568, 3}, {4608, 6}}) {
      if (!fits_blocks(dtype, in)) continue;
      const std::vector<float> x = random_floats(prng, int64_t{rows} * in);
      auto dx = device(x);
      auto q = device(std::vector<int8_t>(x.size()));
      auto d = device(std::vector<float>(x.size() / 32)), sums = device(std::vector<float>(x.size() / 32));
      const RoundedRows rounded{q.data(), d.data(), sums.data()};
      LAUNCH_OK(round_rows(stream_, {dx.data(), in, rows, in, rounded}));
      TileGemvArgs together{.x = rounded, .rows = rows, .accumulate = true};
      std::vector<DeviceArray<std::byte>> weights;
      std::vector<DeviceArray<float>> results, alone, biases;
      for (int32_t out : {40, 7, 33}) {
        weights.push_back(device(in_tiles(dtype, random_rows(prng, dtype, out, in), out, in)));
        biases.push_back(device(random_floats(prng, out)));
        const std::vector<float> start = random_floats(prng, int64_t{rows} * (out + 3));
        results.push_back(device(start));
        alone.push_back(device(start));
        TileGemvArgs one{.x = rounded, .rows = rows, .target_count = 1, .accumulate = true};
        one.targets[0] = {{weights.back().data(), dtype, LayoutId::kTile16, out, in},
                          out == 7 ? nullptr : biases.back().data(),
                          alone.back().data(),
                          out + 3};
        LAUNCH_OK(tile_gemv(stream_, one));
        together.targets[together.target_count] = one.targets[0];
        together.targets[together.target_count++].y = results.back().data();
        if (together.target_count == 1) continue;
        std::vector<std::vector<float>> before;
        for (auto& result : results) before.push_back(result.get());
        LAUNCH_OK(tile_gemv(stream_, together));
        for (size_t i = 0; i < results.size(); ++i) {
          EXPECT_TRUE(same_bits(results[i].get(), alone[i].get())) << dtype_info(dtype).name << " " << in << " " << i;
          results[i].set(before[i]);
        }
      }
    }
  }
}

// 32 lanes sum in / 32 terms each, then five steps.
TEST_F(CudaGemv, PlainWeightsAgreeWithTheReference) {
  Prng prng(934);
  for (DType w_dtype : kPlainDTypes) {
    for (DType x_dtype : {DType::kF32, DType::kBF16}) {
      for (const auto& [out, in, rows] : {std::tuple{1, 1, 1}, {9, 333, 3}, {130, 512, 8}, {6, 8, 2}}) {
        TestWeights weights(prng, w_dtype, out, in);
        const std::vector<float> x = rounded(x_dtype, random_floats(prng, int64_t{rows} * in));
        const std::vector<float> bias = random_floats(prng, out), start = random_floats(prng, int64_t{rows} * out);
        for (bool accumulate : {false, true}) {
          std::vector<float> expected = start;
          ref_op_table().matmul(fresh_context(ref_op_table()).ctx,
                                {x.data(), in, rows, weights.view, bias.data(), expected.data(), out, accumulate});
          auto w = device(weights.parts[0]);
          auto dx = device(encoded(x_dtype, x));
          auto db = device(bias), y = device(start);
          LAUNCH_OK(plain_gemv(stream_, {dx.data(),
                                         x_dtype,
                                         in,
                                         rows,
                                         {w.data(), w_dtype, LayoutId::kPlain, out, in},
                                         db.data(),
                                         y.data(),
                                         out,
                                         accumulate}));
          const std::vector<float> got = y.get();
          for (size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(expected[i]),
                        kEps * (in / 32.0 + 16) * (in * 0.5 + 2));
        }
      }
    }
  }
}

// Every bit of a fifth plane, a minimum and a zero point matters: one number at a time,
// where nothing is rounded.
TEST_F(CudaGemv, EveryNumberOfATileIsMultipliedWithItsOwnInput) {
  Prng prng(936);
  for (DType dtype : kAllDTypes) {
    if (!is_quantised(dtype) || !reads_weights(dtype)) continue;
    const int32_t out = 16, in = 256;
    const std::vector<std::byte> weights = random_rows(prng, dtype, out, in);
    std::vector<float> values(static_cast<size_t>(out * in));
    decode_row(dtype, weights.data(), values.data(), int64_t{out} * in);
    auto tiles = device(in_tiles(dtype, weights, out, in));
    for (int32_t first = 0; first < in; first += kGemvRows) {  // row i has input first + i alone
      std::vector<float> x(static_cast<size_t>(kGemvRows * in));
      for (int32_t i = 0; i < kGemvRows; ++i) x[static_cast<size_t>(i * in + first + i)] = 127.0f;  // a scale of one
      const std::vector<float> got = run_tiles({tiles.data(), dtype, LayoutId::kTile16, out, in}, x, kGemvRows, nullptr,
                                               std::vector<float>(static_cast<size_t>(kGemvRows * out)), false);
      for (int32_t i = 0; i < kGemvRows; ++i) {
        for (int32_t o = 0; o < out; ++o) {
          const double want = 127.0 * static_cast<double>(values[static_cast<size_t>(o * in + first + i)]);
          // A few roundings of the number and of what cancels in it: at most
          // three, times 127.
          ASSERT_NEAR(static_cast<double>(got[static_cast<size_t>(i * out + o)]), want,
                      8 * kEps * (std::fabs(want) + 127 * 3))
              << dtype_info(dtype).name << " input " << first + i << " output " << o;
        }
      }
    }
  }
}

// Some rows of a matrix: their outputs go where the list says, and nothing
// else is touched.
TEST_F(CudaGemv, ColumnsTakeTheOutputs) {
  Prng prng(935);
  const int32_t out = 7, in = 96, rows = 3, width = 20;
  const std::vector<int32_t> columns = {19, 0, 3, 4, 11, 18, 7};
  const std::vector<float> weights = random_floats(prng, out * in), x = random_floats(prng, rows * in);
  const std::vector<float> start = random_floats(prng, rows * width);
  auto w = device(weights), dx = device(x), y = device(start), plain = device(std::vector<float>(rows * out));
  auto places = device(columns);
  const DeviceWeight view{w.data(), DType::kF32, LayoutId::kPlain, out, in};
  PlainGemvArgs args{dx.data(), DType::kF32, in, rows, view, nullptr, plain.data(), out};
  LAUNCH_OK(plain_gemv(stream_, args));
  args.y = y.data();
  args.y_stride = width;
  args.columns = places.data();
  LAUNCH_OK(plain_gemv(stream_, args));
  std::vector<float> expected = start;
  const std::vector<float> products = plain.get();
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t o = 0; o < out; ++o) {
      expected[static_cast<size_t>(row * width + columns[static_cast<size_t>(o)])] =
          products[static_cast<size_t>(row * out + o)];
    }
  }
  EXPECT_TRUE(same_bits(y.get(), expected));
}

TEST_F(CudaGemv, FormatsWithoutAKernelAreRefusedWithASentence) {
  const Status refused = tile_gemv(
      stream_, {.rows = 1, .targets = {{.w = {nullptr, DType::kF16, LayoutId::kTile16, 16, 256}}}, .target_count = 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("f16"), std::string::npos);
}

}  // namespace
}  // namespace loralei::cuda

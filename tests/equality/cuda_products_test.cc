// SPDX-License-Identifier: Apache-2.0
// CudaProducts: which rows have the same bits (cuda_products.h), for groups
// of projections whose formats, widths and places differ. On the emulated GPU
// (cuda_model_emulated_test) or a real one (cuda_model_test, which skips without).
#include "model/cuda/cuda_products.h"

#include "ops/cuda/cuda_test_util.h"

namespace loralei::test {
namespace {

using cuda::DeviceArray;
using cuda::DeviceWeight;

class CudaProductsTest : public cuda::CudaTest {
 protected:
  static constexpr int32_t kRowsMax = 150;

  void add(DType dtype, int32_t out, int32_t in, LayoutId layout = LayoutId::kPlain) {
    std::vector<std::byte> rows = random_rows(prng_, dtype, out, in);
    if (layout == LayoutId::kTile16) rows = cuda::in_tiles(dtype, rows, out, in);
    bytes_.push_back(device(rows));
    weights_.push_back({bytes_.back().data(), dtype, layout, out, in});
  }
  void make(bool batch_invariant) {
    auto made = CudaProducts::create(weights_, {DType::kBF16, kRowsMax, 1 << 14, batch_invariant});
    ASSERT_TRUE(made.ok()) << made.error().message;
    products_ = std::move(*made);
  }
  // Rows [first, first + rows) of x with all weights as one group, added to ones;
  // results side by side.
  std::vector<float> run(const std::vector<float>& x, int32_t first, int32_t rows) {
    const int32_t in = weights_[0].cols;
    std::vector<DeviceArray<float>> y;
    std::vector<CudaProduct> group;
    for (const DeviceWeight& w : weights_) {
      y.push_back(device(std::vector<float>(static_cast<size_t>(rows * w.rows), 1.0f)));
      group.push_back({&w, nullptr, y.back().data(), w.rows});
    }
    const std::vector<float> numbers(x.begin() + first * in, x.begin() + (first + rows) * in);
    const DType dtype = products_.input_type(group, rows);
    auto input = device(encoded(dtype, numbers));
    const Status launched = products_.run(stream_, {input.data(), dtype, rows, in}, group, true);
    EXPECT_TRUE(launched.ok()) << launched.error().message;
    std::vector<std::vector<float>> results;
    for (const auto& each : y) results.push_back(each.get());
    std::vector<float> together;
    for (int32_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < weights_.size(); ++i) {
        const auto from = results[i].begin() + row * weights_[i].rows;
        together.insert(together.end(), from, from + weights_[i].rows);
      }
    }
    return together;
  }
  // Every row of steps of so many rows is the row alone.
  void expect_one_class(std::initializer_list<int32_t> steps) {
    const std::vector<float> x = random_floats(prng_, int64_t{kRowsMax} * weights_[0].cols);
    std::vector<float> alone;
    for (int32_t row = 0; row < *std::max_element(steps.begin(), steps.end()); ++row) {
      const std::vector<float> one = run(x, row, 1);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    for (const int32_t rows : steps) {
      const std::vector<float> got = run(x, 0, rows);
      EXPECT_EQ(std::memcmp(got.data(), alone.data(), got.size() * sizeof(float)), 0) << rows << " rows";
    }
  }

  Prng prng_{961};
  std::vector<DeviceArray<std::byte>> bytes_;
  std::vector<DeviceWeight> weights_;
  CudaProducts products_;
};

TEST_F(CudaProductsTest, Bf16WeightsAreOneClassUpToEightRowsAndF16UpToSixtyFour) {
  for (int32_t out : {48, 16, 21}) add(DType::kBF16, out, 136);
  add(DType::kF16, 30, 136);
  make(false);
  expect_one_class({2, 5, 8});
  weights_.clear();
  for (int32_t out : {30, 16}) add(DType::kF16, out, 136);
  make(false);
  expect_one_class({2, 8, 9, 16, 17, 33, 40, 64});
}

// Four projections, of which a launch takes three, one that matrix units cannot take and
// one in quantised form.
TEST_F(CudaProductsTest, BatchInvariantIsOneClassForAnyRows) {
  for (int32_t out : {48, 16, 21, 19}) add(DType::kBF16, out, 96);
  add(DType::kF32, 12, 96);
  add(DType::kQ8_0, 32, 96);
  make(true);
  expect_one_class({5, 64, 65, 150});
}

// The input is f32 for the sake of the weights in tiles.
TEST_F(CudaProductsTest, BesideWeightsInTilesToo) {
  add(DType::kBF16, 40, 64);
  add(DType::kQ8_0, 32, 64, LayoutId::kTile16);
  make(true);
  expect_one_class({5, 64, 65});
}

// 24 numbers are fewer than four lanes load, 60 do not begin at multiples of 16 bytes.
TEST_F(CudaProductsTest, WidthsThatMatrixUnitsDoNotTakeAreComputedAsWell) {
  for (const int32_t in : {24, 60}) {
    weights_.clear();
    add(DType::kBF16, 20, in);
    make(true);
    expect_one_class({5, 8, 65});
  }
}

}  // namespace
}  // namespace loralei::test

// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cuda_probe.h"

#include "ops/cuda/cuda_test_util.h"

namespace loralei::cuda {
namespace {

using CudaProbe = CudaTest;

// A piece left out or read twice changes the sum.
TEST_F(CudaProbe, ReadsEveryWordOnce) {
  Prng prng(931);
  for (const int64_t words : {4, 8, 4096, 4100, 65536, 100'004}) {
    std::vector<uint32_t> numbers(static_cast<size_t>(words));
    uint32_t expected = 0;
    for (uint32_t& number : numbers) expected += number = static_cast<uint32_t>(prng.below(uint64_t{1} << 32));
    auto data = device(numbers);
    auto sum = device(std::vector<uint32_t>{0});
    LAUNCH_OK(read_words(stream_, data.data(), words * 4, sum.data()));
    EXPECT_EQ(sum.get()[0], expected) << words;
  }
}

constexpr CudaProbeSizes kSmall{.read_bytes = 1 << 20, .product = 64, .upload_bytes = 1 << 16, .calls = 2, .rounds = 2};

TEST_F(CudaProbe, RatesArePositive) {
  const auto rates = probe_cuda(0, kSmall);
  ASSERT_TRUE(rates.ok()) << rates.error().message;
  EXPECT_GT(rates->read_gb_s, 0);
  EXPECT_GT(rates->product_tflop_s, 0);
  EXPECT_GT(rates->upload_gb_s, 0);
  EXPECT_FALSE(probe_cuda(99, kSmall).ok());
  // What was refused is forgotten: the next launch does not report it.
  auto data = device(std::vector<uint32_t>(4, 1)), sum = device(std::vector<uint32_t>{0});
  LAUNCH_OK(read_words(stream_, data.data(), 16, sum.data()));
  EXPECT_EQ(sum.get()[0], 4u);
}

#ifdef LORALEI_CUDA_EMULATION
// On the emulated GPU whatever lies between two events takes a millisecond.
TEST_F(CudaProbe, RatesAreTheBytesAndOperationsOfACall) {
  const auto rates = probe_cuda(0, kSmall);
  ASSERT_TRUE(rates.ok()) << rates.error().message;
  EXPECT_DOUBLE_EQ(rates->read_gb_s, 2 * (1 << 20) * 1e-6);
  EXPECT_DOUBLE_EQ(rates->upload_gb_s, 2 * (1 << 16) * 1e-6);
  EXPECT_DOUBLE_EQ(rates->product_tflop_s, 2 * 2.0 * 64 * 64 * 64 * 1e-9);
}
#endif

}  // namespace
}  // namespace loralei::cuda

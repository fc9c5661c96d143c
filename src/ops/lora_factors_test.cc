// SPDX-License-Identifier: Apache-2.0
#include "ops/lora_factors.h"

#include "ops/op_test_util.h"

namespace loralei {
namespace {

TEST(LoraFactors, QuantisedNumbersAreWithinHalfAStepAndRowsArePadded) {
  Prng prng(1);
  const int32_t rank = 3;
  for (int64_t count : {1, 63, 64, 65, 200}) {
    const std::vector<float> values = random_floats(prng, rank * count, 3.0f);
    const int64_t stride = lora_quant_row_bytes(count), groups = lora_quant_groups(count);
    std::vector<std::byte> q(static_cast<size_t>(rank * stride), std::byte{0x55});
    std::vector<float> scales(static_cast<size_t>(rank * groups));
    quantise_lora(values.data(), rank, count, q.data(), scales.data(), 1, rank);  // as B: [groups, rank]
    for (int32_t r = 0; r < rank; ++r) {
      for (int64_t i = 0; i < stride; ++i) {
        const auto quant = static_cast<int8_t>(q[static_cast<size_t>(r * stride + i)]);
        if (i >= count) {
          ASSERT_EQ(quant, 0);
          continue;
        }
        const float scale = scales[static_cast<size_t>(i / kLoraQuantGroup * rank + r)];
        ASSERT_GE(quant, -127);
        ASSERT_NEAR(static_cast<float>(quant) * scale, values[static_cast<size_t>(r * count + i)], 0.5001f * scale);
      }
    }
  }
}

TEST(LoraFactors, ExtremeGroupsStayFinite) {
  std::vector<float> values(3 * 64);
  values[70] = std::numeric_limits<float>::denorm_min();  // group 1: too small for a scale
  values[128] = std::numeric_limits<float>::max();
  values[129] = -std::numeric_limits<float>::max();
  std::vector<std::byte> q(values.size());
  std::vector<float> scales(3);
  quantise_lora(values.data(), 1, 192, q.data(), scales.data(), 3, 1);
  EXPECT_EQ(scales[0], 0.0f);
  EXPECT_EQ(scales[1], 0.0f);
  EXPECT_TRUE(std::isfinite(scales[2]));
  EXPECT_EQ(static_cast<int8_t>(q[128]), 127);
  EXPECT_EQ(static_cast<int8_t>(q[129]), -127);
  EXPECT_EQ(static_cast<int8_t>(q[70]), 0);
}

TEST(LoraFactors, DecodingAPartGivesThePartOfTheWhole) {
  Prng prng(2);
  const int32_t rank = 5, in = 100, out = 300;
  const std::vector<float> a = random_floats(prng, rank * in), b = random_floats(prng, rank * out);
  std::vector<std::byte> qa(static_cast<size_t>(rank * lora_quant_row_bytes(in))),
      qb(static_cast<size_t>(rank * lora_quant_row_bytes(out)));
  std::vector<float> sa(static_cast<size_t>(rank * lora_quant_groups(in))),
      sb(static_cast<size_t>(rank * lora_quant_groups(out)));
  quantise_lora(a.data(), rank, in, qa.data(), sa.data(), lora_quant_groups(in), 1);
  quantise_lora(b.data(), rank, out, qb.data(), sb.data(), 1, rank);
  const LoraPair pair{
      .a = qa.data(), .b_t = qb.data(), .a_scale = sa.data(), .b_scale = sb.data(), .rank = rank, .in = in, .out = out};
  std::vector<float> row(in), whole(out), part(out);
  for (int32_t r = 0; r < rank; ++r) {
    decode_lora_a(pair, r, row.data());
    for (int32_t i = 0; i < in; ++i)
      ASSERT_NEAR(row[static_cast<size_t>(i)], a[static_cast<size_t>(r * in + i)], 0.5f / 126);
    decode_lora_b(pair, r, 0, out, whole.data());
    decode_lora_b(pair, r, 64, out - 64, part.data());
    for (int32_t i = 64; i < out; ++i) ASSERT_EQ(part[static_cast<size_t>(i - 64)], whole[static_cast<size_t>(i)]);
    for (int32_t i = 0; i < out; ++i)
      ASSERT_NEAR(whole[static_cast<size_t>(i)], b[static_cast<size_t>(r * out + i)], 0.5f / 126);
  }
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "ops/lora_test_util.h"

namespace loralei {
namespace {

class LoraAdd : public EveryTable {};
FOR_EVERY_TABLE(LoraAdd);

std::vector<float> run_lora(const OpTable& table, int threads, const LoraPair& pair, const float* x,
                            const LoraSegment& segment, std::vector<float> y) {
  TestContext& context = fresh_context(table, threads);
  const LoraSource source{&pair};
  const LoraTarget target{y.data(), pair.out, &source, pair.out};
  table.lora(context.ctx,
             {.x = x, .x_stride = pair.in, .in = pair.in, .segments = {&segment, 1}, .targets = {&target, 1}});
  return y;
}

// The sums of rows [begin, begin + count), as somebody else would compute them.
std::vector<float> raw_sums(const OpTable& table, int threads, const LoraPair& pair, const float* x, int32_t begin,
                            int32_t count) {
  LoraPair bare = pair;
  bare.scaling = 1.0f;
  bare.bias_delta = nullptr;
  return run_lora(table, threads, bare, x + int64_t{begin} * pair.in, {0, count, 0, 1.0f},
                  std::vector<float>(static_cast<size_t>(count) * static_cast<size_t>(pair.out), -0.0f));
}

// Numbers among which there are zeros of both signs.
std::vector<float> floats_with_zeros(Prng& prng, int64_t count) {
  std::vector<float> values = random_floats(prng, count);
  for (float& value : values) {
    if (const uint64_t kind = prng.below(8); kind < 2) value = kind == 0 ? 0.0f : -0.0f;
  }
  return values;
}

void expect_same(const OpTable& table, Prng& prng, const LoraPair& pair, int32_t rows, const std::string& what) {
  std::vector<float> x = floats_with_zeros(prng, int64_t{rows} * pair.in);
  // A row of zeros: its sums are zeros, of the signs that the factors give.
  for (int32_t i = 0; i < pair.in; ++i) x[static_cast<size_t>(i)] = i % 2 == 0 ? 0.0f : -0.0f;
  const std::vector<float> start = floats_with_zeros(prng, int64_t{rows} * pair.out);
  const float scale = prng.below(4) == 0 ? -1.5f : static_cast<float>(prng.uniform() * 2);
  const std::vector<float> whole = run_lora(table, 3, pair, x.data(), {0, rows, 0, scale}, start);
  std::vector<float> y = start;
  uint64_t operations = 0;
  for (int32_t begin = 0; begin < rows;) {
    const auto count = static_cast<int32_t>(1 + prng.below(static_cast<uint64_t>(rows - begin)));
    const std::vector<float> sums = raw_sums(table, 1, pair, x.data(), begin, count);
    TestContext& context = fresh_context(table, 1 + static_cast<int>(prng.below(3)));
    table.lora_add(context.ctx, {.sums = sums.data(),
                                 .sums_stride = pair.out,
                                 .rows = count,
                                 .pair = &pair,
                                 .scale = scale,
                                 .y = y.data() + int64_t{begin} * pair.out,
                                 .y_stride = pair.out});
    operations += context.ctx.op_count;
    begin += count;
  }
  ASSERT_TRUE(same_bits(y, whole)) << what;
  ASSERT_GE(operations, 1u) << what;
}

TEST_P(LoraAdd, SumsFromElsewhereAreTheProductInOnePlace) {
  const uint64_t seed = 220;
  Prng prng(seed);
  for (const Stored stored : kStored) {
    for (const int32_t rank : {1, 2, 3, 5, 8, 13, 16, 17, 31, 64, 77, 128, 255, 256}) {
      for (int with = 0; with < 4; ++with) {
        const auto in = static_cast<int32_t>(1 + prng.below(160)), out = static_cast<int32_t>(1 + prng.below(300));
        const TestPair test(prng, stored, rank, in, out, with % 2 != 0, with >= 2);
        const auto rows = static_cast<int32_t>(1 + prng.below(12));
        ASSERT_NO_FATAL_FAILURE(expect_same(table(), prng, test.pair, rows,
                                            "seed " + std::to_string(seed) + " stored " +
                                                std::to_string(static_cast<int>(stored)) + " rank " +
                                                std::to_string(rank) + " with " + std::to_string(with)));
      }
    }
  }
}

TEST_P(LoraAdd, WithoutAProductThereIsTheReplacedBiasAlone) {
  Prng prng(221);
  for (const int32_t out : {1, 33, 2050}) {
    const TestPair test(prng, Stored::kF32, 0, 7, out, true, true);
    ASSERT_NO_FATAL_FAILURE(expect_same(table(), prng, test.pair, 5, "out " + std::to_string(out)));
  }
}

// What a pair's outputs leave of a row, and what lies between rows, stays as it is.
TEST_P(LoraAdd, NothingBesideItsOutputsIsTouched) {
  Prng prng(222);
  const int32_t rows = 3, out = 21, stride = 40;
  const TestPair test(prng, Stored::kF32, 4, 9, out, false, true);
  const std::vector<float> sums = random_floats(prng, rows * stride), start = random_floats(prng, rows * stride);
  std::vector<float> y = start;
  table().lora_add(fresh_context(table()).ctx, {.sums = sums.data(),
                                                .sums_stride = stride,
                                                .rows = rows,
                                                .pair = &test.pair,
                                                .y = y.data(),
                                                .y_stride = stride});
  for (size_t i = 0; i < y.size(); ++i) {
    const bool beside = i % stride >= static_cast<size_t>(out);
    if (beside) ASSERT_EQ(y[i], start[i]) << i;
    if (!beside) ASSERT_NE(y[i], start[i]) << i;
  }
}

TEST_P(LoraAdd, NothingToAddIsNoWork) {
  Prng prng(223);
  const TestPair none(prng, Stored::kF32, 0, 9, 9, true, false), some(prng, Stored::kF32, 2, 9, 9, true, true);
  TestContext& context = fresh_context(table());
  table().lora_add(context.ctx, {.rows = 4, .pair = &none.pair});
  table().lora_add(context.ctx, {.rows = 0, .pair = &some.pair});
  EXPECT_EQ(context.ctx.op_count, 0u);
}

}  // namespace
}  // namespace loralei

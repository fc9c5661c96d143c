// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include "ops/cpu/scratch.h"
#include "ops/cpu/tiles/activations.h"
#include "ops/op_test_util.h"
#include "ops/ref/ref_table.h"
#include "tensor/tile_layout.h"

namespace loralei {
namespace {

class TileMatmul : public EveryTable {};
FOR_EVERY_PRODUCT_TABLE(TileMatmul);

constexpr DType kQuantised[] = {DType::kQ8_0,   DType::kQ4_0,   DType::kQ4_1,  DType::kQ5_0, DType::kQ5_1,
                                DType::kQ4_K,   DType::kQ5_K,   DType::kQ6_K,  DType::kQ2_K, DType::kQ3_K,
                                DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kInt4G};

// The same weights as rows and in tiles.
struct TiledWeights {
  TestWeights plain;
  std::vector<std::vector<std::byte>> parts;
  std::vector<WeightPanel> panels;
  WeightView view;

  TiledWeights(Prng& prng, DType dtype, int32_t rows, int32_t cols, int panel_count = 1)
      : plain(prng, dtype, rows, cols, panel_count) {
    const int64_t bytes = row_bytes(dtype, cols);
    for (const WeightPanel& panel : plain.panels) {
      parts.emplace_back(static_cast<size_t>(matrix_bytes(dtype, LayoutId::kTile16, panel.row_count, cols)));
      for (int32_t row = 0; row < panel.row_count; row += kRowTile) {
        std::array<const std::byte*, kRowTile> rows_of{};
        for (int r = 0; r < kRowTile && row + r < panel.row_count; ++r) {
          rows_of[static_cast<size_t>(r)] = panel.data + (row + r) * bytes;
        }
        pack_tile(dtype, rows_of, cols, parts.back().data() + row * bytes);
      }
      panels.push_back({parts.back().data(), panel.row_begin, panel.row_count});
    }
    view = {dtype, LayoutId::kTile16, rows, cols, panels};
  }
};

std::vector<float> run(const OpTable& table, int threads, const WeightView& w, const std::vector<float>& x,
                       int32_t rows, const float* bias = nullptr, const std::vector<float>* add_to = nullptr,
                       const TileTuning& tuning = TileTuning()) {
  TestContext& context = fresh_context(table, threads);
  context.ctx.tuning = tuning;
  std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(w.rows),
                       std::numeric_limits<float>::quiet_NaN());
  if (add_to != nullptr) y = *add_to;
  const TileProduct product{w, bias, y.data(), w.rows};
  table.matmul_tiles(
      context.ctx,
      {.x = x.data(), .x_stride = w.cols, .rows = rows, .products = {&product, 1}, .accumulate = add_to != nullptr});
  EXPECT_EQ(context.ctx.op_count, 1u);
  return y;
}

// ops/args.h defines every bit; the reference follows it number by number.
TEST_P(TileMatmul, EqualsTheReferenceBitForBit) {
  Prng prng(301);
  for (DType dtype : kQuantised) {
    const int block = dtype_info(dtype).block_elems;
    for (int32_t rows : {1, 2, 3, 4, 5, 7, 9, 12, 15, 16, 17, 33, 40}) {
      const int32_t in = block * static_cast<int32_t>(1 + prng.below(block == 32 ? 70 : 9));
      const auto out = static_cast<int32_t>(1 + prng.below(70));
      const TiledWeights weights(prng, dtype, out, in, 1 + rows % 3);
      const std::vector<float> x = random_floats(prng, int64_t{rows} * in, 3.0f), bias = random_floats(prng, out);
      const std::vector<float> old = random_floats(prng, int64_t{rows} * out);
      const float* bias_used = rows % 2 == 0 ? bias.data() : nullptr;
      const std::vector<float>* add_to = rows % 3 == 1 ? &old : nullptr;
      const std::vector<float> want = run(ref_op_table(), 1, weights.view, x, rows, bias_used, add_to);
      const std::vector<float> got = run(table(), 1 + rows % 4, weights.view, x, rows, bias_used, add_to);
      ASSERT_TRUE(same_bits(got, want)) << dtype_info(dtype).name << " rows " << rows << " in " << in << " out " << out;
    }
  }
}

// Against the exact product of the unrounded input: |error| <= sum over blocks of
// (max|x| / 254) * sum |w| plus f32 rounding.
TEST_P(TileMatmul, ErrsNoMoreThanRoundingTheInputAllows) {
  Prng prng(302);
  for (DType dtype : kQuantised) {
    const int32_t in = 768, out = 37, rows = 5;
    const TiledWeights weights(prng, dtype, out, in);
    const std::vector<float> x = random_floats(prng, int64_t{rows} * in, 2.0f);
    const std::vector<float> y = run(table(), 2, weights.view, x, rows);
    for (size_t row = 0; row < rows; ++row) {
      for (size_t o = 0; o < out; ++o) {
        double sum = 0, bound = 0, magnitude = 0;
        for (size_t k = 0; k < in; k += kActivationBlock) {
          double largest = 0, weight_sum = 0;
          for (size_t i = k; i < k + kActivationBlock; ++i) {
            const double value = static_cast<double>(x[row * in + i]);
            const double w = static_cast<double>(weights.plain.values[o * in + i]);
            sum += value * w;
            magnitude += std::fabs(value * w);
            largest = std::max(largest, std::fabs(value));
            weight_sum += std::fabs(w);
          }
          bound += largest / 254 * weight_sum;
        }
        bound = bound * 1.001 + kEps * (in / 16 + 10) * 20 * magnitude;
        ASSERT_NEAR(static_cast<double>(y[row * out + o]), sum, bound) << dtype_info(dtype).name;
      }
    }
  }
}

TEST_P(TileMatmul, ARowDoesNotDependOnItsBatch) {
  Prng prng(303);
  for (DType dtype : kQuantised) {
    const int32_t in = 512, out = 53;
    const TiledWeights weights(prng, dtype, out, in, 2);
    const std::vector<float> x = random_floats(prng, 150 * in);
    std::vector<float> alone;
    for (int32_t row = 0; row < 150; ++row) {
      const std::vector<float> one(x.begin() + row * in, x.begin() + (row + 1) * in);
      const std::vector<float> y = run(table(), 1, weights.view, one, 1);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int32_t rows : {2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 31, 64, 65, 150}) {
      for (int threads : {1, 4}) {
        const std::vector<float> y = run(table(), threads, weights.view, x, rows);
        ASSERT_TRUE(same_bits(y, std::vector<float>(alone.begin(), alone.begin() + rows * out)))
            << dtype_info(dtype).name << " rows " << rows << " threads " << threads;
      }
    }
  }
}

// More runs than are rounded together, of one row and of many, with rows in common,
// formats mixed within a run, and scratch for all of them, for a few, and for one form of
// one.
TEST_P(TileMatmul, RunsOfRowsEqualCallsOfTheirOwn) {
  const uint64_t seed = 311;
  SCOPED_TRACE(seed);
  Prng prng(seed);
  const int32_t in = 512, rows = 60, rows_most = 40;
  const std::vector<float> x = random_floats(prng, rows * in);
  std::vector<TiledWeights> weights;
  for (DType dtype : kQuantised) weights.emplace_back(prng, dtype, 1 + static_cast<int32_t>(prng.below(50)), in, 2);
  const std::vector<float> bias = random_floats(prng, 50);
  const int64_t one_form = scratch_bytes(activation_bytes(rows_most, in), tile_worker_bytes(), 2);
  const auto whole = static_cast<int64_t>(fresh_context(table(), 2).ctx.scratch.size());
  for (const int64_t scratch : {whole, one_form + 5 * activation_bytes(1, in), one_form}) {
    constexpr size_t kRuns = 300;
    std::vector<std::vector<TileProduct>> products(kRuns);
    std::vector<std::vector<float>> got, want;
    std::vector<TileRows> runs;
    got.reserve(2 * kRuns);
    for (std::vector<TileProduct>& own : products) {
      const auto begin = static_cast<int32_t>(prng.below(rows));
      const int32_t count = prng.below(3) == 0 ? 1 + static_cast<int32_t>(prng.below(rows_most)) : 1;
      TileRows run{std::min(begin, rows - count), count, {}};
      for (uint64_t i = 0; i < 1 + prng.below(2); ++i) {
        const TiledWeights& matrix = weights[prng.below(weights.size())];
        const int32_t out = matrix.view.rows;
        const int64_t stride = out + static_cast<int64_t>(prng.below(3));
        got.emplace_back(static_cast<size_t>(count * stride), -7.0f);
        own.push_back({matrix.view, prng.below(2) == 0 ? bias.data() : nullptr, got.back().data(), stride});
      }
      run.products = own;
      runs.push_back(run);
    }
    for (const TileRows& run : runs) {
      for (const TileProduct& product : run.products) {
        std::vector<float>& y = want.emplace_back(static_cast<size_t>(run.row_count * product.y_stride), -7.0f);
        TileProduct alone = product;
        alone.y = y.data();
        ref_matmul_tiles(
            fresh_context(ref_op_table(), 1).ctx,
            {.x = x.data() + run.row_begin * in, .x_stride = in, .rows = run.row_count, .products = {&alone, 1}});
      }
    }
    TestContext& context = fresh_context(table(), 2);
    OpContext ctx = context.ctx;
    if (table().name != std::string_view("ref")) ctx.scratch = ctx.scratch.first(static_cast<size_t>(scratch));
    table().matmul_tile_runs(ctx, {.x = x.data(), .x_stride = in, .runs = runs});
    for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(same_bits(got[i], want[i])) << i << " scratch " << scratch;
  }
}

// How early weights are asked for, near or far behind the last one.
TEST_P(TileMatmul, AskingAheadDoesNotShow) {
  Prng prng(309);
  for (DType dtype : kQuantised) {
    const int32_t in = 768, out = 75, rows = 5;
    const TiledWeights weights(prng, dtype, out, in);
    const std::vector<float> x = random_floats(prng, rows * in);
    const std::vector<float> want = run(ref_op_table(), 1, weights.view, x, rows);
    for (const int32_t ahead : {0, 896, 3584, 1 << 30}) {
      for (const bool second_level : {false, true}) {
        TileTuning tuning;
        tuning.unasked_rows.fill(0);
        tuning.tiles_asked.fill({ahead, second_level});
        EXPECT_TRUE(same_bits(run(table(), 2, weights.view, x, rows, nullptr, nullptr, tuning), want))
            << dtype_info(dtype).name << " ahead " << ahead << " to the second level " << second_level;
      }
    }
  }
}

TEST(TileTuning, UpToSomeRowsNothingIsAskedFor) {
  TileTuning tuning;
  tuning.tiles_asked.fill({.ahead_bytes = 896});
  tuning.unasked_rows.fill(0);
  tuning.unasked_rows[static_cast<size_t>(DType::kQ8_0)] = 4;
  EXPECT_EQ(tuning.asked(DType::kQ8_0, 4), WeightsAsked{});
  EXPECT_EQ(tuning.asked(DType::kQ8_0, 5), WeightsAsked{.ahead_bytes = 896});
  EXPECT_EQ(tuning.asked(DType::kQ4_0, 1), WeightsAsked{.ahead_bytes = 896});
}

// A table whose products take as long as is said here, by the clock that measures them.
struct SlowTable {
  ManualClock clock;
  int64_t ns_in_memory = 0, ns_in_registers = 0;
  int calls = 0;
};
SlowTable* slow_table = nullptr;

TEST(TileTuning, SumsAreKeptWhereThatIsClearlyFaster) {
  OpTable table;
  table.has_register_sums = true;
  table.scratch_bytes = [](const OpLimits&) -> int64_t { return 64; };
  table.matmul_tiles = [](OpContext& ctx, const TileMatmulArgs& args) {
    EXPECT_EQ(args.products[0].w.dtype, DType::kQ5_0) << "the first format that has the choice";
    slow_table->calls += 1;
    slow_table->clock.advance_ns(ctx.tuning.sums_in_registers ? slow_table->ns_in_registers : slow_table->ns_in_memory);
  };
  constexpr DType kFormats[] = {DType::kQ4_K, DType::kBF16, DType::kQ5_0, DType::kQ8_0};
  const auto tuned = [&](bool known, int64_t ns_in_memory, int64_t ns_in_registers, std::span<const DType> formats) {
    SlowTable slow{.clock = {}, .ns_in_memory = ns_in_memory, .ns_in_registers = ns_in_registers};
    slow_table = &slow;
    ThreadPool pool(1);
    OpContext ctx{.pool = &pool};
    ctx.tuning.sums_in_registers = known;
    tune_tiles(ctx, table, formats, slow.clock);
    EXPECT_EQ(slow.calls > 0, !formats.empty());
    return ctx.tuning.sums_in_registers;
  };
  for (const bool known : {false, true}) {
    EXPECT_TRUE(tuned(known, 1'000, 900, kFormats));
    EXPECT_FALSE(tuned(known, 900, 1'000, kFormats));
    EXPECT_EQ(tuned(known, 1'000, 990, kFormats), known);
    EXPECT_EQ(tuned(known, 990, 1'000, kFormats), known);
    EXPECT_EQ(tuned(known, 1'000, 900, {}), known);
  }
}

// Up to how many rows tiles stay packed. Five tiles, so that one is without
// another to pair with.
TEST_P(TileMatmul, StayingPackedDoesNotShow) {
  Prng prng(310);
  for (DType dtype : kQuantised) {
    const int32_t in = 512, out = 75;
    const TiledWeights weights(prng, dtype, out, in);
    for (const int32_t rows : {9, 12, 16, 17}) {
      const std::vector<float> x = random_floats(prng, rows * in);
      const std::vector<float> want = run(ref_op_table(), 1, weights.view, x, rows);
      for (const int32_t packed : {0, 8, 12, 16, 64}) {
        TileTuning tuning;
        tuning.packed_rows = packed;
        EXPECT_TRUE(same_bits(run(table(), 2, weights.view, x, rows, nullptr, nullptr, tuning), want))
            << dtype_info(dtype).name << " rows " << rows << " packed up to " << packed;
      }
    }
  }
}

// Which kernel serves how many rows is measured at start: nothing else may hang on it.
TEST_P(TileMatmul, TheMeasuredChoiceDoesNotShow) {
  Prng prng(308);
  for (DType dtype : kQuantised) {
    const int32_t in = 1280, out = 75, rows = 45;
    const TiledWeights weights(prng, dtype, out, in);
    const std::vector<float> x = random_floats(prng, rows * in);
    const std::vector<float> want = run(ref_op_table(), 1, weights.view, x, rows);
    TestContext& context = fresh_context(table(), 2);
    tune_tiles(context.ctx, table(), {&dtype, 1}, SteadyClock());
    EXPECT_GT(context.ctx.tuning.of(dtype), 0);
    EXPECT_EQ(context.ctx.op_count, 0u);
    for (const int32_t from : {1, context.ctx.tuning.of(dtype), std::numeric_limits<int32_t>::max()}) {
      TileTuning tuning;
      tuning.matrix_rows.fill(from);
      EXPECT_TRUE(same_bits(run(table(), 2, weights.view, x, rows, nullptr, nullptr, tuning), want))
          << dtype_info(dtype).name << " from " << from;
    }
  }
}

// Results lie in lines of their own, as in the model: few rows write them past the
// caches. Formats that want the rows in three forms are more than are written out
// together, and the least scratch has room for one (ops/cpu/tiles/activations.h).
TEST_P(TileMatmul, ProjectionsShareOneInput) {
  Prng prng(304);
  const int32_t in = 256, rows_max = 21;
  const TiledWeights q(prng, DType::kQ4_K, 464, in), k(prng, DType::kQ8_0, 17, in), v(prng, DType::kQ5_1, 49, in),
      gate(prng, DType::kQ6_K, 33, in);
  const std::vector<float> x = random_floats(prng, int64_t{rows_max} * in);
  for (int32_t rows : {1, 2, 5, 8, rows_max}) {
    std::vector<HostBuffer> y;
    std::vector<TileProduct> products;
    for (const TiledWeights* weights : {&q, &k, &v, &gate}) {
      const int64_t stride = (weights->view.rows + kRowTile - 1) / kRowTile * kRowTile;
      y.push_back(HostBuffer::allocate(rows * stride * 4, PageSize::kSmall).value());
      products.push_back({weights->view, nullptr, reinterpret_cast<float*>(y.back().data()), stride});
    }
    for (const bool room_for_forms : {true, false}) {
      TestContext& context = fresh_context(table(), 3);
      const std::span<std::byte> scratch = context.ctx.scratch;
      const auto least = static_cast<size_t>(scratch_bytes(activation_bytes(rows, in), tile_worker_bytes(), 3));
      if (!room_for_forms) context.ctx.scratch = scratch.first(std::min(least, scratch.size()));  // ref has none
      for (const HostBuffer& results : y) std::memset(results.data(), 0xFF, static_cast<size_t>(results.size_bytes()));
      table().matmul_tiles(context.ctx, {.x = x.data(), .x_stride = in, .rows = rows, .products = products});
      context.ctx.scratch = scratch;
      EXPECT_EQ(context.ctx.op_count, 1u);
      for (const TileProduct& product : products) {
        std::vector<float> got;
        for (int32_t row = 0; row < rows; ++row) {
          const float* const from = product.y + row * product.y_stride;
          got.insert(got.end(), from, from + product.w.rows);
        }
        EXPECT_TRUE(same_bits(got, run(ref_op_table(), 1, product.w, x, rows)))
            << rows << " rows of " << product.w.rows << (room_for_forms ? "" : ", form after form");
      }
    }
  }
}

TEST_P(TileMatmul, ExtremesStayInTheirRow) {
  Prng prng(305);
  for (DType dtype : {DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kQ2_K, DType::kMXFP4}) {
    const int32_t in = 256, rows = 8;
    const TiledWeights weights(prng, dtype, 20, in);
    std::vector<float> x = random_floats(prng, rows * in);
    const std::vector<float> clean = run(table(), 1, weights.view, x, rows);
    x[3 * in + 5] = std::numeric_limits<float>::quiet_NaN();
    x[5 * in + 7] = -std::numeric_limits<float>::infinity();
    std::fill(x.begin() + 6 * in, x.begin() + 7 * in, 1e-38f);
    const std::vector<float> y = run(table(), 1, weights.view, x, rows);
    for (size_t row = 0; row < rows; ++row) {
      for (size_t o = 0; o < 20; ++o) {
        const float value = y[row * 20 + o];
        if (row == 3 || row == 5) {
          EXPECT_FALSE(std::isfinite(value));
        } else if (row == 6) {
          EXPECT_EQ(value, 0.0f);
        } else {
          EXPECT_EQ(value, clean[row * 20 + o]);
        }
      }
    }
  }
}

// Any bytes of a file are some weights: the extremes of every format, -128 in q8_0 among
// them. Inputs of one sign make the largest sums there are, which kernels that add in
// 16 bits must have room for.
TEST_P(TileMatmul, AnyBytesAreExact) {
  Prng prng(306);
  for (DType dtype : kQuantised) {
    for (const int fill : {0x00, 0x7F, 0x80, 0xFF}) {
      TiledWeights weights(prng, dtype, 16, 256);
      for (std::byte& byte : weights.parts[0]) byte = static_cast<std::byte>(fill);
      const int64_t blocks = 256 / dtype_info(dtype).block_elems;
      const BlockParts parts = block_parts(dtype);
      const uint16_t d = f32_to_f16(0.01f);
      for (int64_t block = 0; block < blocks; ++block) {
        for (int i = 0; i < kRowTile * parts.halves; ++i) {
          std::memcpy(weights.parts[0].data() + block * parts.bytes() + 2 * i, &d, 2);
        }
      }
      for (const int32_t rows : {3, 8, 64}) {  // one for each kernel
        std::vector<float> x = random_floats(prng, rows * 256);
        for (size_t i = 0; i < 256; ++i) {
          x[i] = i % 2 == 0 ? 1.0f : -1.0f;
          x[256 + i] = 1.0f;
          x[512 + i] = -1.0f;
        }
        EXPECT_TRUE(same_bits(run(table(), 1, weights.view, x, rows), run(ref_op_table(), 1, weights.view, x, rows)))
            << dtype_info(dtype).name << " " << fill << " rows " << rows;
      }
    }
  }
}

TEST_P(TileMatmul, EmbeddingRowsAreTheCodecs) {
  Prng prng(307);
  for (DType dtype : kQuantised) {
    const int32_t cols = 512;
    const TiledWeights weights(prng, dtype, 50, cols, 2);
    const std::vector<TokenId> tokens = {0, 49, 15, 16, 31, 17};
    std::vector<float> y(tokens.size() * cols), expected;
    for (const TokenId token : tokens) {
      expected.insert(expected.end(), weights.plain.values.begin() + token * cols,
                      weights.plain.values.begin() + (token + 1) * cols);
    }
    TestContext& context = fresh_context(table());
    table().embed(context.ctx,
                  {.tokens = tokens.data(), .rows = 6, .w = weights.view, .y = y.data(), .y_stride = cols});
    EXPECT_TRUE(same_bits(y, expected)) << dtype_info(dtype).name;
  }
}

}  // namespace
}  // namespace loralei

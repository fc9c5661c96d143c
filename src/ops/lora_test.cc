// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <optional>

#include "ops/lora_test_util.h"

namespace loralei {
namespace {

class Lora : public EveryTable {};
FOR_EVERY_TABLE(Lora);

// A set of adapters on some targets of one layer input, as a step would see it.
struct TestLayer {
  int32_t in;
  std::vector<int32_t> outs;
  std::deque<TestPair> pairs;
  std::vector<std::vector<LoraSource>> slots;      // [target][slot]
  std::vector<std::vector<const TestPair*>> used;  // [target][slot], null: none

  // `all_stored`: empty means any, drawn for each pair.
  TestLayer(Prng& prng, int32_t in_size, std::vector<int32_t> out_sizes, const std::vector<int32_t>& ranks,
            std::optional<Stored> all_stored = std::nullopt)
      : in(in_size), outs(std::move(out_sizes)) {
    for (int32_t out : outs) {
      slots.emplace_back();
      used.emplace_back();
      for (int32_t rank : ranks) {
        LoraSource& source = slots.back().emplace_back();
        used.back().push_back(nullptr);
        if (rank < 0) continue;  // this adapter does not touch the target
        const Stored stored = all_stored.value_or(kStored[prng.below(4)]);
        pairs.emplace_back(prng, stored, rank, in, out, prng.below(2) == 0, rank == 0 || prng.below(2) == 0);
        source.pair = &pairs.back().pair;
        used.back().back() = &pairs.back();
      }
    }
  }
};

struct LoraRun {
  std::vector<std::vector<float>> y;  // per target [rows, out]
  uint64_t op_count = 0;
};

LoraRun run_lora(const OpTable& table, int threads, TestLayer& layer, const std::vector<float>& x, int32_t rows,
                 const std::vector<LoraSegment>& segments, const std::vector<std::vector<float>>& start,
                 const TileTuning& tuning = {}) {
  TestContext& context = fresh_context(table, threads);
  context.ctx.tuning = tuning;
  LoraRun run;
  run.y = start;
  std::vector<LoraTarget> targets;
  for (size_t t = 0; t < layer.outs.size(); ++t) {
    targets.push_back(
        {.y = run.y[t].data(), .y_stride = layer.outs[t], .sources = layer.slots[t].data(), .out = layer.outs[t]});
  }
  EXPECT_EQ(x.size(), static_cast<size_t>(rows) * static_cast<size_t>(layer.in));
  table.lora(context.ctx,
             {.x = x.data(), .x_stride = layer.in, .in = layer.in, .segments = segments, .targets = targets});
  run.op_count = context.ctx.op_count;
  return run;
}

std::vector<std::vector<float>> start_values(Prng& prng, const TestLayer& layer, int32_t rows) {
  std::vector<std::vector<float>> start;
  for (int32_t out : layer.outs) start.push_back(random_floats(prng, int64_t{rows} * out));
  return start;
}

void expect_lora(const TestLayer& layer, const std::vector<float>& x, const std::vector<LoraSegment>& segments,
                 const std::vector<std::vector<float>>& start, const LoraRun& run, const std::string& what) {
  for (size_t t = 0; t < layer.outs.size(); ++t) {
    const auto out = static_cast<size_t>(layer.outs[t]), in = static_cast<size_t>(layer.in);
    std::vector<double> expected(start[t].begin(), start[t].end()), magnitude;
    for (double value : expected) magnitude.push_back(std::fabs(value));
    for (const LoraSegment& segment : segments) {
      const TestPair* used = layer.used[t][static_cast<size_t>(segment.slot)];
      if (used == nullptr) continue;
      const LoraPair& pair = used->pair;
      for (int32_t i = 0; i < segment.row_count; ++i) {
        const auto row = static_cast<size_t>(segment.row_begin + i);
        std::vector<double> v(static_cast<size_t>(pair.rank)), v_abs(v.size());
        for (size_t r = 0; r < v.size(); ++r) {
          for (size_t k = 0; k < in; ++k) {
            const double term = static_cast<double>(x[row * in + k]) * static_cast<double>(used->a_values[r * in + k]);
            v[r] += term;
            v_abs[r] += std::fabs(term);
          }
        }
        const double factor = static_cast<double>(segment.scale) * static_cast<double>(pair.scaling);
        for (size_t o = 0; o < out; ++o) {
          double sum = 0, sum_abs = 0;
          for (size_t r = 0; r < v.size(); ++r) {
            sum += v[r] * static_cast<double>(used->b_values[r * out + o]);
            sum_abs += v_abs[r] * std::fabs(static_cast<double>(used->b_values[r * out + o]));
          }
          if (pair.b_bias != nullptr && pair.rank > 0) {
            sum += static_cast<double>(pair.b_bias[o]);
            sum_abs += std::fabs(static_cast<double>(pair.b_bias[o]));
          }
          double add = factor * sum, add_abs = std::fabs(factor) * sum_abs;
          if (pair.bias_delta != nullptr) {
            add += static_cast<double>(pair.bias_delta[o]);
            add_abs += std::fabs(static_cast<double>(pair.bias_delta[o]));
          }
          expected[row * out + o] += add;
          magnitude[row * out + o] += add_abs;
        }
      }
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      const double bound = kEps * (static_cast<double>(in) / 8 + 140) * magnitude[i];
      ASSERT_NEAR(static_cast<double>(run.y[t][i]), expected[i], bound) << what << " target " << t << " index " << i;
    }
  }
}

// Random segments over `rows` rows: empty ones, ones that share rows, rows in none.
std::vector<LoraSegment> random_segments(Prng& prng, int32_t rows, int32_t slots) {
  std::vector<LoraSegment> segments;
  for (uint64_t i = 1 + prng.below(6); i > 0; --i) {
    const auto begin = static_cast<int32_t>(prng.below(static_cast<uint64_t>(rows)));
    const auto count = static_cast<int32_t>(prng.below(static_cast<uint64_t>(rows - begin) + 1));
    segments.push_back({begin, count, static_cast<int32_t>(prng.below(static_cast<uint64_t>(slots))),
                        static_cast<float>(prng.uniform() * 2)});
  }
  return segments;
}

// One pair on one target.
std::vector<float> product_of(const OpTable& table, const LoraPair& pair, const std::vector<float>& x, int64_t x_stride,
                              int32_t rows, std::vector<float> y) {
  TestContext& context = fresh_context(table, 2);
  const LoraSource source{&pair};
  const LoraSegment segment{0, rows, 0, 0.5f};
  const LoraTarget target{.y = y.data(), .y_stride = pair.out, .sources = &source, .out = pair.out};
  table.lora(context.ctx,
             {.x = x.data(), .x_stride = x_stride, .in = pair.in, .segments = {&segment, 1}, .targets = {&target, 1}});
  return y;
}

// Factors of a part, laid out on their own.
LoraPair copied_inputs(const LoraPair& part, std::vector<std::byte>& a, std::vector<float>& scales) {
  LoraPair own = part;
  own.a_width = 0;
  const int64_t row = lora_a_stride_bytes(own), groups = lora_quant_groups(part.in);
  for (int32_t r = 0; r < part.rank; ++r) {
    const std::byte* const from = part.a + r * lora_a_stride_bytes(part);
    a.insert(a.end(), from, from + row);
    if (part.a_scale == nullptr) continue;
    const float* const scale = part.a_scale + r * lora_quant_groups(part.a_width);
    scales.insert(scales.end(), scale, scale + groups);
  }
  own.a = a.data();
  if (part.a_scale != nullptr) own.a_scale = scales.data();
  return own;
}

TEST_P(Lora, APartOfAPairGivesThePartOfItsProduct) {
  const uint64_t seed = 231;
  Prng prng(seed);
  for (const Stored stored : kStored) {
    for (const int32_t rank : {0, 1, 5, 8, 24}) {
      for (const int32_t rows : {1, 3, 9}) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " format " << static_cast<int>(stored) << " rank " << rank
                                        << " rows " << rows);
        constexpr int32_t kIn = 192, kOut = 320;
        const TestPair whole(prng, stored, rank, kIn, kOut, true, true);
        const std::vector<float> x = random_floats(prng, int64_t{rows} * kIn);
        const std::vector<float> want =
            product_of(*GetParam(), whole.pair, x, kIn, rows, std::vector<float>(static_cast<size_t>(rows * kOut)));
        for (const auto& [begin, count] : {std::pair{0, 128}, {128, 192}, {64, 64}}) {
          const LoraPair part = outputs_of(whole.pair, begin, count);
          const auto got =
              product_of(*GetParam(), part, x, kIn, rows, std::vector<float>(static_cast<size_t>(rows * count)));
          for (int32_t row = 0; row < rows; ++row)
            for (int32_t i = 0; i < count; ++i)
              ASSERT_EQ(got[static_cast<size_t>(row * count + i)], want[static_cast<size_t>(row * kOut + begin + i)]);
        }
        for (const auto& [begin, count] : {std::pair{0, 64}, {64, 128}}) {
          const LoraPair part = inputs_of(whole.pair, begin, count);
          EXPECT_EQ(part.b_bias != nullptr, begin == 0);
          EXPECT_EQ(part.bias_delta != nullptr, begin == 0);
          std::vector<std::byte> a;
          std::vector<float> scales;
          const LoraPair own = rank > 0 ? copied_inputs(part, a, scales) : part;
          const std::vector<float> columns(x.begin() + begin, x.end());
          const std::vector<float> none(static_cast<size_t>(rows * kOut));
          ASSERT_EQ(product_of(*GetParam(), part, columns, kIn, rows, none),
                    product_of(*GetParam(), own, columns, kIn, rows, none));
        }
      }
    }
  }
}

TEST_P(Lora, AgreesWithTheNaiveProductForMixedRanks) {
  const uint64_t seed = 201;
  Prng prng(seed);
  for (int round = 0; round < 25; ++round) {
    const auto in = static_cast<int32_t>(1 + prng.below(200)), rows = static_cast<int32_t>(1 + prng.below(80));
    std::vector<int32_t> outs;
    for (uint64_t t = 1 + prng.below(3); t > 0; --t) outs.push_back(static_cast<int32_t>(1 + prng.below(400)));
    TestLayer layer(prng, in, outs, {0, 1, 4, 8, 64, -1, 3, 17});
    const std::vector<float> x = random_floats(prng, int64_t{rows} * in);
    const std::vector<LoraSegment> segments = random_segments(prng, rows, 8);
    const auto start = start_values(prng, layer, rows);
    const LoraRun run = run_lora(table(), 1 + round % 4, layer, x, rows, segments, start);
    expect_lora(layer, x, segments, start, run, "seed " + std::to_string(seed) + " round " + std::to_string(round));
  }
}

TEST_P(Lora, ManySegmentsAndHighRanksNeedSeveralBatches) {
  Prng prng(202);
  TestLayer layer(prng, 48, {96, 2100}, {128, 5});
  std::vector<LoraSegment> segments;
  for (int32_t row = 0; row < 256; ++row) segments.push_back({row, 1, row % 2, 1.0f});
  segments.push_back({0, 256, 0, 0.5f});
  segments.push_back({100, 100, 1, -0.5f});
  const std::vector<float> x = random_floats(prng, 256 * 48);
  const auto start = start_values(prng, layer, 256);
  const LoraRun run = run_lora(table(), 2, layer, x, 256, segments, start);
  expect_lora(layer, x, segments, start, run, "batches");
  EXPECT_EQ(run.op_count, 1u);
}

// Factors of one row are asked for, far behind the last one too.
TEST_P(Lora, WhereFactorsAreBroughtDoesNotShow) {
  Prng prng(211);
  TestLayer layer(prng, 333, {75, 1030}, {16, 5});
  const std::vector<float> x = random_floats(prng, 2 * 333);
  const auto start = start_values(prng, layer, 2);
  const std::vector<LoraSegment> segments = {{0, 1, 0, 0.5f}, {1, 1, 1, 2.0f}};
  std::vector<LoraRun> runs;
  for (const bool second_level : {false, true}) {
    TileTuning tuning;
    tuning.factors_to_second_level = second_level;
    runs.push_back(run_lora(table(), 2, layer, x, 2, segments, start, tuning));
    expect_lora(layer, x, segments, start, runs.back(), second_level ? "second level" : "first level");
  }
  for (size_t t = 0; t < layer.outs.size(); ++t) EXPECT_TRUE(same_bits(runs[0].y[t], runs[1].y[t]));
}

TEST_P(Lora, ARowDoesNotDependOnItsSegmentsNeighboursOrThreads) {
  Prng prng(203);
  const int32_t rows = 70;
  const std::vector<float> x = random_floats(prng, int64_t{rows} * 150);
  for (Stored stored : kStored) {
    TestLayer layer(prng, 150, {130, 33}, {8, 64, 5, 27}, stored);
    const auto start = start_values(prng, layer, rows);
    for (int32_t slot = 0; slot < 4; ++slot) {
      const LoraRun whole = run_lora(table(), 4, layer, x, rows, {{0, rows, slot, 0.7f}}, start);
      std::vector<LoraSegment> singles, mixed;
      for (int32_t row = 0; row < rows; ++row) singles.push_back({row, 1, slot, 0.7f});
      for (int32_t row = 0; row < rows;) {
        const int32_t count = std::min(rows - row, static_cast<int32_t>(1 + prng.below(11)));
        mixed.push_back({row, count, slot, 0.7f});
        row += count;
      }
      // Only some rows use this adapter, the others another one.
      std::vector<LoraSegment> others = mixed;
      for (size_t i = 0; i < others.size(); i += 2) others[i].slot = (slot + 1) % 4;
      for (int threads : {1, 3}) {
        for (const auto& segments : {singles, mixed, others}) {
          const LoraRun run = run_lora(table(), threads, layer, x, rows, segments, start);
          for (const LoraSegment& segment : segments) {
            if (segment.slot != slot) continue;
            for (size_t t = 0; t < 2; ++t) {
              const auto out = static_cast<size_t>(layer.outs[t]);
              const size_t at = static_cast<size_t>(segment.row_begin) * out;
              ASSERT_EQ(std::memcmp(&run.y[t][at], &whole.y[t][at],
                                    static_cast<size_t>(segment.row_count) * out * sizeof(float)),
                        0)
                  << "stored " << static_cast<int>(stored) << " slot " << slot << " threads " << threads;
            }
          }
        }
      }
    }
  }
}

// Every row mixes two adapters, some a third: the order of a row's own segments
// decides, not the batch.
TEST_P(Lora, OverlappingSegmentsAreAddedInTheRowsOwnOrder) {
  Prng prng(208);
  const int32_t rows = 9;
  TestLayer layer(prng, 96, {70, 40}, {8, 3, 16});
  const std::vector<float> x = random_floats(prng, int64_t{rows} * 96);
  const auto start = start_values(prng, layer, rows);
  std::vector<LoraSegment> all;
  std::vector<std::vector<LoraSegment>> of_row(static_cast<size_t>(rows));
  for (int32_t row = 0; row < rows; ++row) {
    auto& segments = of_row[static_cast<size_t>(row)];
    segments = {{row, 1, row % 3, 0.5f}, {row, 1, (row + 1) % 3, 1.5f}};
    if (row % 2 == 0) segments.push_back({row, 1, row % 3, -0.25f});
    all.insert(all.end(), segments.begin(), segments.end());
  }
  const LoraRun together = run_lora(table(), 3, layer, x, rows, all, start);
  expect_lora(layer, x, all, start, together, "overlap");
  for (int32_t row = 0; row < rows; ++row) {
    const LoraRun alone = run_lora(table(), 1, layer, x, rows, of_row[static_cast<size_t>(row)], start);
    for (size_t t = 0; t < 2; ++t) {
      const auto out = static_cast<size_t>(layer.outs[t]);
      ASSERT_EQ(std::memcmp(&alone.y[t][static_cast<size_t>(row) * out], &together.y[t][static_cast<size_t>(row) * out],
                            out * sizeof(float)),
                0)
          << row;
    }
  }
}

// A fused projection's pairs have one A; sharing its product changes no number.
TEST_P(Lora, TargetsMayShareOneA) {
  Prng prng(209);
  for (Stored stored : kStored) {
    TestLayer layer(prng, 150, {64, 20, 90}, {12}, stored);
    TestPair &first = layer.pairs[0], &last = layer.pairs[2];
    const std::vector<float> x = random_floats(prng, 5 * 150);
    const auto start = start_values(prng, layer, 5);
    last.a = first.a;  // a copy of the bytes
    last.a_scale = first.a_scale;
    last.a_values = first.a_values;
    last.pair.a = last.a.data();
    if (last.pair.a_scale != nullptr) last.pair.a_scale = last.a_scale.data();
    const LoraRun apart = run_lora(table(), 2, layer, x, 5, {{0, 5, 0, 1.0f}}, start);
    last.pair.a = first.pair.a;  // the same bytes
    last.pair.a_scale = first.pair.a_scale;
    const LoraRun shared = run_lora(table(), 2, layer, x, 5, {{0, 5, 0, 1.0f}}, start);
    expect_lora(layer, x, {{0, 5, 0, 1.0f}}, start, shared, "shared");
    for (size_t t = 0; t < 3; ++t) ASSERT_TRUE(same_bits(apart.y[t], shared.y[t]));
  }
}

// Int8 factors against the numbers they were made from: each factor is off by at most
// half a step of its group.
TEST_P(Lora, Int8FactorsStayWithinTheirSteps) {
  Prng prng(210);
  const int32_t in = 200, out = 130, rank = 16;
  const std::vector<float> a = random_floats(prng, rank * in), b = random_floats(prng, rank * out);
  TestLayer layer(prng, in, {out}, {rank}, Stored::kInt8);
  TestPair& test = layer.pairs[0];
  const auto bytes = [](const std::vector<float>& values) {
    const auto* data = reinterpret_cast<const std::byte*>(values.data());
    return std::vector<std::byte>(data, data + values.size() * sizeof(float));
  };
  test.a = bytes(a), test.b_t = bytes(b);
  TestPair::quantise(test.a, test.a_scale, rank, in, lora_quant_groups(in), 1);
  TestPair::quantise(test.b_t, test.b_scale, rank, out, 1, rank);
  test.pair.a = test.a.data(), test.pair.b_t = test.b_t.data();
  test.pair.a_scale = test.a_scale.data(), test.pair.b_scale = test.b_scale.data();
  test.pair.b_bias = test.pair.bias_delta = nullptr;
  const std::vector<float> x = random_floats(prng, in);
  const LoraRun run = run_lora(table(), 2, layer, x, 1, {{0, 1, 0, 1.0f}}, {std::vector<float>(out)});
  std::vector<double> v(rank), v_abs(rank), v_off(rank);
  for (int r = 0; r < rank; ++r) {
    for (int k = 0; k < in; ++k) {
      const auto at = static_cast<size_t>(r * in + k);
      const double value = static_cast<double>(x[static_cast<size_t>(k)]);
      v[static_cast<size_t>(r)] += value * static_cast<double>(a[at]);
      v_abs[static_cast<size_t>(r)] += std::fabs(value * static_cast<double>(a[at]));
      v_off[static_cast<size_t>(r)] +=
          std::fabs(value) * 0.5 * static_cast<double>(test.a_scale[static_cast<size_t>(r * 4 + k / 64)]);
    }
  }
  for (int o = 0; o < out; ++o) {
    double sum = 0, off = 0, magnitude = 0;
    for (int r = 0; r < rank; ++r) {
      const auto i = static_cast<size_t>(r);
      const double factor = static_cast<double>(b[static_cast<size_t>(r * out + o)]);
      const double factor_off = 0.5 * static_cast<double>(test.b_scale[static_cast<size_t>(o / 64 * rank + r)]);
      sum += v[i] * factor;
      off += v_off[i] * std::fabs(factor) + (std::fabs(v[i]) + v_off[i]) * factor_off;
      magnitude += (v_abs[i] + v_off[i]) * (std::fabs(factor) + factor_off);
    }
    const double scaling = static_cast<double>(test.pair.scaling);
    ASSERT_NEAR(static_cast<double>(run.y[0][static_cast<size_t>(o)]), scaling * sum,
                scaling * (off + kEps * (in / 8 + 140) * magnitude));
  }
}

TEST_P(Lora, RowsOutsideTheSegmentsAreNotTouched) {
  Prng prng(204);
  TestLayer layer(prng, 40, {50}, {4});
  const std::vector<float> x = random_floats(prng, 10 * 40);
  const auto start = start_values(prng, layer, 10);
  const LoraRun run = run_lora(table(), 2, layer, x, 10, {{3, 2, 0, 1.0f}}, start);
  for (size_t row = 0; row < 10; ++row) {
    const bool same = std::memcmp(&run.y[0][row * 50], &start[0][row * 50], 50 * sizeof(float)) == 0;
    EXPECT_EQ(same, row != 3 && row != 4) << row;
  }
}

TEST_P(Lora, NothingToDoIsNoOperation) {
  Prng prng(205);
  TestLayer layer(prng, 16, {16}, {4, -1});
  const std::vector<float> x = random_floats(prng, 4 * 16);
  const auto start = start_values(prng, layer, 4);
  EXPECT_EQ(run_lora(table(), 2, layer, x, 4, {}, start).op_count, 0u);
  EXPECT_EQ(run_lora(table(), 2, layer, x, 4, {{0, 4, 1, 1.0f}}, start).op_count, 0u) << "source is none";
  EXPECT_EQ(run_lora(table(), 2, layer, x, 4, {{0, 0, 0, 1.0f}}, start).op_count, 0u) << "no rows";
  EXPECT_EQ(run_lora(table(), 2, layer, x, 4, {{0, 1, 0, 1.0f}}, start).op_count, 1u);
}

TEST_P(Lora, EmbeddingPairsLookTheirRowsUp) {
  Prng prng(207);
  const int32_t vocab = 30, hidden = 90, rows = 40;
  for (Stored stored : {Stored::kF32, Stored::kF16, Stored::kBF16}) {
    const DType dtype = dtype_of(stored);
    for (int32_t rank : {1, 6, 64}) {
      TestPair test(prng, stored, rank, vocab, hidden, false, false);
      const std::vector<std::byte> table_rows = random_rows(prng, dtype, vocab, rank);  // [vocab, rank]
      std::vector<float> a(static_cast<size_t>(vocab * rank));
      decode_row(dtype, table_rows.data(), a.data(), int64_t{vocab} * rank);
      test.pair.a = table_rows.data();
      std::vector<TokenId> tokens;
      for (int i = 0; i < rows; ++i) tokens.push_back(static_cast<TokenId>(prng.below(vocab)));
      const std::vector<float> start = random_floats(prng, rows * hidden);
      std::vector<float> y = start;
      LoraSource source;
      source.pair = &test.pair;
      const std::vector<LoraSegment> segments = {{2, 35, 0, 0.5f}};
      TestContext& context = fresh_context(table());
      table().lora_embed(
          context.ctx, {.tokens = tokens.data(), .segments = segments, .target = {y.data(), hidden, &source, hidden}});
      EXPECT_EQ(context.ctx.op_count, 1u);
      for (int32_t row = 0; row < rows; ++row) {
        for (int32_t o = 0; o < hidden; ++o) {
          const auto index = static_cast<size_t>(row * hidden + o);
          double expected = static_cast<double>(start[index]), magnitude = std::fabs(expected);
          for (int32_t r = 0; row >= 2 && row < 37 && r < rank; ++r) {
            const double term =
                0.5 * static_cast<double>(test.pair.scaling) *
                static_cast<double>(a[static_cast<size_t>(tokens[static_cast<size_t>(row)] * rank + r)]) *
                static_cast<double>(test.b_values[static_cast<size_t>(r * hidden + o)]);
            expected += term;
            magnitude += std::fabs(term);
          }
          ASSERT_NEAR(static_cast<double>(y[index]), expected, kEps * (rank + 10) * magnitude);
        }
      }
    }
  }
}

}  // namespace
}  // namespace loralei

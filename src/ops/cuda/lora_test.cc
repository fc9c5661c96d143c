// SPDX-License-Identifier: Apache-2.0
#include <deque>

#include "ops/args.h"
#include "ops/cuda/cuda_test_util.h"
#include "ops/cuda/lora_plan.h"
#include "ops/lora_factors.h"

namespace loralei::cuda {
namespace {

constexpr int32_t kNone = -1;  // the "rank" of an adapter that does nothing

// One adapter's pair for one target on both sides; `absolute` holds the sizes of its
// numbers, for bounds.
struct Pair {
  std::vector<float> a, b_t, b_bias, bias_delta;
  std::vector<std::byte> a_bytes, b_bytes;
  std::vector<float> b_bias_abs, bias_delta_abs;
  std::vector<std::byte> a_abs, b_abs;
  std::vector<float> a_scale, b_scale;  // of int8 factors
  LoraPair pair, absolute;
};

class CudaLora : public CudaTest {
 protected:
  struct Layer {
    int32_t in = 0, slots = 0;
    bool embedding = false;
    std::vector<int32_t> outs;
    std::deque<Pair> pairs;
    std::vector<std::vector<Pair*>> used;  // [target][slot]
    std::deque<DeviceArray<std::byte>> bytes;
    std::deque<DeviceArray<float>> floats;
    std::deque<DeviceArray<DeviceLora>> sources;
  };

  static std::vector<float> sizes(std::vector<float> values) {
    for (float& value : values) value = std::fabs(value);
    return values;
  }
  // Random factors for `p` and `source`, which have their shapes; the device has
  // `rank_padded` rows where that is more.
  void make_plain(Prng& prng, Layer& layer, DType dtype, int32_t rank_padded, Pair& p, DeviceLora& source) {
    p.a = rounded(dtype, random_floats(prng, int64_t{p.pair.rank} * p.pair.in));
    p.b_t = rounded(dtype, random_floats(prng, int64_t{p.pair.rank} * p.pair.out));
    p.a_bytes = encoded(dtype, p.a), p.b_bytes = encoded(dtype, p.b_t);
    p.a_abs = encoded(dtype, sizes(p.a)), p.b_abs = encoded(dtype, sizes(p.b_t));
    const int32_t rank = std::max(rank_padded, p.pair.rank);
    std::vector<std::byte> a = p.a_bytes, b = p.b_bytes;
    a.resize(static_cast<size_t>(row_bytes(dtype, int64_t{rank} * p.pair.in)));
    b.resize(static_cast<size_t>(row_bytes(dtype, int64_t{rank} * p.pair.out)));
    source.a = layer.bytes.emplace_back(device(a)).data();
    source.b_t = layer.bytes.emplace_back(device(b)).data();
    p.pair.dtype = source.dtype = dtype;
  }
  void make_int8(Prng& prng, Layer& layer, int32_t rank_padded, Pair& p, DeviceLora& source) {
    const int32_t rank = p.pair.rank, in = p.pair.in, out = p.pair.out, padded = std::max(rank_padded, rank);
    p.a = random_floats(prng, int64_t{rank} * in), p.b_t = random_floats(prng, int64_t{rank} * out);
    // [rows, count] as a's rows, or as b's whose scales lie [groups, rows].
    const auto quantised = [](std::vector<float> values, int32_t rows, int32_t count, bool b,
                              std::vector<float>& scales) {
      values.resize(static_cast<size_t>(rows) * static_cast<size_t>(count));
      const int64_t groups = lora_quant_groups(count);
      std::vector<std::byte> bytes(static_cast<size_t>(rows * lora_quant_row_bytes(count)));
      scales.resize(static_cast<size_t>(rows * groups));
      quantise_lora(values.data(), rows, count, bytes.data(), scales.data(), b ? 1 : groups, b ? rows : 1);
      return bytes;
    };
    p.a_bytes = quantised(p.a, rank, in, false, p.a_scale), p.b_bytes = quantised(p.b_t, rank, out, true, p.b_scale);
    std::vector<float> same_scales;
    p.a_abs = quantised(sizes(p.a), rank, in, false, same_scales);
    p.b_abs = quantised(sizes(p.b_t), rank, out, true, same_scales);
    p.pair.a_scale = p.a_scale.data(), p.pair.b_scale = p.b_scale.data();
    std::vector<float> a_scale, b_scale;
    source.a = layer.bytes.emplace_back(device(quantised(p.a, padded, in, false, a_scale))).data();
    source.b_t = layer.bytes.emplace_back(device(quantised(p.b_t, padded, out, true, b_scale))).data();
    source.a_scale = on_device(layer, a_scale), source.b_scale = on_device(layer, b_scale);
    source.dtype = DType::kI8;
    source.rank = padded;  // b's scales lie by it
  }
  const float* on_device(Layer& layer, const std::vector<float>& values) {
    return layer.floats.emplace_back(device(values)).data();
  }

  Layer make(Prng& prng, int32_t in, std::vector<int32_t> outs, const std::vector<int32_t>& ranks,
             bool embedding = false, int32_t rank_padded = 0) {
    Layer layer;
    layer.in = in;
    layer.slots = static_cast<int32_t>(ranks.size());
    layer.embedding = embedding;
    layer.outs = std::move(outs);
    for (int32_t out : layer.outs) {
      std::vector<DeviceLora> sources;
      layer.used.emplace_back();
      for (int32_t rank : ranks) {
        DeviceLora& source = sources.emplace_back();
        layer.used.back().push_back(nullptr);
        if (rank == kNone) continue;
        Pair& p = layer.pairs.emplace_back();
        layer.used.back().back() = &p;
        source.present = 1;
        p.b_bias = random_floats(prng, out);
        p.bias_delta = random_floats(prng, out);
        p.b_bias_abs = sizes(p.b_bias), p.bias_delta_abs = sizes(p.bias_delta);
        p.pair = {.rank = rank,
                  .in = in,
                  .out = out,
                  .scaling = static_cast<float>(0.25 + prng.uniform()),
                  .b_bias = prng.below(2) == 0 ? p.b_bias.data() : nullptr,
                  .bias_delta = rank == 0 || prng.below(2) == 0 ? p.bias_delta.data() : nullptr};
        source.rank = rank, source.in = in, source.out = out;
        const uint64_t stored = prng.below(embedding || rank == 0 ? 3 : 4);
        if (stored < 3) {
          make_plain(prng, layer, kPlainDTypes[stored], rank_padded, p, source);
        } else {
          make_int8(prng, layer, rank_padded, p, source);
        }
        p.pair.a = p.a_bytes.data(), p.pair.b_t = p.b_bytes.data();
        p.absolute = p.pair;
        p.absolute.a = p.a_abs.data(), p.absolute.b_t = p.b_abs.data();
        if (p.pair.b_bias != nullptr) p.absolute.b_bias = p.b_bias_abs.data();
        if (p.pair.bias_delta != nullptr) p.absolute.bias_delta = p.bias_delta_abs.data();
        if (p.pair.b_bias != nullptr) source.b_bias = on_device(layer, p.b_bias);
        if (p.pair.bias_delta != nullptr) source.bias_delta = on_device(layer, p.bias_delta);
        source.scaling = p.pair.scaling;
      }
      layer.sources.emplace_back(device(sources));
    }
    return layer;
  }

  std::vector<std::vector<float>> reference(Layer& layer, std::vector<float> x, const std::vector<TokenId>& tokens,
                                            std::vector<LoraSegment> segments, std::vector<std::vector<float>> y,
                                            bool absolute) {
    if (absolute) {
      x = sizes(x);
      for (auto& values : y) values = sizes(values);
      for (LoraSegment& segment : segments) segment.scale = std::fabs(segment.scale);
    }
    std::vector<std::vector<LoraSource>> sources;
    std::vector<loralei::LoraTarget> targets;
    for (size_t t = 0; t < layer.outs.size(); ++t) {
      sources.emplace_back(static_cast<size_t>(layer.slots));
      for (size_t s = 0; s < static_cast<size_t>(layer.slots); ++s) {
        Pair* pair = layer.used[t][s];
        if (pair == nullptr) continue;
        sources.back()[s].pair = absolute ? &pair->absolute : &pair->pair;
      }
      targets.push_back({y[t].data(), layer.outs[t], sources.back().data(), layer.outs[t]});
    }
    TestContext& context = fresh_context(ref_op_table(), 2);
    if (layer.embedding) {
      ref_op_table().lora_embed(context.ctx, {tokens.data(), segments, targets[0]});
    } else {
      ref_op_table().lora(context.ctx, {x.data(), layer.in, layer.in, segments, targets});
    }
    return y;
  }

  std::vector<std::vector<float>> run(Layer& layer, DType x_dtype, const std::vector<float>& x,
                                      const std::vector<TokenId>& tokens, int32_t rows,
                                      const std::vector<LoraSegment>& segments,
                                      const std::vector<std::vector<float>>& start) {
    LoraPlan plan({.rows = rows + 3, .segments = static_cast<int32_t>(segments.size()) + 2, .entries = 6 * rows + 5});
    EXPECT_TRUE(plan.fill(segments, rows));
    const auto copy = [this](auto span) {
      return device(std::vector<std::remove_const_t<typename decltype(span)::element_type>>(span.begin(), span.end()));
    };
    auto d_segments = copy(plan.segments());
    auto d_parts = copy(plan.parts());
    auto d_runs = copy(plan.runs());
    auto d_order = copy(plan.order());
    auto dx = device(encoded(x_dtype, x));
    auto dt = device(tokens.empty() ? std::vector<TokenId>{0} : tokens);
    std::deque<DeviceArray<float>> y;
    const int32_t rank_max = 256, entries = 6 * rows + 5;
    auto v = room(DType::kF32, int64_t{rank_max} * entries * static_cast<int64_t>(layer.outs.size()));
    LoraArgs args{.x = dx.data(),
                  .x_dtype = x_dtype,
                  .x_stride = layer.in,
                  .in = layer.in,
                  .tokens = layer.embedding ? dt.data() : nullptr,
                  .step = {d_segments.data(), d_parts.data(), static_cast<int32_t>(plan.parts().size()), d_runs.data(),
                           static_cast<int32_t>(plan.runs().size()), d_order.data()},
                  .target_count = static_cast<int32_t>(layer.outs.size()),
                  .v = reinterpret_cast<float*>(v.data()),
                  .entries = entries,
                  .rank_max = rank_max};
    for (size_t t = 0; t < layer.outs.size(); ++t) {
      y.emplace_back(device(start[t]));
      args.targets[t] = {y.back().data(), layer.outs[t], layer.sources[t].data(), layer.outs[t]};
    }
    EXPECT_TRUE(lora(stream_, args).ok());
    std::vector<std::vector<float>> result;
    for (auto& values : y) result.push_back(values.get());
    return result;
  }

  static std::vector<std::vector<float>> start_values(Prng& prng, const Layer& layer, int32_t rows) {
    std::vector<std::vector<float>> start;
    for (int32_t out : layer.outs) start.push_back(random_floats(prng, int64_t{rows} * out));
    return start;
  }

  // Sums of `in`, then of rank terms, then a few steps: eps (in + rank + 20) of the
  // terms' sizes at most; a quarter of that bound holds for sums over 32 lanes.
  void expect_agreement(Layer& layer, const std::vector<float>& x, const std::vector<TokenId>& tokens,
                        const std::vector<LoraSegment>& segments, const std::vector<std::vector<float>>& start,
                        const std::vector<std::vector<float>>& got, const std::string& what) {
    const auto expected = reference(layer, x, tokens, segments, start, false);
    const auto magnitude = reference(layer, x, tokens, segments, start, true);
    for (size_t t = 0; t < expected.size(); ++t) {
      for (size_t i = 0; i < expected[t].size(); ++i) {
        const double bound = kEps * (layer.in / 4.0 + 256 / 4.0 + 20) * static_cast<double>(magnitude[t][i]);
        ASSERT_NEAR(static_cast<double>(got[t][i]), static_cast<double>(expected[t][i]), bound)
            << what << " target " << t << " at " << i;
      }
    }
  }
};

std::vector<LoraSegment> random_segments(Prng& prng, int32_t rows, int32_t slots) {
  std::vector<LoraSegment> segments;
  for (uint64_t i = 1 + prng.below(6); i > 0; --i) {
    const auto begin = static_cast<int32_t>(prng.below(static_cast<uint64_t>(rows)));
    const auto count = static_cast<int32_t>(prng.below(static_cast<uint64_t>(rows - begin) + 1));
    segments.push_back({begin, count, static_cast<int32_t>(prng.below(static_cast<uint64_t>(slots))),
                        static_cast<float>(prng.uniform() * 2 - 0.5)});
  }
  return segments;
}

TEST_F(CudaLora, AgreesWithTheReferenceForMixedRanks) {
  Prng prng(921);
  for (int round = 0; round < 16; ++round) {
    const auto rows = static_cast<int32_t>(1 + prng.below(40));
    const int32_t in =
        round % 2 == 0 ? 8 * static_cast<int32_t>(1 + prng.below(40)) : static_cast<int32_t>(1 + prng.below(300));
    std::vector<int32_t> outs;
    for (uint64_t t = 1 + prng.below(3); t > 0; --t) outs.push_back(static_cast<int32_t>(1 + prng.below(400)));
    Layer layer = make(prng, in, outs, {0, 1, 4, 8, 64, kNone, 3, 128});
    const DType x_dtype = kPlainDTypes[round % 3];
    const std::vector<float> x = rounded(x_dtype, random_floats(prng, int64_t{rows} * in));
    const std::vector<LoraSegment> segments = random_segments(prng, rows, 8);
    const auto start = start_values(prng, layer, rows);
    const auto got = run(layer, x_dtype, x, {}, rows, segments, start);
    expect_agreement(layer, x, {}, segments, start, got, "round " + std::to_string(round));
  }
}

TEST_F(CudaLora, TheHighestRankAndManySegments) {
  Prng prng(922);
  Layer layer = make(prng, 64, {96, 33}, {256, 5, 16});
  std::vector<LoraSegment> segments;
  for (int32_t row = 0; row < 20; ++row) segments.push_back({row, 1, row % 3, 1.0f});
  segments.push_back({0, 20, 0, 0.5f});
  segments.push_back({7, 9, 1, -0.5f});
  const std::vector<float> x = random_floats(prng, 20 * 64);
  const auto start = start_values(prng, layer, 20);
  expect_agreement(layer, x, {}, segments, start, run(layer, DType::kF32, x, {}, 20, segments, start), "many");
}

// Few rows are split otherwise than many: of inputs in whole vectors or not, with a last
// quarter that is shorter.
TEST_F(CudaLora, ARowDoesNotDependOnItsNeighboursOrSegments) {
  Prng prng(923);
  const int32_t rows = 21;
  for (const int32_t in : {160, 1301, 4104}) {
    Layer layer = make(prng, in, {136, 33}, {8, 64, 5, 27});
    const std::vector<float> x = rounded(DType::kBF16, random_floats(prng, int64_t{rows} * in));
    const auto start = start_values(prng, layer, rows);
    for (int32_t slot = 0; slot < 4; slot += in == 160 ? 1 : 2) {
      const std::vector<LoraSegment> all = {{0, rows, slot, 0.7f}};
      const auto whole = run(layer, DType::kBF16, x, {}, rows, all, start);
      expect_agreement(layer, x, {}, all, start, whole, "all rows");
      std::vector<LoraSegment> singles, others;
      for (int32_t row = 0; row < rows; ++row) singles.push_back({row, 1, slot, 0.7f});
      for (int32_t row = 0; row < rows; row += 3) {
        others.push_back({row, 3, row % 2 == 0 ? slot : (slot + 1) % 4, 0.7f});
      }
      for (const auto& segments : {singles, others}) {
        const auto got = run(layer, DType::kBF16, x, {}, rows, segments, start);
        for (const LoraSegment& segment : segments) {
          if (segment.slot != slot) continue;
          for (size_t t = 0; t < 2; ++t) {
            const auto out = static_cast<size_t>(layer.outs[t]), at = static_cast<size_t>(segment.row_begin) * out;
            ASSERT_EQ(std::memcmp(&got[t][at], &whole[t][at], static_cast<size_t>(segment.row_count) * out * 4), 0);
          }
        }
      }
    }
  }
}

TEST_F(CudaLora, RowsOutsideTheSegmentsAreNotTouched) {
  Prng prng(924);
  Layer layer = make(prng, 40, {50}, {4, kNone});
  const std::vector<float> x = random_floats(prng, 10 * 40);
  auto start = start_values(prng, layer, 10);
  const auto got = run(layer, DType::kF32, x, {}, 10, {{3, 2, 0, 1.0f}, {8, 1, 1, 1.0f}, {6, 0, 0, 1.0f}}, start);
  for (size_t row = 0; row < 10; ++row) {
    const bool same = std::memcmp(&got[0][row * 50], &start[0][row * 50], 200) == 0;
    EXPECT_EQ(same, row != 3 && row != 4) << row;
  }
}

TEST_F(CudaLora, EmbeddingPairsLookTheirRowsUp) {
  Prng prng(925);
  const int32_t vocab = 30, rows = 12;
  Layer layer = make(prng, vocab, {90}, {1, 6, 64}, true);
  std::vector<TokenId> tokens;
  for (int i = 0; i < rows; ++i) tokens.push_back(static_cast<TokenId>(prng.below(vocab)));
  const auto start = start_values(prng, layer, rows);
  const std::vector<LoraSegment> segments = {{1, 9, 1, 0.5f}, {4, 8, 2, 1.0f}, {0, 12, 0, -1.0f}};
  const std::vector<float> x(rows * vocab);
  expect_agreement(layer, x, tokens, segments, start, run(layer, DType::kF32, x, tokens, rows, segments, start),
                   "embedding");
}

TEST_F(CudaLora, ThePaddedVariantComputesTheSame) {
  Prng prng(926);
  const int32_t rows = 9, rank = 16;
  Layer layer = make(prng, 88, {70, 129}, {16, 3, kNone, 8}, false, rank);
  const std::vector<float> x = rounded(DType::kBF16, random_floats(prng, rows * 88));
  const auto start = start_values(prng, layer, rows);
  std::vector<int32_t> slots;
  std::vector<float> scales;
  std::vector<LoraSegment> segments;
  for (int32_t row = 0; row < rows; ++row) {
    slots.push_back(row % 5 - 1);
    scales.push_back(static_cast<float>(prng.uniform()));
    if (slots.back() >= 0) segments.push_back({row, 1, slots.back(), scales.back()});
  }
  auto dx = device(encoded(DType::kBF16, x));
  auto ds = device(slots);
  auto df = device(scales), y0 = device(start[0]), y1 = device(start[1]);
  auto v = room(DType::kF32, 2 * rows * rank);
  PaddedLoraArgs args{
      .x = dx.data(),
      .x_stride = 88,
      .in = 88,
      .rows = rows,
      .slots = ds.data(),
      .scales = df.data(),
      .targets = {{y0.data(), 70, layer.sources[0].data(), 70}, {y1.data(), 129, layer.sources[1].data(), 129}},
      .target_count = 2,
      .v = reinterpret_cast<float*>(v.data()),
      .rank = rank};
  LAUNCH_OK(lora_padded_shrink(stream_, args));
  LAUNCH_OK(lora_padded_expand(stream_, args));
  const std::vector<std::vector<float>> got = {y0.get(), y1.get()};
  expect_agreement(layer, x, {}, segments, start, got, "padded");
  // And to the bit what the unpadded kernels compute: zeros add nothing.
  const auto unpadded = run(layer, DType::kBF16, x, {}, rows, segments, start);
  for (size_t t = 0; t < 2; ++t) EXPECT_TRUE(same_bits(got[t], unpadded[t]));
}

TEST_F(CudaLora, ThePlanRefusesWhatExceedsItsLimits) {
  LoraPlan plan({.rows = 4, .segments = 2, .entries = 5});
  EXPECT_TRUE(plan.fill(std::vector<LoraSegment>{{0, 4, 0, 1}, {3, 1, 1, 1}}, 4));
  EXPECT_FALSE(plan.fill(std::vector<LoraSegment>{{0, 4, 0, 1}, {2, 2, 1, 1}}, 4));
  EXPECT_FALSE(plan.fill(std::vector<LoraSegment>{{0, 1, 0, 1}, {1, 1, 1, 1}, {2, 1, 1, 1}}, 4));
  EXPECT_FALSE(plan.fill({}, 5));
}

// The table of sources changes between two launches of one graph: what is loaded
// meanwhile is applied.
TEST_F(CudaLora, AGraphReadsTheSourcesAsTheyAreWhenItRuns) {
  Prng prng(927);
  Layer layer = make(prng, 32, {24}, {4});
  const std::vector<float> x = random_floats(prng, 32), start = random_floats(prng, 24);
  LoraPlan plan({.rows = 1, .segments = 1, .entries = 1});
  ASSERT_TRUE(plan.fill(std::vector<LoraSegment>{{0, 1, 0, 1.0f}}, 1));
  auto segments = device(std::vector<DeviceLoraSegment>(plan.segments().begin(), plan.segments().end()));
  auto parts = device(std::vector<DeviceLoraPart>(plan.parts().begin(), plan.parts().end()));
  auto runs = device(std::vector<DeviceLoraRun>(plan.runs().begin(), plan.runs().end()));
  auto order = device(std::vector<int32_t>(plan.order().begin(), plan.order().end()));
  auto dx = device(x), y = device(start);
  auto v = room(DType::kF32, 4);
  std::vector<DeviceLora> now = layer.sources[0].get(), none(1);
  layer.sources[0].set(none);
  LoraArgs args{.x = dx.data(), .x_dtype = DType::kF32, .x_stride = 32, .in = 32};
  args.step = {segments.data(), parts.data(), 1, runs.data(), 1, order.data()};
  args.targets[0] = {y.data(), 24, layer.sources[0].data(), 24};
  args.target_count = 1;
  args.v = reinterpret_cast<float*>(v.data());
  args.entries = 1;
  args.rank_max = 4;
  CudaGraph graph;
  ASSERT_TRUE(graph.begin_capture(stream_).ok());
  LAUNCH_OK(lora(stream_, args));
  ASSERT_TRUE(graph.end_capture(stream_).ok());
  ASSERT_TRUE(graph.launch(stream_).ok());
  EXPECT_TRUE(same_bits(y.get(), start));
  layer.sources[0].set(now);
  ASSERT_TRUE(graph.launch(stream_).ok());
  EXPECT_FALSE(same_bits(y.get(), start));
}

}  // namespace
}  // namespace loralei::cuda

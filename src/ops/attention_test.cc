// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "base/limits.h"
#include "ops/op_test_util.h"

namespace loralei {
namespace {

class Attention : public EveryTable {};
constexpr DType kCacheDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8};
FOR_EVERY_TABLE(Attention);

// A paged cache with several layers whose unused bytes are NaN, and sequences with
// scattered block tables.
struct TestCache {
  static constexpr int32_t kLayers = 2;
  int32_t kv_heads, head_dim;
  std::vector<std::byte> bytes;
  KvView view;
  std::vector<int32_t> free_blocks;

  TestCache(Prng& prng, DType dtype, int32_t heads, int32_t dim, int32_t blocks) : kv_heads(heads), head_dim(dim) {
    const int64_t head_bytes = kv_head_bytes(dtype, dim);
    view = {.head_stride_bytes = head_bytes, .dtype = dtype, .kv_heads = heads, .head_dim = dim};
    view.kv_stride_bytes = head_bytes * heads;
    view.layer_stride_bytes = 2 * view.kv_stride_bytes;
    view.block_stride_bytes = kLayers * view.layer_stride_bytes;
    bytes.assign(static_cast<size_t>(view.block_stride_bytes * blocks), std::byte{0xFF});
    view.base = bytes.data();
    for (int32_t block = 0; block < blocks; ++block) free_blocks.push_back(block);
    for (size_t i = free_blocks.size(); i > 1; --i) std::swap(free_blocks[i - 1], free_blocks[prng.below(i)]);
  }
  std::vector<int32_t> take(int32_t positions) {
    std::vector<int32_t> table;
    for (int32_t p = 0; p < positions; p += kKvBlockTokens) {
      EXPECT_FALSE(free_blocks.empty());
      table.push_back(free_blocks.back());
      free_blocks.pop_back();
    }
    return table;
  }
  // What the cache holds for one position, decoded.
  std::vector<double> read(const std::vector<int32_t>& table, int32_t position, int32_t layer, int32_t v,
                           int32_t head) const {
    const std::byte* base = view.head(table[static_cast<size_t>(position / kKvBlockTokens)], layer, v, head);
    const int32_t slot = position % kKvBlockTokens;
    const double scale = has_vector_scale(view.dtype) ? static_cast<double>(view.scales(base)[slot]) : 1.0;
    std::vector<double> values;
    for (int32_t d = 0; d < head_dim; ++d) {
      float value;
      decode_row(view.dtype,
                 base + (v == 0 ? d * kKvBlockTokens + slot : slot * head_dim + d) * row_bytes(view.dtype, 1), &value,
                 1);
      values.push_back(static_cast<double>(value) * scale);
    }
    return values;
  }
};

struct TestSequence {
  int32_t length;  // positions in the cache
  std::vector<int32_t> blocks;
  std::vector<float> k, v;  // [length, kv_heads * head_dim]

  TestSequence(Prng& prng, TestCache& cache, int32_t positions) : length(positions), blocks(cache.take(positions)) {
    const int64_t width = int64_t{cache.kv_heads} * cache.head_dim;
    k = random_floats(prng, positions * width);
    v = random_floats(prng, positions * width);
  }
  RowGroup all() const { return {0, length, 0, blocks.data()}; }
};

void store_sequence(const OpTable& table, TestCache& cache, const TestSequence& sequence, int32_t layer) {
  TestContext& context = fresh_context(table);
  const std::vector<RowGroup> groups = {sequence.all()};
  table.kv_store(context.ctx, {.k = sequence.k.data(),
                               .v = sequence.v.data(),
                               .stride = int64_t{cache.kv_heads} * cache.head_dim,
                               .kv = cache.view,
                               .layer = layer,
                               .groups = groups});
  EXPECT_EQ(context.ctx.op_count, 1u);
}

std::vector<float> run_attention(const OpTable& table, int threads, const TestCache& cache, const std::vector<float>& q,
                                 int32_t heads, int32_t layer, int32_t window, const std::vector<RowGroup>& groups,
                                 float cap = 0, const std::vector<float>& sinks = {}) {
  TestContext& context = fresh_context(table, threads);
  std::vector<float> out(q.size(), std::numeric_limits<float>::quiet_NaN());
  const int64_t stride = int64_t{heads} * cache.head_dim;
  table.attention(context.ctx, {.q = q.data(),
                                .q_stride = stride,
                                .out = out.data(),
                                .out_stride = stride,
                                .kv = cache.view,
                                .layer = layer,
                                .heads = heads,
                                .scale = 1.0f / std::sqrt(static_cast<float>(cache.head_dim)),
                                .window = window,
                                .cap = cap,
                                .groups = groups,
                                .sinks = sinks.empty() ? nullptr : sinks.data()});
  EXPECT_EQ(context.ctx.op_count, 1u);
  return out;
}

// Errors: a score is one chain of dim fused products of a scaled q, then (int8) times the
// scale: off by at most eps (dim + 10) sum |q k| (d below), which changes each weight by
// a factor within e^(+-2d) of the normalised sum; the weighted mean of values then moves
// by at most 2d max|v|, plus the rounding of the sum over positions. A cap makes no error
// larger and adds a few eps of itself. A sink is a score of no error but that of its
// product with log2 e.
void expect_attention(const TestCache& cache, const TestSequence& sequence, const RowGroup& group,
                      const std::vector<float>& q, int32_t heads, int32_t layer, int32_t window,
                      const std::vector<float>& out, double cap = 0, const std::vector<float>& sinks = {}) {
  const auto dim = static_cast<size_t>(cache.head_dim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(cache.head_dim));
  for (int32_t i = 0; i < group.row_count; ++i) {
    const int32_t last = group.position + i, first = window > 0 ? std::max(0, last - window + 1) : 0;
    for (int32_t head = 0; head < heads; ++head) {
      const size_t at =
          (static_cast<size_t>(group.row_begin + i) * static_cast<size_t>(heads) + static_cast<size_t>(head)) * dim;
      std::vector<double> scores, expected(dim, 0.0);
      double largest = -1e300, score_magnitude = 0, value_max = 0, total = 0;
      for (int32_t p = first; p <= last; ++p) {
        const std::vector<double> k = cache.read(sequence.blocks, p, layer, 0, head / (heads / cache.kv_heads));
        double sum = 0, magnitude = 0;
        for (size_t d = 0; d < dim; ++d) {
          sum += static_cast<double>(q[at + d]) * k[d];
          magnitude += std::fabs(static_cast<double>(q[at + d]) * k[d]);
        }
        scores.push_back(cap > 0 ? cap * std::tanh(sum * scale / cap) : sum * scale);
        largest = std::max(largest, scores.back());
        score_magnitude = std::max(score_magnitude, magnitude * scale);
      }
      if (!sinks.empty()) {
        const double sink = static_cast<double>(sinks[static_cast<size_t>(head)]);
        largest = std::max(largest, sink);
        score_magnitude = std::max(score_magnitude, std::fabs(sink));
        total = std::exp(sink - largest);
      }
      for (int32_t p = first; p <= last; ++p) {
        const double weight = std::exp(scores[static_cast<size_t>(p - first)] - largest);
        total += weight;
        const std::vector<double> v = cache.read(sequence.blocks, p, layer, 1, head / (heads / cache.kv_heads));
        for (size_t d = 0; d < dim; ++d) {
          expected[d] += weight * v[d];
          value_max = std::max(value_max, std::fabs(v[d]));
        }
      }
      const double score_error =
          kEps * ((static_cast<double>(dim) + 10) * score_magnitude + 4 * std::fabs(largest) + 8 * cap);
      const double bound = value_max * (2 * score_error + kEps * (static_cast<double>(last - first + 1) + 20));
      for (size_t d = 0; d < dim; ++d) {
        ASSERT_NEAR(static_cast<double>(out[at + d]), expected[d] / total, bound)
            << "row " << i << " head " << head << " dim " << d;
      }
    }
  }
}

struct Shape {
  int32_t heads, kv_heads, head_dim;
};
constexpr Shape kShapes[] = {{8, 2, 64}, {4, 4, 32}, {6, 1, 80}, {3, 1, 20}, {40, 1, 16}, {2, 2, 128}, {16, 2, 24}};

TEST_P(Attention, StoresWhatTheCodecEncodes) {
  Prng prng(301);
  for (DType dtype : kPlainDTypes) {
    TestCache cache(prng, dtype, 3, 27, 8);
    TestSequence sequence(prng, cache, 50);
    sequence.k[5] = std::numeric_limits<float>::quiet_NaN();
    sequence.k[6] = 1e-7f, sequence.k[7] = -1e30f;
    store_sequence(table(), cache, sequence, 1);
    std::vector<std::byte> encoded(static_cast<size_t>(row_bytes(dtype, 27)));
    for (int32_t p = 0; p < 50; ++p) {
      for (int32_t head = 0; head < 3; ++head) {
        for (int32_t v = 0; v < 2; ++v) {
          encode_row(dtype, (v == 0 ? sequence.k : sequence.v).data() + (p * 3 + head) * 27, encoded.data(), 27);
          const std::byte* base = cache.view.head(sequence.blocks[static_cast<size_t>(p / 16)], 1, v, head);
          const int64_t bytes = row_bytes(dtype, 1);
          for (int32_t d = 0; d < 27; ++d) {
            const std::byte* slot = base + (v == 0 ? d * 16 + p % 16 : p % 16 * 27 + d) * bytes;
            ASSERT_EQ(std::memcmp(slot, encoded.data() + d * bytes, static_cast<size_t>(bytes)), 0)
                << dtype_info(dtype).name << " position " << p << " dim " << d;
          }
        }
      }
    }
    EXPECT_EQ(cache.view.slice(sequence.blocks[0], 0, 0)[0], std::byte{0xFF}) << "the other layer is untouched";
  }
}

// Half a step from what was given, the largest exactly at the format's largest; all
// tables store the same bytes.
void expect_one_scale_a_vector(const OpTable& table, DType dtype) {
  Prng prng(307);
  const int32_t dim = 83;
  TestCache cache(prng, dtype, 2, dim, 8);
  TestSequence sequence(prng, cache, 40);
  const auto at = [&](int32_t position, int32_t head) { return static_cast<size_t>((position * 2 + head) * dim); };
  std::fill_n(sequence.k.begin() + static_cast<int64_t>(at(3, 1)), dim, 0.0f);
  sequence.v[at(4, 0) + 80] = -7e20f;
  sequence.k[at(5, 0) + 1] = std::numeric_limits<float>::infinity();
  sequence.v[at(6, 1) + 82] = std::numeric_limits<float>::quiet_NaN();
  store_sequence(table, cache, sequence, 1);
  for (int32_t p = 0; p < 40; ++p) {
    for (int32_t head = 0; head < 2; ++head) {
      for (int32_t v = 0; v < 2; ++v) {
        const float* given = (v == 0 ? sequence.k : sequence.v).data() + at(p, head);
        double largest = 0;
        bool finite = true;
        for (int32_t d = 0; d < dim; ++d) {
          largest = std::max(largest, std::fabs(static_cast<double>(given[d])));
          finite = finite && std::isfinite(given[d]);
        }
        const std::vector<double> stored = cache.read(sequence.blocks, p, 1, v, head);
        for (int32_t d = 0; d < dim; ++d) {
          const double number = stored[static_cast<size_t>(d)];
          if (!finite) {
            EXPECT_TRUE(std::isnan(number)) << "what is not finite must not look like a number";
            continue;
          }
          const double size = std::fabs(static_cast<double>(given[d]));
          const double half_a_step = dtype == DType::kI8 ? largest / 254 : std::max(size / 16, largest / 448 / 1024);
          EXPECT_LE(std::fabs(number - static_cast<double>(given[d])), half_a_step * (1 + 256 * kEps));
        }
        const std::byte* base = cache.view.head(sequence.blocks[static_cast<size_t>(p / 16)], 1, v, head);
        std::vector<std::byte> numbers(static_cast<size_t>(dim));
        const float scale = vector_scale(dtype, given, dim);
        quantise_vector(dtype, given, scale, numbers.data(), dim);
        EXPECT_EQ(std::memcmp(cache.view.scales(base) + p % 16, &scale, sizeof scale), 0);
        for (int32_t d = 0; d < dim; ++d) {
          ASSERT_EQ(base[v == 0 ? d * 16 + p % 16 : p % 16 * dim + d], numbers[static_cast<size_t>(d)]);
        }
      }
    }
  }
}
TEST_P(Attention, StoresInt8WithOneScaleAVector) { expect_one_scale_a_vector(table(), DType::kI8); }
TEST_P(Attention, StoresFp8WithOneScaleAVector) { expect_one_scale_a_vector(table(), DType::kF8); }

// One position of weight one: the result is the value as it is, read directly (one row)
// and by way of f32 (many).
TEST_P(Attention, ReadsEveryNumberOfFp8) {
  Prng prng(308);
  const int32_t dim = 256;
  TestCache cache(prng, DType::kF8, 1, dim, 1);
  std::fill(cache.bytes.begin(), cache.bytes.end(), std::byte{0});
  std::byte* const values = cache.view.head(0, 0, 1, 0);
  std::vector<float> expected(dim);
  for (int32_t d = 0; d < dim; ++d) {
    const int code = (d & 0x7F) == 0x7F ? 0 : d;
    values[d] = static_cast<std::byte>(code);
    expected[static_cast<size_t>(d)] = 2 * fp8_to_f32(static_cast<uint8_t>(code));
  }
  cache.view.scales(values)[0] = 2;
  const int32_t block = 0;
  for (const int32_t heads : {1, 32}) {
    const std::vector<float> q(static_cast<size_t>(heads * dim));
    const std::vector<float> out = run_attention(table(), 1, cache, q, heads, 0, 0, {{0, 1, 0, &block}});
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], expected[i % 256]) << i;
  }
}

TEST_P(Attention, AgreesWithTheNaiveSoftmax) {
  Prng prng(302);
  for (const Shape& shape : kShapes) {
    for (DType dtype : kCacheDTypes) {
      TestCache cache(prng, dtype, shape.kv_heads, shape.head_dim, 64);
      const int32_t layer = static_cast<int32_t>(prng.below(2));
      std::vector<TestSequence> sequences;
      std::vector<RowGroup> groups;
      int32_t rows = 0;
      for (int32_t row_count : {1, 5, 40, 1, 0}) {  // decode rows, chunks, an empty group
        sequences.emplace_back(prng, cache, row_count + static_cast<int32_t>(prng.below(90)) + 1);
        store_sequence(table(), cache, sequences.back(), layer);
        rows += row_count;
      }
      int32_t row = 0, index = 0;
      for (int32_t row_count : {1, 5, 40, 1, 0}) {
        const TestSequence& sequence = sequences[static_cast<size_t>(index++)];
        groups.push_back({row, row_count, sequence.length - row_count, sequence.blocks.data()});
        row += row_count;
      }
      for (int32_t window : {0, 1, 7, 33}) {
        const std::vector<float> q = random_floats(prng, int64_t{rows} * shape.heads * shape.head_dim, 3.0f);
        const std::vector<float> out = run_attention(table(), 2, cache, q, shape.heads, layer, window, groups);
        for (size_t g = 0; g < groups.size(); ++g)
          expect_attention(cache, sequences[g], groups[g], q, shape.heads, layer, window, out);
        if (window > 1) continue;
        const float cap = 1.5f;  // of scores up to 3 and more
        const std::vector<float> capped = run_attention(table(), 2, cache, q, shape.heads, layer, window, groups, cap);
        for (size_t g = 0; g < groups.size(); ++g)
          expect_attention(cache, sequences[g], groups[g], q, shape.heads, layer, window, capped, 1.5);
        EXPECT_EQ(same_bits(capped, out), window == 1) << "one position has all the weight, whatever its score";
      }
    }
  }
}

TEST_P(Attention, LongContextsAreSplitAndMergedRight) {
  Prng prng(303);
  for (DType dtype : {DType::kF16, DType::kI8, DType::kF8}) {
    TestCache cache(prng, dtype, 1, 32, 400);
    const TestSequence sequence(prng, cache, 5000);
    store_sequence(table(), cache, sequence, 0);
    for (int32_t window : {0, 700, 3000}) {
      for (int32_t row_count : {1, 3}) {
        const std::vector<RowGroup> groups = {{0, row_count, 5000 - row_count, sequence.blocks.data()}};
        const std::vector<float> q = random_floats(prng, int64_t{row_count} * 2 * 32, 4.0f);
        const std::vector<float> out = run_attention(table(), 4, cache, q, 2, 0, window, groups);
        expect_attention(cache, sequence, groups[0], q, 2, 0, window, out);
        EXPECT_TRUE(same_bits(out, run_attention(table(), 1, cache, q, 2, 0, window, groups)))
            << "threads change the result";
        const std::vector<float> capped = run_attention(table(), 4, cache, q, 2, 0, window, groups, 0.8f);
        expect_attention(cache, sequence, groups[0], q, 2, 0, window, capped, static_cast<double>(0.8f));
        EXPECT_FALSE(same_bits(out, capped));
      }
    }
  }
}

// Below, among and above the scores; one of minus infinity is none, bit for bit.
TEST_P(Attention, SinksTakeTheirPartOfTheWeight) {
  SCOPED_TRACE("seed 309");
  Prng prng(309);
  int all = 0, without_effect = 0;
  for (const Shape& shape : kShapes) {
    for (const DType dtype : kCacheDTypes) {
      TestCache cache(prng, dtype, shape.kv_heads, shape.head_dim, 64);
      const TestSequence sequence(prng, cache, 100);
      store_sequence(table(), cache, sequence, 0);
      for (const int32_t rows : {1, 12}) {
        const std::vector<RowGroup> groups = {{0, rows, 100 - rows, sequence.blocks.data()}};
        const std::vector<float> q = random_floats(prng, int64_t{rows} * shape.heads * shape.head_dim, 3.0f);
        for (const int32_t window : {0, 17}) {
          const std::vector<float> none = run_attention(table(), 2, cache, q, shape.heads, 0, window, groups);
          for (const float size : {0.0f, 3.0f, 40.0f}) {
            std::vector<float> sinks = random_floats(prng, shape.heads, size);
            const std::vector<float> out =
                run_attention(table(), 2, cache, q, shape.heads, 0, window, groups, 0, sinks);
            expect_attention(cache, sequence, groups[0], q, shape.heads, 0, window, out, 0, sinks);
            ++all;
            without_effect += same_bits(out, none);  // far below all scores
          }
          const std::vector<float> never(static_cast<size_t>(shape.heads), -std::numeric_limits<float>::infinity());
          EXPECT_TRUE(same_bits(run_attention(table(), 2, cache, q, shape.heads, 0, window, groups, 0, never), none));
        }
      }
    }
  }
  EXPECT_LT(20 * without_effect, all);
}

TEST_P(Attention, SinksOfLongContextsAreBehindAllRanges) {
  SCOPED_TRACE("seed 310");
  Prng prng(310);
  TestCache cache(prng, DType::kBF16, 1, 32, 400);
  const TestSequence sequence(prng, cache, 5000);
  store_sequence(table(), cache, sequence, 0);
  const std::vector<float> sinks = {8.5f, -2.0f};
  for (const int32_t window : {0, 700}) {
    for (const int32_t row_count : {1, 3}) {
      const std::vector<RowGroup> groups = {{0, row_count, 5000 - row_count, sequence.blocks.data()}};
      const std::vector<float> q = random_floats(prng, int64_t{row_count} * 2 * 32, 4.0f);
      const std::vector<float> out = run_attention(table(), 4, cache, q, 2, 0, window, groups, 0, sinks);
      expect_attention(cache, sequence, groups[0], q, 2, 0, window, out, 0, sinks);
      EXPECT_TRUE(same_bits(out, run_attention(table(), 1, cache, q, 2, 0, window, groups, 0, sinks)));
    }
  }
}

// Blocks in front of the window of a group's first row may have gone: where a read would
// end the process, the results are the same bits.
TEST_P(Attention, ReadsNothingInFrontOfTheWindow) {
  SCOPED_TRACE("seed 306");
  Prng prng(306);
  constexpr int32_t kGone = 1 << 30;  // far from any memory of the process
  for (DType dtype : kCacheDTypes) {
    TestCache cache(prng, dtype, 2, 32, 200);
    const TestSequence sequence(prng, cache, 2600);
    store_sequence(table(), cache, sequence, 0);
    for (int32_t window : {1, 16, 17, 40, 600}) {
      for (int32_t row_count : {1, 3, 40}) {
        const int32_t position = 2600 - row_count - static_cast<int32_t>(prng.below(40));
        const int32_t first = std::max(0, position - window + 1) / kKvBlockTokens;
        std::vector<int32_t> blocks = sequence.blocks;
        std::fill_n(blocks.begin(), first, kGone);
        const std::vector<float> q = random_floats(prng, int64_t{row_count} * 4 * 32, 3.0f);
        for (int threads : {1, 4}) {
          const auto run = [&](const std::vector<int32_t>& in) {
            return run_attention(table(), threads, cache, q, 4, 0, window, {{0, row_count, position, in.data()}});
          };
          EXPECT_TRUE(same_bits(run(blocks), run(sequence.blocks))) << window << ", " << row_count << " rows";
        }
      }
    }
  }
}

// A row alone (decode) = the same row in a chunk of any length, in a mixed batch, with
// any number of threads.
TEST_P(Attention, ARowDoesNotDependOnItsBatch) {
  Prng prng(304);
  const std::pair<Shape, DType> cases[] = {
      {kShapes[0], DType::kBF16}, {kShapes[1], DType::kF16}, {kShapes[3], DType::kF32}, {kShapes[0], DType::kI8},
      {kShapes[3], DType::kI8},   {kShapes[0], DType::kF8},  {kShapes[6], DType::kF16}};
  for (const auto& [shape, dtype] : cases) {
    TestCache cache(prng, dtype, shape.kv_heads, shape.head_dim, 300);
    const TestSequence sequence(prng, cache, 1300), other(prng, cache, 900);
    store_sequence(table(), cache, sequence, 0);
    store_sequence(table(), cache, other, 0);
    const int32_t rows = 60, start = 1240;
    const size_t width = static_cast<size_t>(shape.heads * shape.head_dim);
    const std::vector<float> q = random_floats(prng, static_cast<int64_t>(width) * rows, 2.0f);
    const std::vector<float> some = random_floats(prng, shape.heads, 5.0f);
    for (const auto& [window, cap, sinks] :
         {std::tuple(0, 0.0f, std::vector<float>()), std::tuple(100, 0.0f, std::vector<float>()),
          std::tuple(0, 2.0f, std::vector<float>()), std::tuple(100, 0.0f, some)}) {
      std::vector<float> alone;
      for (int32_t i = 0; i < rows; ++i) {
        const std::vector<float> one(q.begin() + static_cast<int64_t>(width) * i,
                                     q.begin() + static_cast<int64_t>(width) * (i + 1));
        const std::vector<float> out = run_attention(table(), 1, cache, one, shape.heads, 0, window,
                                                     {{0, 1, start + i, sequence.blocks.data()}}, cap, sinks);
        alone.insert(alone.end(), out.begin(), out.end());
      }
      for (int threads : {1, 4}) {
        EXPECT_TRUE(same_bits(run_attention(table(), threads, cache, q, shape.heads, 0, window,
                                            {{0, rows, start, sequence.blocks.data()}}, cap, sinks),
                              alone));
      }
      std::vector<RowGroup> chunks;  // the same rows cut into chunks
      for (int32_t i = 0; i < rows;) {
        const int32_t count = std::min(rows - i, static_cast<int32_t>(1 + prng.below(20)));
        chunks.push_back({i, count, start + i, sequence.blocks.data()});
        i += count;
      }
      EXPECT_TRUE(same_bits(run_attention(table(), 3, cache, q, shape.heads, 0, window, chunks, cap, sinks), alone));
      std::vector<float> both = q;  // another sequence's rows in the same call
      both.insert(both.end(), q.begin(), q.end());
      std::vector<float> mixed =
          run_attention(table(), 2, cache, both, shape.heads, 0, window,
                        {{0, rows, start, sequence.blocks.data()}, {rows, rows, 800, other.blocks.data()}}, cap, sinks);
      mixed.resize(alone.size());
      EXPECT_TRUE(same_bits(mixed, alone));
    }
  }
}

TEST_P(Attention, NoRowsIsNoWorkAndNonFiniteInputIsContained) {
  Prng prng(305);
  TestCache cache(prng, DType::kF32, 2, 16, 8);
  TestSequence sequence(prng, cache, 20);
  TestContext& context = fresh_context(table());
  const std::vector<RowGroup> empty = {{0, 0, 0, sequence.blocks.data()}};
  table().attention(context.ctx, {.kv = cache.view, .heads = 4, .scale = 1, .groups = empty});
  table().kv_store(context.ctx, {.kv = cache.view, .groups = empty});
  EXPECT_EQ(context.ctx.op_count, 0u);
  store_sequence(table(), cache, sequence, 0);
  std::vector<float> q = random_floats(prng, 2 * 4 * 16);
  q[3] = std::numeric_limits<float>::quiet_NaN();           // row 0, head 0
  q[64 + 16 + 1] = std::numeric_limits<float>::infinity();  // row 1, head 1
  const std::vector<float> out = run_attention(table(), 2, cache, q, 4, 0, 0, {{0, 2, 18, sequence.blocks.data()}});
  for (size_t i = 16; i < 64; ++i) EXPECT_TRUE(std::isfinite(out[i]));
  for (size_t i = 64; i < 80; ++i) EXPECT_TRUE(std::isfinite(out[i]));
}

// What later rows of a chunk leave in the cache, even if not finite, does not reach
// the rows before them.
TEST_P(Attention, ALaterRowsValueDoesNotReachEarlierRows) {
  Prng prng(306);
  for (DType dtype : kCacheDTypes) {
    TestCache cache(prng, dtype, 1, 32, 8);
    TestSequence sequence(prng, cache, 40);
    sequence.k[37 * 32 + 4] = sequence.v[37 * 32 + 5] = std::numeric_limits<float>::infinity();
    store_sequence(table(), cache, sequence, 0);
    const std::vector<float> q = random_floats(prng, 40 * 2 * 32);
    const std::vector<float> out = run_attention(table(), 1, cache, q, 2, 0, 0, {sequence.all()});
    for (size_t i = 0; i < 37 * 64; ++i) ASSERT_TRUE(std::isfinite(out[i])) << dtype_info(dtype).name << " " << i;
    EXPECT_FALSE(std::isfinite(out[37 * 64 + 5]));
  }
}

}  // namespace
}  // namespace loralei

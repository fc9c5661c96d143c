// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_test_util.h"

namespace loralei {
namespace {

class DeltaRule : public EveryTable {};
FOR_EVERY_TABLE(DeltaRule);

constexpr uint64_t kSeed = 921;
constexpr float kUntouched = -77;

struct Case {
  int32_t k_heads = 1, v_heads = 1, key_dim = 16, value_dim = 16;
  std::vector<int32_t> lengths;
  float scale = 1;  // of q and k: kUnitEps counts where it is small
  bool tiled = false;

  int64_t head_size() const { return int64_t{key_dim} * value_dim; }
  int64_t k_width() const { return int64_t{k_heads} * key_dim; }
  int64_t v_width() const { return int64_t{v_heads} * value_dim; }
};

// A row is q, k and v side by side, and a float more.
struct Deltas {
  Case shape;
  int64_t stride = 0;
  std::vector<float> rows, a, b, a_log, dt_bias;
  std::vector<std::vector<float>> states;  // as they begin

  Deltas(Prng& prng, const Case& given) : shape(given), stride(2 * given.k_width() + given.v_width() + 1) {
    int64_t count = 0;
    for (int32_t length : given.lengths) count += length;
    rows = random_floats(prng, count * stride, 2.0f);
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t i = 0; i < 2 * given.k_width(); ++i) rows[static_cast<size_t>(row * stride + i)] *= given.scale;
    }
    a = random_floats(prng, count * given.v_heads, 6.0f);
    b = random_floats(prng, count * given.v_heads, 5.0f);
    a_log = random_floats(prng, given.v_heads, 2.0f);
    dt_bias = random_floats(prng, given.v_heads, 2.0f);
    for (size_t s = 0; s < given.lengths.size(); ++s) {
      states.push_back(random_floats(prng, given.v_heads * given.head_size(), s % 2 == 0 ? 1.0f : 0.0f));
    }
  }
};

struct Result {
  std::vector<float> out;  // [rows, v_width]
  std::vector<std::vector<float>> states;

  bool same(const Result& other) const {
    bool all = same_bits(out, other.out) && states.size() == other.states.size();
    for (size_t s = 0; all && s < states.size(); ++s) all = same_bits(states[s], other.states[s]);
    return all;
  }
};

// One call: `rows` as they lie in it.
void run_call(const OpTable& table, const Case& shape, const Deltas& d, std::vector<float>& rows,
              const std::vector<float>& a, const std::vector<float>& b, const std::vector<StateRows>& groups,
              int threads, float* out, int64_t out_stride) {
  TestContext& context = fresh_context(table, threads);
  const float* const k = rows.data() + shape.k_width();
  table.delta_rule(context.ctx, {.q = rows.data(),
                                 .k = k,
                                 .v = k + shape.k_width(),
                                 .stride = d.stride,
                                 .a = a.data(),
                                 .a_stride = shape.v_heads,
                                 .b = b.data(),
                                 .b_stride = shape.v_heads,
                                 .a_log = d.a_log.data(),
                                 .dt_bias = d.dt_bias.data(),
                                 .out = out,
                                 .out_stride = out_stride,
                                 .k_heads = shape.k_heads,
                                 .v_heads = shape.v_heads,
                                 .key_dim = shape.key_dim,
                                 .value_dim = shape.value_dim,
                                 .tiled = shape.tiled,
                                 .groups = groups});
  EXPECT_EQ(context.ctx.op_count, rows.empty() ? 0u : 1u);
}

Result run(const OpTable& table, const Deltas& d, const std::vector<Call>& calls, int threads, bool in_place = false) {
  const Case& shape = d.shape;
  const int64_t width = shape.v_width(), out_stride = in_place ? d.stride : width + 5;
  Result result{std::vector<float>(d.a.size() * static_cast<size_t>(shape.value_dim)), d.states};
  std::vector<int32_t> done(shape.lengths.size(), 0);
  for (const Call& call : calls) {
    std::vector<float> rows, a, b;
    std::vector<int64_t> index;  // where each row of the call lies among all
    std::vector<StateRows> groups;
    const auto append = [](std::vector<float>& to, const std::vector<float>& from, int64_t row, int64_t count) {
      to.insert(to.end(), from.begin() + row * count, from.begin() + (row + 1) * count);
    };
    for (const Portion& portion : call) {
      const auto s = static_cast<size_t>(portion.sequence);
      groups.push_back({static_cast<int32_t>(index.size()), portion.count, result.states[s].data()});
      for (int32_t i = 0; i < portion.count; ++i)
        index.push_back(first_row(shape.lengths, portion.sequence) + done[s]++);
    }
    for (int64_t row : index) {
      append(rows, d.rows, row, d.stride);
      append(a, d.a, row, shape.v_heads);
      append(b, d.b, row, shape.v_heads);
    }
    std::vector<float> separate(index.size() * static_cast<size_t>(out_stride), kUntouched);
    float* const out = in_place ? rows.data() + 2 * shape.k_width() : separate.data();
    run_call(table, shape, d, rows, a, b, groups, threads, out, out_stride);
    for (size_t i = 0; i < index.size(); ++i) {
      const float* const from = out + static_cast<int64_t>(i) * out_stride;
      std::copy(from, from + width, result.out.begin() + index[i] * width);
      if (!in_place) {
        EXPECT_EQ(from[width], kUntouched);
      }
    }
  }
  return result;
}

// One head of one sequence by the published recurrence, all in double.
struct Twin {
  const Deltas& d;
  int64_t head;
  std::vector<double> state;  // [key_dim, value_dim]
  double largest = 0;         // number of v or of the state so far

  Twin(const Deltas& deltas, size_t sequence, int64_t h) : d(deltas), head(h) {
    const float* const from = d.states[sequence].data() + h * d.shape.head_size();
    state.assign(from, from + d.shape.head_size());
    for (double s : state) largest = std::max(largest, std::fabs(s));
  }
  std::vector<double> unit(const float* x, double scale) const {
    double square = 0;
    std::vector<double> out(x, x + d.shape.key_dim);
    for (double value : out) square += value * value;
    for (double& value : out) value *= scale / std::sqrt(square + 1e-6);
    return out;
  }
  std::vector<double> step(int64_t row) {
    const int64_t keys = d.shape.key_dim, values = d.shape.value_dim;
    const float* const x = d.rows.data() + row * d.stride;
    const int64_t in_runs = head / (d.shape.v_heads / d.shape.k_heads);
    const int64_t key_head = d.shape.tiled ? head % d.shape.k_heads : in_runs;
    const std::vector<double> q = unit(x + key_head * keys, 1 / std::sqrt(static_cast<double>(keys)));
    const std::vector<double> k = unit(x + d.shape.k_width() + key_head * keys, 1);
    const float* const v = x + 2 * d.shape.k_width() + head * values;
    const auto h = static_cast<size_t>(head), gate = static_cast<size_t>(row * d.shape.v_heads + head);
    const double softplus = std::log1p(std::exp(static_cast<double>(d.a[gate]) + static_cast<double>(d.dt_bias[h])));
    const double decay = std::exp(-std::exp(static_cast<double>(d.a_log[h])) * softplus);
    const double beta = sigmoid(static_cast<double>(d.b[gate]));
    std::vector<double> out(static_cast<size_t>(values), 0.0);
    for (double& s : state) s *= decay;
    for (int64_t c = 0; c < values; ++c) {
      double recalled = 0;
      for (int64_t i = 0; i < keys; ++i) recalled += at(i, c) * k[static_cast<size_t>(i)];
      const double delta = (static_cast<double>(v[c]) - recalled) * beta;
      for (int64_t i = 0; i < keys; ++i) {
        at(i, c) += k[static_cast<size_t>(i)] * delta;
        out[static_cast<size_t>(c)] += at(i, c) * q[static_cast<size_t>(i)];
        largest = std::max(largest, std::fabs(at(i, c)));
      }
      largest = std::max(largest, std::fabs(static_cast<double>(v[c])));
    }
    return out;
  }
  double& at(int64_t key, int64_t column) { return state[static_cast<size_t>(key * d.shape.value_dim + column)]; }
};

// A step rounds each number of a state a few times, and what it recalls once a key,
// though those roundings are not of one sign; it makes earlier errors no larger, for
// k is a unit vector and decay and beta are at most one. A decay's exponent is at
// most about 60 here, where its rounding is that many ulp of next to nothing.
double bound_of(const Case& shape, const Twin& twin, int64_t steps) {
  return kEps * (16 + 4 * std::sqrt(static_cast<double>(shape.key_dim))) * std::sqrt(static_cast<double>(steps + 1)) *
         twin.largest;
}

void expect_deltas(const Deltas& d, const Result& result) {
  const Case& shape = d.shape;
  for (size_t s = 0; s < shape.lengths.size(); ++s) {
    const int64_t first = first_row(shape.lengths, static_cast<int>(s));
    for (int64_t head = 0; head < shape.v_heads; ++head) {
      Twin twin(d, s, head);
      for (int64_t i = 0; i < shape.lengths[s]; ++i) {
        const std::vector<double> expected = twin.step(first + i);
        const float* const out = result.out.data() + (first + i) * shape.v_width() + head * shape.value_dim;
        for (size_t c = 0; c < expected.size(); ++c) {
          ASSERT_NEAR(static_cast<double>(out[c]), expected[c], bound_of(shape, twin, i))
              << "sequence " << s << " head " << head << " row " << i << " column " << c;
        }
      }
      const float* const state = result.states[s].data() + head * shape.head_size();
      for (size_t i = 0; i < twin.state.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(state[i]), twin.state[i], bound_of(shape, twin, shape.lengths[s]))
            << "state " << i << " of sequence " << s << " head " << head;
      }
    }
  }
}

std::vector<Case> cases() {
  return {{.k_heads = 1, .v_heads = 1, .key_dim = 1, .value_dim = 1, .lengths = {4}},
          {.k_heads = 2, .v_heads = 4, .key_dim = 7, .value_dim = 5, .lengths = {1, 6, 0, 70}},
          {.k_heads = 1, .v_heads = 3, .key_dim = 128, .value_dim = 128, .lengths = {3, 67}},
          {.k_heads = 2, .v_heads = 2, .key_dim = 30, .value_dim = 75, .lengths = {131, 2}, .scale = 1e-3f},
          {.k_heads = 3, .v_heads = 6, .key_dim = 64, .value_dim = 32, .lengths = {65, 1, 1}},
          {.k_heads = 2, .v_heads = 6, .key_dim = 16, .value_dim = 20, .lengths = {5, 70}, .tiled = true},
          {.k_heads = 1, .v_heads = 1, .key_dim = 256, .value_dim = 256, .lengths = {5}}};
}

TEST_P(DeltaRule, AgreesWithTheRecurrenceInDouble) {
  SCOPED_TRACE(kSeed);
  Prng prng(kSeed);
  for (const Case& shape : cases()) {
    const Deltas d(prng, shape);
    expect_deltas(d, run(table(), d, all_at_once(shape.lengths), 2));
  }
}

TEST_P(DeltaRule, LongSequencesStayTrue) {
  SCOPED_TRACE(kSeed + 1);
  Prng prng(kSeed + 1);
  const Case shape{.k_heads = 1, .v_heads = 2, .key_dim = 32, .value_dim = 32, .lengths = {1500}};
  Deltas d(prng, shape);
  for (float& a : d.a) a -= 8;  // next to nothing is forgotten
  expect_deltas(d, run(table(), d, chunks(prng, shape.lengths, 200), 2));
}

TEST_P(DeltaRule, ARowDependsOnItsSequencesEarlierRowsAlone) {
  SCOPED_TRACE(kSeed + 2);
  Prng prng(kSeed + 2);
  for (const Case& shape : cases()) {
    const Deltas d(prng, shape);
    const Result alone = run(table(), d, row_by_row(shape.lengths), 1);
    for (int threads : {1, 2, 4}) {
      EXPECT_TRUE(run(table(), d, all_at_once(shape.lengths), threads).same(alone)) << threads;
      for (int32_t most : {2, 3, 9, 66})
        EXPECT_TRUE(run(table(), d, chunks(prng, shape.lengths, most), threads).same(alone)) << most;
    }
    EXPECT_TRUE(run(table(), d, all_at_once(shape.lengths), 3, true).same(alone)) << "in place of v";
    EXPECT_TRUE(run(table(), d, row_by_row(shape.lengths), 1, true).same(alone)) << "in place of v";
  }
}

// Value heads that share a key head are those that follow each other.
TEST_P(DeltaRule, HeadsShareKeysInRuns) {
  SCOPED_TRACE(kSeed + 3);
  Prng prng(kSeed + 3);
  const Case shape{.k_heads = 2, .v_heads = 4, .key_dim = 16, .value_dim = 8, .lengths = {6}};
  Deltas d(prng, shape);
  const Result before = run(table(), d, all_at_once(shape.lengths), 1);
  d.rows[static_cast<size_t>(shape.k_width() + 16)] += 1;  // k of row 0, key head 1
  const Result after = run(table(), d, all_at_once(shape.lengths), 1);
  for (size_t i = 0; i < before.out.size(); ++i) {
    const size_t head = i % 32 / 8;
    if (head < 2 || i < 32) {  // what later rows recall of row 0 may round away
      ASSERT_EQ(before.out[i] == after.out[i], head < 2) << i;
    }
  }
}

// Gates at their ends: nothing kept, everything kept, nothing learned; no gate overflows.
TEST_P(DeltaRule, GatesReachTheirEnds) {
  SCOPED_TRACE(kSeed + 4);
  Prng prng(kSeed + 4);
  const Case shape{.k_heads = 1, .v_heads = 1, .key_dim = 8, .value_dim = 8, .lengths = {1}};
  Deltas d(prng, shape);
  d.a_log = {1}, d.dt_bias = {0};
  d.a = {-200}, d.b = {-200};
  EXPECT_TRUE(same_bits(run(table(), d, all_at_once(shape.lengths), 1).states[0], d.states[0]));
  d.a = {3e38f};
  const Result forgotten = run(table(), d, all_at_once(shape.lengths), 1);
  for (float s : forgotten.states[0]) EXPECT_LE(std::fabs(s), 1e-35f);
  d.b = {200};
  expect_deltas(d, run(table(), d, all_at_once(shape.lengths), 1));
  const Result learned = run(table(), d, all_at_once(shape.lengths), 1);
  for (float s : learned.states[0]) EXPECT_TRUE(std::isfinite(s));
}

TEST_P(DeltaRule, WhatIsNotFiniteStaysInItsSequenceAndHead) {
  SCOPED_TRACE(kSeed + 5);
  Prng prng(kSeed + 5);
  const Case shape{.k_heads = 2, .v_heads = 2, .key_dim = 16, .value_dim = 40, .lengths = {9, 9}};
  Deltas d(prng, shape);
  const Result before = run(table(), d, all_at_once(shape.lengths), 2);
  d.rows[static_cast<size_t>(4 * d.stride + 20)] = std::numeric_limits<float>::quiet_NaN();  // q of row 4, head 1
  d.a[static_cast<size_t>(6 * 2)] = std::numeric_limits<float>::quiet_NaN();                 // row 6, head 0
  const Result after = run(table(), d, all_at_once(shape.lengths), 2);
  for (size_t i = 0; i < before.out.size(); ++i) {
    const size_t row = i / 80, head = i % 80 / 40;
    const bool touched = row < 9 && (head == 1 ? row == 4 : row >= 6);
    ASSERT_EQ(std::isnan(after.out[i]), touched) << i;
    if (!touched) {
      ASSERT_EQ(after.out[i], before.out[i]) << i;
    }
  }
  EXPECT_TRUE(same_bits(after.states[1], before.states[1]));
}

TEST_P(DeltaRule, NoRowsIsNoWork) {
  TestContext& context = fresh_context(table());
  std::vector<float> state(4, kUntouched);
  const std::vector<StateRows> groups = {{0, 0, state.data()}};
  table().delta_rule(context.ctx, {});
  table().delta_rule(context.ctx, {.k_heads = 1, .v_heads = 1, .key_dim = 2, .value_dim = 2, .groups = groups});
  EXPECT_EQ(context.ctx.op_count, 0u);
  EXPECT_EQ(state, std::vector<float>(4, kUntouched));
}

}  // namespace
}  // namespace loralei

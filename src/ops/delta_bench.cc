// SPDX-License-Identifier: Apache-2.0
// delta_bench [table] [rounds] [rows x sequences] [threads] [k heads/v heads/key
// size/value size]: gated linear attention of one step of a model of 24 such layers, each
// sequence with states of its own in every layer. The second list is separated by commas:
// 1x8 is one row of each of eight sequences. Bytes are those of the states, read and
// written once a step. The machine's own rates of reading and of f32 arithmetic stand
// above what is reached of them. Built with LORALEI_BENCHES=ON.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "device/host/arena.h"
#include "ops/op_table.h"
#include "ops/probe.h"

namespace loralei {
namespace {

constexpr int kLayers = 24;
constexpr int kKernel = 4;

struct Shape {
  int32_t k_heads = 16, v_heads = 32, key_dim = 128, value_dim = 128;
  int64_t keys() const { return int64_t{k_heads} * key_dim; }
  int64_t values() const { return int64_t{v_heads} * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
  int64_t state() const { return int64_t{v_heads} * key_dim * value_dim; }  // of one sequence and layer
};

std::vector<int> numbers(const char* list, char between = ',') {
  std::vector<int> out;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, between);) out.push_back(std::max(1, std::atoi(part.c_str())));
  return out;
}

std::vector<float> random_floats(Prng& prng, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(prng.uniform() * 2 - 1);
  return values;
}

// A step's rows, the layers' weights (one layer's serve for all) and everyone's states.
struct Step {
  Shape shape;
  int rows, sequences;
  std::vector<float> x, a, b, z, out, weight, a_log, dt_bias, norm;
  HostBuffer states, kept;

  Step(Prng& prng, const Shape& s, int rows_each, int count) : shape(s), rows(rows_each), sequences(count) {
    const int64_t all = int64_t{rows} * sequences;
    x = random_floats(prng, all * s.channels());
    z = random_floats(prng, all * s.values());
    a = random_floats(prng, all * s.v_heads);
    b = random_floats(prng, all * s.v_heads);
    out.resize(z.size());
    weight = random_floats(prng, s.channels() * kKernel);
    a_log = random_floats(prng, s.v_heads);
    dt_bias = random_floats(prng, s.v_heads);
    norm = random_floats(prng, s.value_dim);
    states = HostBuffer::allocate(kLayers * sequences * s.state() * 4, PageSize::kHuge).value();
    kept = HostBuffer::allocate(kLayers * sequences * (kKernel - 1) * s.channels() * 4, PageSize::kHuge).value();
    std::fill(states.bytes().begin(), states.bytes().end(), std::byte{0});
    std::fill(kept.bytes().begin(), kept.bytes().end(), std::byte{0});
  }
  // The groups of a layer, whose states have `size` numbers each.
  std::vector<StateRows> groups(HostBuffer& memory, int layer, int64_t size) const {
    std::vector<StateRows> all;
    for (int s = 0; s < sequences; ++s) {
      float* const state = reinterpret_cast<float*>(memory.data()) + (int64_t{layer} * sequences + s) * size;
      all.push_back({s * rows, rows, state});
    }
    return all;
  }
  void conv(const OpTable& table, OpContext& ctx, int layer) {
    const std::vector<StateRows> all = groups(kept, layer, (kKernel - 1) * shape.channels());
    table.causal_conv(ctx, {.x = x.data(),
                            .x_stride = shape.channels(),
                            .y = x.data(),
                            .y_stride = shape.channels(),
                            .weight = weight.data(),
                            .channels = static_cast<int32_t>(shape.channels()),
                            .kernel = kKernel,
                            .groups = all});
  }
  void delta(const OpTable& table, OpContext& ctx, int layer) {
    const std::vector<StateRows> all = groups(states, layer, shape.state());
    table.delta_rule(ctx, {.q = x.data(),
                           .k = x.data() + shape.keys(),
                           .v = x.data() + 2 * shape.keys(),
                           .stride = shape.channels(),
                           .a = a.data(),
                           .a_stride = shape.v_heads,
                           .b = b.data(),
                           .b_stride = shape.v_heads,
                           .a_log = a_log.data(),
                           .dt_bias = dt_bias.data(),
                           .out = out.data(),
                           .out_stride = shape.values(),
                           .k_heads = shape.k_heads,
                           .v_heads = shape.v_heads,
                           .key_dim = shape.key_dim,
                           .value_dim = shape.value_dim,
                           .groups = all});
  }
  void gated_norm(const OpTable& table, OpContext& ctx) {
    table.gated_norm(ctx, {.x = out.data(),
                           .x_stride = shape.values(),
                           .z = z.data(),
                           .z_stride = shape.values(),
                           .y = out.data(),
                           .y_stride = shape.values(),
                           .weight = norm.data(),
                           .rows = rows * sequences,
                           .vectors = shape.v_heads,
                           .dim = shape.value_dim});
  }
};

// Median seconds of all layers of a step, and the best.
struct Seconds {
  double median = 0, best = 0;
};
Seconds timed(const SteadyClock& clock, int rounds, const std::function<void(int layer)>& work) {
  std::vector<double> seconds;
  for (int round = 0; round <= rounds; ++round) {
    const int64_t start = clock.now_ns();
    for (int layer = 0; layer < kLayers; ++layer) work(layer);
    if (round > 0) seconds.push_back(static_cast<double>(clock.now_ns() - start) * 1e-9);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front()};
}

void print_rates(const char* name, const Step& step, const Seconds& taken, double bytes) {
  const double rows = static_cast<double>(step.rows) * step.sequences;
  const double flop = 8.0 * static_cast<double>(step.shape.state()) * rows * kLayers;
  std::printf("%10s %4d row(s) of %2d: %9.3f ms (best %9.3f)  %9.0f rows/s", name, step.rows, step.sequences,
              taken.median * 1e3, taken.best * 1e3, rows / taken.median);
  if (bytes > 0)
    std::printf("  %6.1f GB/s of states  %6.1f Gflop/s", bytes / taken.median * 1e-9, flop / taken.median * 1e-9);
  std::printf("\n");
  std::fflush(stdout);
}

void measure(const OpTable& table, OpContext& ctx, const SteadyClock& clock, const Shape& shape, int rows,
             int sequences, int rounds) {
  Prng prng(1);
  Step step(prng, shape, rows, sequences);
  const double bytes = 2.0 * 4 * kLayers * sequences * static_cast<double>(shape.state());
  print_rates("delta_rule", step, timed(clock, rounds, [&](int layer) { step.delta(table, ctx, layer); }), bytes);
  print_rates("conv", step, timed(clock, rounds, [&](int layer) { step.conv(table, ctx, layer); }), 0);
  print_rates("gated_norm", step, timed(clock, rounds, [&](int) { step.gated_norm(table, ctx); }), 0);
}

int run(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return argc > i ? argv[i] : otherwise; };
  const auto table = select_op_table(argument(1, ""));
  if (!table.ok()) {
    std::fprintf(stderr, "%s\n", table.error().message.c_str());
    return 2;
  }
  const int rounds = std::max(1, std::atoi(argument(2, "9")));
  const std::vector<int> sizes = numbers(argument(5, "16/32/128/128"), '/');
  if (sizes.size() != 4 || sizes[1] % sizes[0] != 0) {
    std::fprintf(stderr, "Write the shape as key heads/value heads/key size/value size: for example 16/32/128/128.\n");
    return 2;
  }
  const Shape shape{sizes[0], sizes[1], sizes[2], sizes[3]};
  const SteadyClock clock;
  for (int threads : numbers(argument(4, "2"))) {
    ThreadPool pool(threads);
    const OpLimits limits{
        .rows_max = 1, .in_max = 64, .rank_max = 1, .threads = threads, .key_dim = sizes[2], .value_dim = sizes[3]};
    HostBuffer scratch = HostBuffer::allocate((*table)->scratch_bytes(limits)).value();
    OpContext ctx{&pool, scratch.bytes()};
    std::printf("%s, %d thread(s), reading %.1f GB/s, f32 %.0f Gflop/s\n", (*table)->name, threads,
                probe_read_gb_s(pool, clock, {.rounds = 2}).value(), probe_f32_gflop_s(pool, clock, 2));
    std::istringstream list(argument(3, "1x1,1x8,512x1"));
    for (std::string part; std::getline(list, part, ',');) {
      const std::vector<int> pair = numbers(part.c_str(), 'x');
      if (pair.size() == 2) measure(**table, ctx, clock, shape, pair[0], pair[1], rounds);
    }
  }
  return 0;
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) { return loralei::run(argc, argv); }

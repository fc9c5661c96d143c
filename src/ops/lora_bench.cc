// SPDX-License-Identifier: Apache-2.0
// lora_bench [rank] [bf16|f16|f32] [rounds]: the rate at which LoraArgs, issued as a step of a 1.1B Llama issues them,
// read their adapters, against what the memory gives. Built with LORALEI_BENCHES=ON. Thirty-two adapters take turns so
// that none is still in a cache when it comes again.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "device/host/arena.h"
#include "ops/op_table.h"
#include "ops/probe.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr int kLayers = 22, kAdapters = 32, kRowsMax = 128;
constexpr int32_t kHidden = 2048, kKv = 256, kFfn = 5632;

struct Projections {
  int32_t in;
  std::vector<int32_t> outs;
};
const std::vector<Projections> kCalls = {
    {kHidden, {kHidden, kKv, kKv}}, {kHidden, {kHidden}}, {kHidden, {kFfn, kFfn}}, {kFfn, {kHidden}}};

struct BenchAdapter {
  HostBuffer memory;
  std::vector<LoraPair> pairs;  // [layers, targets of all calls]
};

BenchAdapter make_adapter(Prng& prng, DType dtype, int32_t rank) {
  int64_t bytes = 0;
  const auto reserve = [&](int64_t count) {
    const int64_t at = bytes;
    bytes += (count + 63) / 64 * 64;
    return at;
  };
  BenchAdapter adapter;
  std::vector<std::pair<int64_t, int64_t>> offsets;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Projections& call : kCalls) {
      const size_t first = offsets.size();
      for (int32_t out : call.outs) {
        offsets.push_back({reserve(rank * row_bytes(dtype, call.in)), 0});
        adapter.pairs.push_back({.dtype = dtype, .rank = rank, .in = call.in, .out = out, .scaling = 1.0f});
      }
      for (size_t i = 0; i < call.outs.size(); ++i)
        offsets[first + i].second = reserve(rank * row_bytes(dtype, call.outs[i]));
    }
  }
  adapter.memory = HostBuffer::allocate(bytes).value();
  std::vector<float> some(4096);
  for (float& value : some) value = static_cast<float>(prng.uniform() - 0.5) * 0.02f;
  const int64_t step = row_bytes(dtype, 4096);
  std::vector<std::byte> encoded(static_cast<size_t>(step));
  encode_row(dtype, some.data(), encoded.data(), 4096);
  for (int64_t at = 0; at < bytes; at += step)
    std::copy_n(encoded.data(), std::min(step, bytes - at), adapter.memory.data() + at);
  for (size_t i = 0; i < adapter.pairs.size(); ++i) {
    adapter.pairs[i].a = adapter.memory.data() + offsets[i].first;
    adapter.pairs[i].b_t = adapter.memory.data() + offsets[i].second;
  }
  return adapter;
}

struct Bench {
  const OpTable& table;
  const Clock& clock;
  std::vector<BenchAdapter> adapters;
  std::vector<float> x = std::vector<float>(kRowsMax * size_t{kFfn}, 0.5f);
  std::vector<std::vector<float>> y = std::vector<std::vector<float>>(3, std::vector<float>(kRowsMax* size_t{kFfn}));
  std::vector<LoraSource> sources = std::vector<LoraSource>(kLayers * 7 * size_t{kAdapters});  // [layer, target, slot]
};

// One step: every layer's four calls. Appends the seconds of each layer.
void step(Bench& bench, OpContext& ctx, std::span<const LoraSegment> segments, std::vector<double>& seconds) {
  for (size_t layer = 0, source = 0; layer < kLayers; ++layer) {
    const int64_t start = bench.clock.now_ns();
    for (const Projections& call : kCalls) {
      LoraTarget targets[3];
      for (size_t t = 0; t < call.outs.size(); ++t, ++source)
        targets[t] = {bench.y[t].data(), call.outs[t], &bench.sources[source * kAdapters], call.outs[t]};
      bench.table.lora(ctx, {bench.x.data(), call.in, call.in, segments, {targets, call.outs.size()}});
    }
    seconds.push_back(static_cast<double>(bench.clock.now_ns() - start) * 1e-9);
  }
}

// The tenth part of the layers' times from below stands for all: what other programs on the machine cost is left out,
// and so is a lucky hit in a cache.
void measure(Bench& bench, OpContext& ctx, double read_gb_s, const char* what, int32_t used, int32_t rows_each,
             int rounds) {
  double adapter_bytes = 0, flop = 0;
  for (const LoraPair& pair : bench.adapters[0].pairs) {
    adapter_bytes +=
        static_cast<double>(pair.rank * (row_bytes(pair.dtype, pair.in) + row_bytes(pair.dtype, pair.out)));
    flop += 2.0 * pair.rank * (pair.in + pair.out) * used * rows_each;
  }
  std::vector<double> seconds;
  for (int round = 0; round < rounds * kAdapters / used; ++round) {
    std::vector<LoraSegment> segments;
    for (int32_t i = 0; i < used; ++i)
      segments.push_back({i * rows_each, rows_each, (round * used + i) % kAdapters, 1.0f});
    step(bench, ctx, segments, seconds);
  }
  const auto tenth = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 10);
  std::nth_element(seconds.begin(), tenth, seconds.end());
  const double best = *tenth * kLayers;
  const double rate = adapter_bytes * used / best * 1e-9;
  std::printf("  %-28s %8.3f ms  %6.2f GB/s (%4.2f of read rate)  %6.1f GFLOP/s\n", what, best * 1e3, rate,
              rate / read_gb_s, flop / best * 1e-9);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  const int32_t rank = argc > 1 ? std::atoi(argv[1]) : 16;
  const DType dtype = parse_dtype(argc > 2 ? argv[2] : "bf16").value_or(DType::kBF16);
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 3;
  const auto table = select_op_table(std::getenv("LORALEI_ISA") != nullptr ? std::getenv("LORALEI_ISA") : "");
  if (!table.ok()) return std::fprintf(stderr, "%s\n", table.error().message.c_str()), 1;
  const SteadyClock clock;
  Bench bench{**table, clock};
  Prng prng(1);
  for (int i = 0; i < kAdapters; ++i) bench.adapters.push_back(make_adapter(prng, dtype, rank));
  for (size_t i = 0; i < bench.sources.size(); ++i) {
    bench.sources[i].kind = LoraSourceKind::kResident;
    bench.sources[i].pair = &bench.adapters[i % kAdapters].pairs[i / kAdapters];
  }
  std::printf("%s, %s, rank %d, %.1f MB an adapter\n", (*table)->name, dtype_info(dtype).name, rank,
              static_cast<double>(bench.adapters[0].memory.size_bytes()) * 1e-6);
  for (int threads : {1, 2}) {
    ThreadPool pool(threads);
    OpLimits limits{.rows_max = kRowsMax,
                    .in_max = kFfn,
                    .heads = 1,
                    .kv_heads = 1,
                    .head_dim = 64,
                    .rank_max = rank,
                    .segments_max = 64,
                    .threads = threads};
    const HostBuffer scratch = HostBuffer::allocate((*table)->scratch_bytes(limits)).value();
    OpContext ctx{&pool, scratch.bytes()};
    const double read_gb_s = probe_read_gb_s(pool, clock, {}).value();
    std::printf("%d thread(s), memory gives %.1f GB/s\n", threads, read_gb_s);
    measure(bench, ctx, read_gb_s, "8 adapters, 1 row each", 8, 1, rounds);
    measure(bench, ctx, read_gb_s, "1 adapter, 1 row", 1, 1, rounds);
    measure(bench, ctx, read_gb_s, "1 adapter, 8 rows", 1, 8, rounds);
    measure(bench, ctx, read_gb_s, "1 adapter, 128 rows", 1, 128, 1);
  }
  return 0;
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) { return loralei::run(argc, argv); }

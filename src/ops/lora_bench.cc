// SPDX-License-Identifier: Apache-2.0
// lora_bench [rank] [bf16|f16|f32|int8] [rounds]: the rate at which LoraArgs, issued as
// a step of a 1.1B Llama issues them, read their adapters, against what the memory gives.
// Built with LORALEI_BENCHES=ON. Thirty-two adapters take turns so that none is still in
// a cache when it comes again.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "device/host/arena.h"
#include "ops/lora_factors.h"
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

struct Format {
  DType dtype = DType::kBF16;
  bool int8 = false;
};

BenchAdapter make_adapter(Prng& prng, const Format& format, int32_t rank) {
  int64_t bytes = 0;
  const auto reserve = [&](int64_t count) {
    const int64_t at = bytes;
    bytes += (count + 63) / 64 * 64;
    return at;
  };
  struct Offsets {
    int64_t a, a_scale, b, b_scale;
  };
  BenchAdapter adapter;
  std::vector<Offsets> offsets;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Projections& call : kCalls) {
      for (int32_t out : call.outs) {
        LoraPair pair{.dtype = format.dtype, .rank = rank, .in = call.in, .out = out, .scaling = 1.0f};
        const float marker = 0;
        if (format.int8) pair.a_scale = pair.b_scale = &marker;  // the strides of int8; replaced below
        const int64_t scales = format.int8 ? 4 : 0;
        offsets.push_back(
            {reserve(rank * lora_a_stride_bytes(pair)), reserve(rank * lora_quant_groups(pair.in) * scales),
             reserve(rank * lora_b_stride_bytes(pair)), reserve(rank * lora_quant_groups(pair.out) * scales)});
        adapter.pairs.push_back(pair);
      }
    }
  }
  adapter.memory = HostBuffer::allocate(bytes).value();
  std::byte* memory = adapter.memory.data();
  std::vector<float> some(4096);
  for (float& value : some) value = static_cast<float>(prng.uniform() - 0.5) * 0.02f;
  const int64_t step = row_bytes(format.dtype, 4096);
  std::vector<std::byte> encoded(static_cast<size_t>(step));
  encode_row(format.dtype, some.data(), encoded.data(), 4096);
  for (int64_t at = 0; at < bytes; at += step) std::copy_n(encoded.data(), std::min(step, bytes - at), memory + at);
  for (size_t i = 0; i < adapter.pairs.size(); ++i) {
    LoraPair& pair = adapter.pairs[i];
    pair.a = memory + offsets[i].a;
    pair.b_t = memory + offsets[i].b;
    if (!format.int8) continue;
    auto* a_scale = reinterpret_cast<float*>(memory + offsets[i].a_scale);
    auto* b_scale = reinterpret_cast<float*>(memory + offsets[i].b_scale);
    std::fill_n(a_scale, rank * lora_quant_groups(pair.in), 0x1p-13f);
    std::fill_n(b_scale, rank * lora_quant_groups(pair.out), 0x1p-13f);
    pair.a_scale = a_scale;
    pair.b_scale = b_scale;
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

// The tenth part of the layers' times from below stands for all: what other programs on
// the machine cost is left out, and so is a lucky hit in a cache.
void measure(Bench& bench, OpContext& ctx, double read_gb_s, const char* what, int32_t used, int32_t segments_each,
             int32_t rows_each, int rounds) {
  double flop = 0;
  for (const LoraPair& pair : bench.adapters[0].pairs)
    flop += 2.0 * pair.rank * (pair.in + pair.out) * used * segments_each * rows_each;
  const auto adapter_bytes = static_cast<double>(bench.adapters[0].memory.size_bytes());
  std::vector<double> seconds;
  for (int round = 0; round < rounds * kAdapters / used; ++round) {
    std::vector<LoraSegment> segments;
    for (int32_t i = 0; i < used * segments_each; ++i)
      segments.push_back({i * rows_each, rows_each, (round * used + i / segments_each) % kAdapters, 1.0f});
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
  const std::string stored = argc > 2 ? argv[2] : "bf16";
  const bool int8 = stored == "int8";
  const auto dtype = int8 ? DType::kBF16 : parse_dtype(stored).value_or(DType::kI8);
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16)
    return std::fprintf(stderr, "format %s: one of bf16, f16, f32, int8\n", stored.c_str()), 1;
  const Format format{dtype, int8};
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 3;
  const auto table = select_op_table(std::getenv("LORALEI_ISA") != nullptr ? std::getenv("LORALEI_ISA") : "");
  if (!table.ok()) return std::fprintf(stderr, "%s\n", table.error().message.c_str()), 1;
  const SteadyClock clock;
  Bench bench{**table, clock};
  Prng prng(1);
  for (int i = 0; i < kAdapters; ++i) bench.adapters.push_back(make_adapter(prng, format, rank));
  for (size_t i = 0; i < bench.sources.size(); ++i)
    bench.sources[i].pair = &bench.adapters[i % kAdapters].pairs[i / kAdapters];
  std::printf("%s, %s, rank %d, %.1f MB an adapter\n", (*table)->name, stored.c_str(), rank,
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
    measure(bench, ctx, read_gb_s, "8 adapters, 1 row each", 8, 1, 1, rounds);
    measure(bench, ctx, read_gb_s, "1 adapter, 1 row", 1, 1, 1, rounds);
    measure(bench, ctx, read_gb_s, "1 adapter, 8 requests' rows", 1, 8, 1, rounds);
    measure(bench, ctx, read_gb_s, "1 adapter, 128 rows", 1, 1, 128, 1);
  }
  return 0;
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) { return loralei::run(argc, argv); }

// SPDX-License-Identifier: Apache-2.0
// assist_bench [rank] [bf16|f16|f32|int8] [helpers] [rounds]: what a message to a helper
// costs beside its computing, for the layer inputs of a 1.1B Llama; the same over a
// socket whose other side computes the same; and rows split over helpers against threads
// of this process. Built with LORALEI_BENCHES=ON.
//
// Medians of all layers and rounds. The adapter's layers take turns, as in a prefill.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "assist/assist_pool.h"
#include "assist/socket_twin_test_util.h"
#include "base/clock.h"
#include "base/prng.h"
#include "device/host/arena.h"
#include "ops/lora_factors.h"
#include "ops/op_table.h"
#include "sys/threads.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr int kLayers = 22;
constexpr int32_t kHidden = 2048, kKv = 256, kFfn = 5632;
constexpr int64_t kPatienceNs = 20'000'000'000;

AssistShape bench_shape(int32_t rank) {
  return {.layers = kLayers,
          .rank_max = rank,
          .ins = {kHidden, kHidden, kHidden, kHidden, kHidden, kHidden, kFfn, kHidden},
          .outs = {kHidden, kKv, kKv, kHidden, kFfn, kFfn, kHidden, kKv}};
}

struct Format {
  DType dtype = DType::kBF16;
  bool int8 = false;
};

// Random factors of every module; the numbers do not matter.
struct BenchAdapter {
  SharedMemory memory;
  Adapter adapter;

  BenchAdapter(const AssistShape& shape, int32_t rank, const Format& format) {
    for (int pass = 0; pass < 2; ++pass) {
      int64_t used = 0;
      const auto take = [&](int64_t bytes) {
        std::byte* const at = memory.data() + used;
        used += (bytes + 63) / 64 * 64;
        return at;
      };
      for (int32_t i = 0; i < kLayers * kLayerModules; ++i) {
        const auto module = static_cast<size_t>(i % kLayerModules);
        LoraPair pair{
            .dtype = format.dtype, .rank = rank, .in = shape.ins[module], .out = shape.outs[module], .scaling = 1.0f};
        const float marker = 0;
        if (format.int8) pair.a_scale = pair.b_scale = &marker;  // the strides of int8
        pair.a = take(rank * lora_a_stride_bytes(pair));
        pair.b_t = take(rank * lora_b_stride_bytes(pair));
        if (format.int8) {
          pair.a_scale = reinterpret_cast<const float*>(take(rank * lora_quant_groups(pair.in) * 4));
          pair.b_scale = reinterpret_cast<const float*>(take(rank * lora_quant_groups(pair.out) * 4));
        }
        if (pass == 1) adapter.pairs.push_back(pair);
      }
      if (pass == 0) memory = std::move(SharedMemory::create("bench-adapter", used)).value();
    }
    adapter.pairs.resize(adapter.pairs.size() + 2);
    std::vector<float> some(4096, 0.01f);
    const int64_t step = row_bytes(format.dtype, 4096);
    std::vector<std::byte> encoded(static_cast<size_t>(step));
    encode_row(format.dtype, some.data(), encoded.data(), 4096);
    for (int64_t at = 0; at < memory.size_bytes(); at += step)
      std::copy_n(encoded.data(), std::min(step, memory.size_bytes() - at), memory.data() + at);
  }
};

double median_us(std::vector<int64_t> times) {
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return static_cast<double>(*middle) * 1e-3;
}

struct Bench {
  const OpTable& table;
  const AssistShape shape;
  const Adapter& adapter;
  AssistPool& pool;
  const SteadyClock clock;
  int rounds;
  std::vector<float> x = std::vector<float>(size_t{kTwinRowsMax} * kFfn, 0.5f);
  std::vector<float> sums = std::vector<float>(size_t{3} * kTwinRowsMax * kFfn);

  int32_t in_of(uint32_t group) const { return group == module_bit(Module::kDown) ? kFfn : kHidden; }
};

// One message, of which the sums are left where they are.
void message(Bench& bench, int32_t layer, uint32_t group, int32_t rows, int32_t rows_each, int64_t (&times)[3]) {
  const int32_t in = bench.in_of(group);
  const int64_t start = bench.clock.now_ns(), busy = bench.pool.stats().busy_ns;
  auto ticket = bench.pool.publish({{1}, layer, group, bench.x.data(), in, rows}, rows_each);
  if (!ticket.ok()) std::abort();
  times[0] = bench.clock.now_ns() - start;
  const int32_t slices = ticket->slices();
  const Status collected = bench.pool.collect(*ticket, kPatienceNs, [](auto&&...) {});
  if (!collected.ok()) std::abort();
  times[2] = bench.clock.now_ns() - start;
  times[1] = (bench.pool.stats().busy_ns - busy) / slices;
}

// Times of one kind of message.
struct MessageTimes {
  std::vector<int64_t> publish, busy, whole, beside;

  void add(int64_t published, int64_t computed, int64_t all) {
    publish.push_back(published);
    busy.push_back(computed);
    whole.push_back(all);
    beside.push_back(all - computed);
  }
};

// As a prefill sends them: layer after layer, and nothing else meanwhile.
void per_message(Bench& bench, SocketTwin& twin) {
  constexpr const char* kNames[] = {"q,k,v", "o", "gate,up", "down"};
  std::printf("one helper, us a message     publish  compute     whole    beside | over a socket: whole    beside\n");
  for (const int32_t rows : {1, 16, 128}) {
    std::array<MessageTimes, kAssistGroups.size()> times, by_socket;
    for (int32_t i = 0; i < bench.rounds * kLayers; ++i) {
      for (size_t g = 0; g < kAssistGroups.size(); ++g) {
        int64_t one[3];
        message(bench, i % kLayers, kAssistGroups[g], rows, rows, one);
        times[g].add(one[0], one[1], one[2]);
      }
    }
    for (int32_t i = 0; i < bench.rounds * kLayers; ++i) {
      for (size_t g = 0; g < kAssistGroups.size(); ++g) {
        const TwinAsked asked{i % kLayers, rows, bench.in_of(kAssistGroups[g]), kAssistGroups[g]};
        const int64_t start = bench.clock.now_ns();
        const int64_t busy = twin.ask(asked, bench.x.data(), bench.sums);
        by_socket[g].add(0, busy, bench.clock.now_ns() - start);
      }
    }
    double beside = 0, beside_socket = 0;
    for (size_t g = 0; g < kAssistGroups.size(); ++g) {
      std::printf("  %3d rows, %-16s %8.1f %8.1f %9.1f %9.1f | %20.1f %9.1f\n", rows, kNames[g],
                  median_us(times[g].publish), median_us(times[g].busy), median_us(times[g].whole),
                  median_us(times[g].beside), median_us(by_socket[g].whole), median_us(by_socket[g].beside));
      beside += median_us(times[g].beside);
      beside_socket += median_us(by_socket[g].beside);
    }
    std::printf("  %3d rows, all of a layer, beside computing %20.1f | %30.1f\n", rows, beside, beside_socket);
  }
}

void split(Bench& bench, int32_t helpers) {
  const int32_t rows = kTwinRowsMax;
  std::printf("%d rows, a layer's four messages, us\n", rows);
  for (int32_t count = 1; count <= helpers; ++count) {
    InProcess here(bench.table, bench.shape, bench.adapter, count);
    std::vector<int64_t> by_helpers, by_threads;
    for (int32_t i = 0; i < bench.rounds * kLayers; ++i) {
      int64_t sum = 0;
      for (const uint32_t group : kAssistGroups) {
        int64_t times[3];
        message(bench, i % kLayers, group, rows, (rows + count - 1) / count, times);
        sum += times[2];
      }
      by_helpers.push_back(sum);
    }
    for (int32_t i = 0; i < bench.rounds * kLayers; ++i) {
      const int64_t start = bench.clock.now_ns();
      for (const uint32_t group : kAssistGroups) here.compute(i % kLayers, group, bench.x.data(), rows);
      by_threads.push_back(bench.clock.now_ns() - start);
    }
    std::printf("  %2d helper(s) %9.1f   %2d thread(s) of this process %9.1f\n", count, median_us(by_helpers), count,
                median_us(by_threads));
  }
}

int run(int argc, char** argv) {
  const int32_t rank = argc > 1 ? std::atoi(argv[1]) : 16;
  const std::string stored = argc > 2 ? argv[2] : "bf16";
  const bool int8 = stored == "int8";
  const auto dtype = int8 ? DType::kBF16 : parse_dtype(stored).value_or(DType::kI8);
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16)
    return std::fprintf(stderr, "format %s: one of bf16, f16, f32, int8\n", stored.c_str()), 1;
  const std::vector<int> cpus = allowed_cpus();
  const int32_t helpers = argc > 3 ? std::atoi(argv[3]) : std::max(1, static_cast<int32_t>(cpus.size()) - 1);
  const auto table = select_op_table(std::getenv("LORALEI_ISA") != nullptr ? std::getenv("LORALEI_ISA") : "");
  if (!table.ok()) return std::fprintf(stderr, "%s\n", table.error().message.c_str()), 1;
  const AssistShape shape = bench_shape(rank);
  const BenchAdapter adapter(shape, rank, {dtype, int8});
  // Helpers on the other cores, then on the first one too, where this thread wants to be.
  std::vector<int> order(cpus.begin() + 1, cpus.end());
  order.push_back(cpus[0]);
  SocketTwin twin(**table, shape, adapter.adapter, order[0]);
  AssistOptions options;
  options.program = LORALEI_ASSIST_HELPER;
  options.helpers = helpers;
  options.cpus = order;
  options.rows_max = kTwinRowsMax;
  options.shape = shape;
  options.ops_table = (*table)->name;
  // Nobody sleeps within a prefill, but where both sides share a core.
  options.helper_spin_ns = 2'000'000;
  options.caller_spin_ns = helpers < static_cast<int32_t>(cpus.size()) ? 2'000'000 : 0;
  const SteadyClock clock;
  NullLogSink log;
  auto pool = AssistPool::create(options, clock, log);
  if (!pool.ok()) return std::fprintf(stderr, "%s\n", pool.error().message.c_str()), 1;
  auto factors = AssistFactors::make(adapter.adapter, adapter.memory, kLayers);
  if (!factors.ok() || !(*pool)->learn({1}, *factors).ok()) return 1;
  Bench bench{**table, shape, adapter.adapter, **pool, clock, argc > 4 ? std::atoi(argv[4]) : 20};
  std::printf("%s, %s, rank %d, %.1f MB an adapter, %zu cores\n", (*table)->name, stored.c_str(), rank,
              static_cast<double>(adapter.memory.size_bytes()) * 1e-6, cpus.size());
  per_message(bench, twin);
  split(bench, helpers);
  return 0;
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) { return loralei::run(argc, argv); }

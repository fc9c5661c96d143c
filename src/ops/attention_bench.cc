// SPDX-License-Identifier: Apache-2.0
// attention_bench [kv format] [table] [rounds] [contexts] [rows] [threads] [heads/kv
// heads/head size]: attention of one step of a model of 22 layers over a paged cache, one
// sequence whose last `rows` tokens are computed. Contexts, rows and threads are lists
// separated by commas. The machine's own rates of reading and of f32 arithmetic stand
// above what is reached of them. Built with LORALEI_BENCHES=ON.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "device/host/arena.h"
#include "ops/op_table.h"
#include "ops/probe.h"

namespace loralei {
namespace {

constexpr int kLayers = 22;

struct Shape {
  int32_t heads = 32, kv_heads = 4, head_dim = 64;
};

std::vector<int> numbers(const char* list, char between = ',') {
  std::vector<int> out;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, between);) out.push_back(std::max(1, std::atoi(part.c_str())));
  return out;
}

// [block][layer][K, V][head], each head's slice as the kernels read it (ops/args.h).
struct Cache {
  HostBuffer memory;
  KvView view;
  std::vector<int32_t> blocks;

  Cache(DType dtype, const Shape& shape, int tokens) {
    view.dtype = dtype;
    view.kv_heads = shape.kv_heads;
    view.head_dim = shape.head_dim;
    view.head_stride_bytes = kKvBlockTokens * (row_bytes(dtype, shape.head_dim) + (has_vector_scale(dtype) ? 4 : 0));
    view.kv_stride_bytes = view.head_stride_bytes * shape.kv_heads;
    view.layer_stride_bytes = 2 * view.kv_stride_bytes;
    view.block_stride_bytes = kLayers * view.layer_stride_bytes;
    const int count = (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
    memory = HostBuffer::allocate(count * view.block_stride_bytes, PageSize::kHuge).value();
    view.base = memory.data();
    std::memset(memory.data(), 0, static_cast<size_t>(memory.size_bytes()));
    for (int b = 0; b < count; ++b) blocks.push_back(b);
    Prng prng(1);
    for (int b = count - 1; b > 0; --b) std::swap(blocks[b], blocks[prng.below(static_cast<uint64_t>(b) + 1)]);
  }
};

void measure(const OpTable& table, OpContext& ctx, const SteadyClock& clock, const Shape& shape, DType dtype,
             int context, int rows, int rounds) {
  Cache cache(dtype, shape, context);
  const RowGroup group{.row_count = rows, .position = context - rows, .blocks = cache.blocks.data()};
  const int64_t stride = int64_t{shape.heads} * shape.head_dim;
  std::vector<float> q(static_cast<size_t>(rows * stride), 0.01f), out(q.size());
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    const int64_t start = clock.now_ns();
    for (int layer = 0; layer < kLayers; ++layer) {
      table.attention(ctx, {.q = q.data(),
                            .q_stride = stride,
                            .out = out.data(),
                            .out_stride = stride,
                            .kv = cache.view,
                            .layer = layer,
                            .heads = shape.heads,
                            .scale = 0.125f,
                            .groups = {&group, 1}});
    }
    seconds.push_back(static_cast<double>(clock.now_ns() - start) * 1e-9);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double bytes = 2.0 * context * static_cast<double>(cache.view.kv_stride_bytes) / kKvBlockTokens * kLayers;
  const double pairs = (context - (rows - 1) / 2.0) * rows;
  const double flop = 4.0 * pairs * static_cast<double>(stride) * kLayers;
  std::printf("%6d positions %4d rows: %9.3f ms (best %9.3f)  %6.1f GB/s of the cache  %6.1f Gflop/s\n", context, rows,
              median * 1e3, seconds.front() * 1e3, bytes / median * 1e-9, flop / median * 1e-9);
  std::fflush(stdout);
}

constexpr const char* kFormatHelp = "Write the format of the cache as f32, f16, bf16, int8 or fp8.";

std::optional<DType> cache_dtype(std::string_view name) {
  const std::optional<DType> dtype = parse_dtype(name);
  for (DType known : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8}) {
    if (dtype == known) return dtype;
  }
  return std::nullopt;
}

int run(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return argc > i ? argv[i] : otherwise; };
  const std::optional<DType> dtype = cache_dtype(argument(1, "f16"));
  const auto table = select_op_table(argument(2, "avx2"));
  if (!dtype || !table.ok()) {
    std::fprintf(stderr, "%s\n", dtype ? table.error().message.c_str() : kFormatHelp);
    return 2;
  }
  const int rounds = std::max(1, std::atoi(argument(3, "5")));
  const std::vector<int> shape_numbers = numbers(argument(7, "32/4/64"), '/');
  if (shape_numbers.size() != 3 || shape_numbers[0] % shape_numbers[1] != 0) {
    std::fprintf(stderr, "Write the shape as heads/kv heads/head size, heads a multiple: for example 32/4/64.\n");
    return 2;
  }
  const Shape shape{shape_numbers[0], shape_numbers[1], shape_numbers[2]};
  const SteadyClock clock;
  for (int threads : numbers(argument(6, "2"))) {
    ThreadPool pool(threads);
    const std::vector<int> rows = numbers(argument(5, "1"));
    const OpLimits limits{.rows_max = *std::max_element(rows.begin(), rows.end()),
                          .in_max = 64,
                          .heads = shape.heads,
                          .kv_heads = shape.kv_heads,
                          .head_dim = shape.head_dim,
                          .rank_max = 1,
                          .segments_max = 1,
                          .threads = threads};
    HostBuffer scratch = HostBuffer::allocate((*table)->scratch_bytes(limits)).value();
    OpContext ctx{&pool, scratch.bytes()};
    std::printf("%s, %d thread(s), reading %.1f GB/s, f32 %.0f Gflop/s\n", (*table)->name, threads,
                probe_read_gb_s(pool, clock, {.rounds = 2}).value(), probe_f32_gflop_s(pool, clock, 2));
    for (int context : numbers(argument(4, "512,8192"))) {
      for (int count : rows) {
        if (count <= context) measure(**table, ctx, clock, shape, *dtype, context, count, rounds);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) { return loralei::run(argc, argv); }

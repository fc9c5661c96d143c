// SPDX-License-Identifier: Apache-2.0
// tile_bench [format] [tables] [rounds] [rows] [threads] [ahead], lists separated by
// commas: the products of one step of a 1.1B Llama without its head, by rows and threads,
// as a fraction of what memory and arithmetic allow (integer dot products, for plain
// weights f32 multiply-adds); with `ahead`, asking for weights so many bytes early
// (TileTuning), in turn: 3584, 3584@2 for the second-level cache, 0 not at all (plain
// weights: asked for or not). The time a line takes from thread to thread (ops/probe.h)
// tells on a shared host where its cores lie: compare only what was measured alike.
// Built with LORALEI_BENCHES=ON. Layers have weights of their own, so that none is still
// in a cache when it comes again (unless a cache holds them all).
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "device/host/arena.h"
#include "ops/op_table.h"
#include "ops/probe.h"
#include "tensor/codec.h"
#include "tensor/tile_layout.h"

namespace loralei {
namespace {

constexpr int kLayers = 22, kRowsMax = 512;
constexpr int32_t kHidden = 2048, kKv = 256, kFfn = 5632;

struct Call {
  int32_t in;
  std::vector<int32_t> outs;
};
const std::vector<Call> kCalls = {
    {kHidden, {kHidden, kKv, kKv}}, {kHidden, {kHidden}}, {kHidden, {kFfn, kFfn}}, {kFfn, {kHidden}}};

struct Weights {
  LayoutId layout = LayoutId::kTile16;
  HostBuffer memory;
  std::vector<WeightPanel> panels;  // [layers, projections]
  double numbers = 0;
};

Weights make_weights(DType dtype, ThreadPool& pool) {
  Weights weights;
  if (!is_quantised(dtype)) weights.layout = LayoutId::kPlain;
  Prng prng(1);
  std::vector<std::vector<std::byte>> tiles;  // sixteen rows of each width, repeated
  int64_t bytes = 0;
  std::vector<std::pair<int64_t, size_t>> places;
  std::vector<int64_t> sizes;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Call& call : kCalls) {
      for (int32_t out : call.outs) {
        places.emplace_back(bytes, call.in == kHidden ? 0u : 1u);
        sizes.push_back(matrix_bytes(dtype, weights.layout, out, call.in));
        bytes += sizes.back();
        weights.numbers += static_cast<double>(out) * call.in;
      }
    }
  }
  for (int32_t in : {kHidden, kFfn}) {
    if (is_quantised(dtype) && !can_encode(dtype)) {  // any bytes do that are no special numbers where a scale lies
      tiles.emplace_back(static_cast<size_t>(tile_bytes(dtype, in)), std::byte{0x11});
      continue;
    }
    std::vector<std::vector<std::byte>> rows(kRowTile,
                                             std::vector<std::byte>(static_cast<size_t>(row_bytes(dtype, in))));
    std::array<const std::byte*, kRowTile> rows_of{};
    for (size_t r = 0; r < kRowTile; ++r) {
      std::vector<float> values(static_cast<size_t>(in));
      for (float& value : values) value = static_cast<float>(prng.uniform() - 0.5);
      encode_row(dtype, values.data(), rows[r].data(), in);
      rows_of[r] = rows[r].data();
    }
    std::vector<std::byte>& tile = tiles.emplace_back(static_cast<size_t>(tile_bytes(dtype, in)));
    if (weights.layout == LayoutId::kTile16) {
      pack_tile(dtype, rows_of, in, tile.data());
    } else {
      for (size_t r = 0; r < kRowTile; ++r)
        std::copy(rows[r].begin(), rows[r].end(), tile.begin() + std::ssize(rows[r]) * static_cast<int64_t>(r));
    }
  }
  weights.memory = HostBuffer::allocate(bytes, PageSize::kHuge).value();
  pool.parallel_for(static_cast<int64_t>(places.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const std::vector<std::byte>& tile = tiles[places[i].second];
      std::byte* const at = weights.memory.data() + places[i].first;
      for (int64_t done = 0; done < sizes[i]; done += std::ssize(tile)) std::copy(tile.begin(), tile.end(), at + done);
    }
  });
  for (const auto& place : places) weights.panels.push_back({weights.memory.data() + place.first, 0, 0});
  return weights;
}

std::vector<std::string> list_of(const char* text) {
  std::vector<std::string> items;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

// Seconds of one step of `rows` rows.
double step_s(const OpTable& table, OpContext& ctx, const Clock& clock, Weights& weights, DType dtype, int32_t rows,
              const std::vector<float>& x, const std::vector<HostBuffer>& y) {
  const double start_s = clock.now_s();
  for (size_t layer = 0, panel = 0; layer < kLayers; ++layer) {
    for (const Call& call : kCalls) {
      TileProduct products[3];
      for (size_t i = 0; i < call.outs.size(); ++i, ++panel) {
        weights.panels[panel].row_count = call.outs[i];
        products[i] = {{dtype, weights.layout, call.outs[i], call.in, {&weights.panels[panel], 1}},
                       nullptr,
                       reinterpret_cast<float*>(y[i].data()),
                       call.outs[i]};
      }
      if (weights.layout == LayoutId::kPlain) {
        for (size_t i = 0; i < call.outs.size(); ++i)
          table.matmul(ctx, {.x = x.data(),
                             .x_stride = call.in,
                             .rows = rows,
                             .w = products[i].w,
                             .y = products[i].y,
                             .y_stride = products[i].y_stride});
        continue;
      }
      table.matmul_tiles(ctx,
                         {.x = x.data(), .x_stride = call.in, .rows = rows, .products = {products, call.outs.size()}});
    }
  }
  return clock.now_s() - start_s;
}

int run(int argc, char** argv) {
  const std::optional<DType> known = parse_dtype(argc > 1 ? argv[1] : "q8_0");
  if (!known) return std::fprintf(stderr, "%s is no format of weights.\n", argv[1]), 1;
  const DType dtype = *known;
  std::vector<const OpTable*> tables;
  for (const std::string& name : list_of(argc > 2 && argv[2][0] != 0 ? argv[2] : "avx2")) {
    const auto table = select_op_table(name);
    if (!table.ok()) return std::fprintf(stderr, "%s\n", table.error().message.c_str()), 1;
    tables.push_back(*table);
  }
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  const SteadyClock clock;
  std::vector<float> x(size_t{kRowsMax} * kFfn);
  Prng prng(2);
  for (float& value : x) value = static_cast<float>(prng.uniform() - 0.5);
  std::vector<HostBuffer> y;
  for (int i = 0; i < 3; ++i) y.push_back(HostBuffer::allocate(int64_t{kRowsMax} * kFfn * 4, PageSize::kHuge).value());
  const std::vector<std::string> rows_list = list_of(argc > 4 ? argv[4] : "1,2,4,6,8,12,16,24,32,64,128,512");
  struct Way {
    std::string name;
    TileTuning tuning;
  };
  std::vector<Way> ways;
  for (const std::string& name : list_of(argc > 6 ? argv[6] : "")) {
    Way& way = ways.emplace_back(Way{" ahead " + name, {}});
    way.tuning.unasked_rows.fill(0);
    way.tuning.tiles_asked.fill({std::atoi(name.c_str()), name.ends_with("@2")});
    way.tuning.ask_for_rows = std::atoi(name.c_str()) != 0;
  }
  if (ways.empty()) ways.push_back({});
  for (const std::string& threads_text : list_of(argc > 5 ? argv[5] : "1,2")) {
    const int threads = std::max(1, std::atoi(threads_text.c_str()));
    ThreadPool pool(threads);
    Weights weights = make_weights(dtype, pool);
    const OpLimits limits{.rows_max = kRowsMax,
                          .in_max = kFfn,
                          .heads = 1,
                          .kv_heads = 1,
                          .head_dim = 64,
                          .rank_max = 1,
                          .segments_max = 1,
                          .threads = threads};
    const HostBuffer scratch = HostBuffer::allocate(tables[0]->scratch_bytes(limits)).value();
    OpContext ctx{&pool, scratch.bytes()};
    const bool plain = weights.layout == LayoutId::kPlain;
    double read_gb_s = 0, gop_s = 0;
    for (const std::string& rows_text : rows_list) {
      const int32_t rows = std::clamp(std::atoi(rows_text.c_str()), 1, kRowsMax);
      read_gb_s = std::max(read_gb_s, probe_read_gb_s(pool, clock, {.rounds = 2}).value());
      gop_s = std::max(gop_s,
                       plain ? probe_f32_gflop_s(pool, clock, 2) : probe_int8_gop_s(pool, clock, 2, int8_bits(dtype)));
      std::vector<std::vector<double>> seconds(tables.size() * ways.size());
      for (int round = 0; round < (rows > 100 ? std::min(rounds, 3) : rounds); ++round) {
        for (size_t i = 0; i < seconds.size(); ++i) {
          ctx.tuning = ways[i % ways.size()].tuning;
          seconds[i].push_back(step_s(*tables[i / ways.size()], ctx, clock, weights, dtype, rows, x, y));
        }
      }
      const double bytes_s = static_cast<double>(weights.memory.size_bytes()) / read_gb_s * 1e-9;
      const double ops_s = 2 * weights.numbers * rows / gop_s * 1e-9;
      std::printf("%d thread(s) %5.1f GB/s %6.0f Gop/s line %3.0f ns  %3d rows, bound %7.2f ms (%s):", threads,
                  read_gb_s, gop_s, probe_line_ns(pool, clock), rows, std::max(bytes_s, ops_s) * 1e3,
                  bytes_s > ops_s ? "bytes" : "operations");
      for (size_t i = 0; i < seconds.size(); ++i) {
        std::sort(seconds[i].begin(), seconds[i].end());
        const double median_s = seconds[i][seconds[i].size() / 2];
        std::printf("  %s%s", tables[i / ways.size()]->name, ways[i % ways.size()].name.c_str());
        std::printf(" %7.2f ms (best %7.2f) %4.2f", median_s * 1e3, seconds[i][0] * 1e3,
                    std::max(bytes_s, ops_s) / median_s);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) { return loralei::run(argc, argv); }

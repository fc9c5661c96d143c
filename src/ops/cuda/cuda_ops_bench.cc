// SPDX-License-Identifier: Apache-2.0
// cuda_ops_bench [--smoke]: how fast the kernels of ops/cuda are on this GPU, each beside
// the bound of the same run.
//
// Ceilings first (cuda_probe.h): bytes read a second and operations a second of a
// large bf16 product.
// Then the shapes of a 7 B model (hidden 4096, ffn 11008, 32 heads of 128): products of
// few rows, attention, LoRA across batch, rank and how requests share adapters, sampling.
// A row is the median of several runs of a captured graph; weights, adapters and caches
// take turns so that the second-level cache does not hold them. bf16 weights go through
// thin_gemm, and beside it through the GEMV and the library; weights in tiles through the
// GEMV, and beside it decoded through the library.
// What --batch-invariant costs: weights in tiles in groups of eight rows, a prefill's
// attention row by row beside that in tiles. --smoke: tiny sizes, to see it run.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/cuda_probe.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/lora_plan.h"
#include "tensor/codec.h"
#include "tensor/tile_layout.h"

namespace loralei::cuda {
namespace {

struct Sizes {
  int32_t hidden = 4096, ffn = 11008, heads = 32, head_dim = 128, vocab = 32000, prompt = 2048;
  CudaProbeSizes probe;
  int64_t turns_bytes = int64_t{256} << 20;  // of what takes turns, at least
  int calls = 20, runs = 7;                  // in a graph, of a graph
};
constexpr Sizes kSmoke{
    .hidden = 128,
    .ffn = 256,
    .heads = 2,
    .head_dim = 64,
    .vocab = 128,
    .prompt = 64,
    .probe = {.read_bytes = 1 << 16, .product = 64, .upload_bytes = 1 << 16, .calls = 1, .rounds = 1},
    .turns_bytes = 1,
    .calls = 1,
    .runs = 1};

class Bench {
 public:
  explicit Bench(const Sizes& sizes) : sizes_(sizes) {}

  Status open() {
    TRY_ASSIGN(stream_, CudaStream::create());
    TRY_ASSIGN(from_, CudaEvent::create(true));
    TRY_ASSIGN(to_, CudaEvent::create(true));
    return {};
  }
  Status run() {
    TRY(ceilings());
    TRY(few_rows());
    TRY(attention_decode());
    TRY(attention_prefill());
    TRY(lora_all());
    return sampling();
  }

 private:
  // Memory with random bf16 numbers in [-1, 1): zeros would let the GPU run faster
  // than it does at work.
  Result<std::byte*> memory(int64_t bytes) {
    TRY_ASSIGN(DeviceBuffer buffer, DeviceBuffer::allocate(bytes));
    if (pattern_.size_bytes() == 0) {
      TRY_ASSIGN(pattern_, PinnedBuffer::allocate(kPatternBytes));
      auto* numbers = reinterpret_cast<uint16_t*>(pattern_.data());
      for (int64_t i = 0; i < kPatternBytes / 2; ++i)
        numbers[i] = f32_to_bf16(static_cast<float>(prng_.uniform() * 2 - 1));
    }
    for (int64_t at = 0; at < bytes; at += kPatternBytes) {
      TRY(copy_to_device(buffer.data() + at, pattern_.data(), std::min(kPatternBytes, bytes - at), stream_));
    }
    TRY(stream_.synchronize());
    held_.push_back(std::move(buffer));
    return held_.back().data();
  }
  template <typename T>
  Result<T*> upload(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    TRY_ASSIGN(DeviceBuffer buffer, DeviceBuffer::allocate(bytes));
    TRY(copy_to_device(buffer.data(), values.data(), bytes, stream_));
    TRY(stream_.synchronize());
    held_.push_back(std::move(buffer));
    return reinterpret_cast<T*>(held_.back().data());
  }
  Result<float*> floats(int64_t count) {  // zeros
    TRY_ASSIGN(DeviceBuffer buffer, DeviceBuffer::allocate(count * 4));
    TRY(fill_on_device(buffer.data(), 0, count * 4, stream_));
    TRY(stream_.synchronize());
    held_.push_back(std::move(buffer));
    return reinterpret_cast<float*>(held_.back().data());
  }

  // How many copies of so many bytes take turns.
  int turns_of(int64_t bytes) const {
    return static_cast<int>(std::max<int64_t>(1, (sizes_.turns_bytes + bytes - 1) / bytes));
  }
  // Median seconds of one call(turn), turn below `turns`.
  Result<double> seconds(const std::function<Status(int turn)>& call, int turns = 1) {
    const int calls = (sizes_.calls + turns - 1) / turns * turns;
    TRY(call(0));
    TRY(stream_.synchronize());
    CudaGraph graph;
    TRY(graph.begin_capture(stream_));
    for (int i = 0; i < calls; ++i) TRY(call(i % turns));
    TRY(graph.end_capture(stream_));
    std::vector<double> times;
    for (int run = 0; run <= sizes_.runs; ++run) {
      TRY(stream_.record(from_));
      TRY(graph.launch(stream_));
      TRY(stream_.record(to_));
      TRY(stream_.synchronize());
      TRY_ASSIGN(const double ms, elapsed_ms(from_, to_));
      if (run > 0 || sizes_.runs == 1) times.push_back(ms * 1e-3 / calls);
    }
    std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
    return std::max(times[times.size() / 2], 1e-9);
  }
  void forget() { held_.clear(); }
  void print(const std::string& name, double seconds, double bytes, double operations) const {
    std::printf("%-52s %10.1f us", name.c_str(), seconds * 1e6);
    if (bytes > 0) {
      std::printf("  %8.1f GB/s", bytes / seconds * 1e-9);
      std::printf("  %5.3f of reading", bytes / seconds / byte_rate_);
    }
    if (operations > 0) {
      std::printf("  %8.1f Top/s", operations / seconds * 1e-12);
      std::printf("  %5.3f of the large product", operations / seconds / operation_rate_);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  Status ceilings() {
    TRY_ASSIGN(const DeviceRates rates, probe_cuda(0, sizes_.probe));
    std::printf("reading %.1f GB/s, a large bf16 product %.1f Top/s, from pinned host memory %.1f GB/s\n",
                rates.read_gb_s, rates.product_tflop_s, rates.upload_gb_s);
    byte_rate_ = rates.read_gb_s * 1e9;
    operation_rate_ = rates.product_tflop_s * 1e12;
    return {};
  }

  Status few_rows() {
    const int32_t shapes[][2] = {{3 * sizes_.hidden, sizes_.hidden},
                                 {sizes_.hidden, sizes_.hidden},
                                 {2 * sizes_.ffn, sizes_.hidden},
                                 {sizes_.hidden, sizes_.ffn}};
    for (const DType dtype : {DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K}) {
      for (const auto& [out, in] : shapes) {
        if (dtype == DType::kQ4_K && in % 256 != 0) continue;
        for (const int32_t rows : {1, 8, 16, 32, 64}) TRY(few_rows_of(dtype, out, in, rows));
      }
    }
    return {};
  }
  Status few_rows_of(DType dtype, int32_t out, int32_t in, int32_t rows) {
    const bool tiled = dtype != DType::kBF16;
    const int64_t bytes = matrix_bytes(dtype, tiled ? LayoutId::kTile16 : LayoutId::kPlain, out, in);
    const int turns = turns_of(bytes);
    std::vector<std::byte*> weights;
    for (int turn = 0; turn < turns; ++turn) {
      TRY_ASSIGN(std::byte* const one, memory(bytes));
      weights.push_back(one);
    }
    TRY_ASSIGN(std::byte* const x, memory(int64_t{rows} * in * 4));
    TRY_ASSIGN(float* const y, floats(int64_t{rows} * out));
    const auto weight = [&](int turn) {
      return DeviceWeight{weights[static_cast<size_t>(turn)], dtype, tiled ? LayoutId::kTile16 : LayoutId::kPlain, out,
                          in};
    };
    const auto in_groups = [&](auto&& launch) -> Status {  // launch(first row, rows)
      for (int32_t row = 0; row < rows; row += kGemvRows) TRY(launch(row, std::min(kGemvRows, rows - row)));
      return {};
    };
    const auto measure = [&](const std::string& way, const std::function<Status(int turn)>& call) -> Status {
      TRY_ASSIGN(const double taken, seconds(call, turns));
      print(std::string("few rows ") + dtype_info(dtype).name + " [" + std::to_string(out) + ", " + std::to_string(in) +
                "] x " + std::to_string(rows) + way,
            taken, static_cast<double>(bytes), 0);
      return {};
    };
    if (tiled) {
      TRY_ASSIGN(std::byte* const q, memory(int64_t{rows} * in));
      TRY_ASSIGN(float* const d, floats(int64_t{rows} * in / 32));
      TRY_ASSIGN(float* const sums, floats(int64_t{rows} * in / 32));
      TRY(measure("", [&](int turn) {
        return in_groups([&](int32_t row, int32_t count) {
          const int64_t blocks = int64_t{row} * in / 32;
          return tile_gemv(stream_, {.x = {reinterpret_cast<int8_t*>(q) + int64_t{row} * in, d + blocks, sums + blocks},
                                     .rows = count,
                                     .targets = {{.w = weight(turn), .y = y + int64_t{row} * out, .y_stride = out}},
                                     .target_count = 1});
        });
      }));
    } else {
      TRY(measure("", [&](int turn) {
        return thin_gemm(stream_, {.x = x,
                                   .x_stride = in,
                                   .rows = rows,
                                   .targets = {{.w = weight(turn), .y = y, .y_stride = out}},
                                   .target_count = 1});
      }));
      TRY(measure(", GEMV", [&](int turn) {
        return in_groups([&](int32_t row, int32_t count) {
          return plain_gemv(stream_, {.x = x + int64_t{row} * in * 2,
                                      .x_stride = in,
                                      .rows = count,
                                      .w = weight(turn),
                                      .y = y + int64_t{row} * out,
                                      .y_stride = out});
        });
      }));
    }
    if (rows > kGemvRows) TRY(by_library(x, rows, weight, y, measure));
    forget();
    return {};
  }

  // The library's product, of weights decoded before it where they are in tiles.
  template <typename Weight, typename Measure>
  Status by_library(const std::byte* x, int32_t rows, const Weight& weight, float* y, const Measure& measure) {
    const DeviceWeight first = weight(0);
    const bool decoded = first.layout != LayoutId::kPlain;
    std::byte* room = nullptr;
    if (decoded) {
      TRY_ASSIGN(room, memory(matrix_bytes(DType::kBF16, LayoutId::kPlain, first.rows, first.cols)));
    }
    TRY_ASSIGN(Gemm gemm, Gemm::open());
    return measure(decoded ? ", decoded, library" : ", library", [&](int turn) -> Status {
      const DeviceWeight w = weight(turn);
      if (decoded) TRY(decode_weights(stream_, {w, room, DType::kBF16}));
      return gemm.run(stream_, {.shape = {w.cols, w.rows},
                                .x = x,
                                .x_stride = w.cols,
                                .rows = rows,
                                .w = decoded ? room : w.data,
                                .y = y,
                                .y_stride = w.rows});
    });
  }

  // A cache of `sequences` sequences of `length` positions, blocks one after the other,
  // one layer; caches that take turns lie one behind the other.
  struct Cache {
    DeviceKv kv;
    int32_t blocks_each = 0;
    int64_t bytes = 0;
    int turns = 1;
  };
  Result<Cache> cache(int32_t sequences, int32_t length) {
    Cache made;
    const int64_t head = int64_t{16} * sizes_.head_dim * 2;
    made.blocks_each = (length + 15) / 16;
    made.kv = {.head_stride_bytes = head, .kv_heads = sizes_.heads, .head_dim = sizes_.head_dim};
    made.kv.kv_stride_bytes = head * sizes_.heads;
    made.kv.layer_stride_bytes = made.kv.block_stride_bytes = 2 * made.kv.kv_stride_bytes;
    made.bytes = made.kv.block_stride_bytes * made.blocks_each * sequences;
    made.turns = turns_of(made.bytes);
    TRY_ASSIGN(made.kv.base, memory(made.bytes * made.turns));
    return made;
  }

  Status attention_decode() {
    const int32_t width = sizes_.heads * sizes_.head_dim;
    for (const int32_t length : {sizes_.prompt / 4, 2 * sizes_.prompt}) {
      for (const int32_t sequences : {1, 8, 32, 128}) {
        if (sizes_.calls == 1 && sequences > 8) continue;
        TRY_ASSIGN(const Cache made, cache(sequences, length));
        std::vector<int32_t> positions, tables, blocks;
        for (int32_t s = 0; s < sequences; ++s) {
          positions.push_back(length - 1);
          tables.push_back(s * made.blocks_each);
          for (int32_t b = 0; b < made.blocks_each; ++b) blocks.push_back(s * made.blocks_each + b);
        }
        TRY_ASSIGN(int32_t* const d_positions, upload(positions));
        TRY_ASSIGN(int32_t* const d_tables, upload(tables));
        TRY_ASSIGN(int32_t* const d_blocks, upload(blocks));
        TRY_ASSIGN(float* const q, floats(int64_t{sequences} * width));
        TRY_ASSIGN(std::byte* const out, memory(int64_t{sequences} * width * 2));
        TRY_ASSIGN(float* const scratch,
                   floats(attention_scratch_floats(sequences, sizes_.heads, sizes_.head_dim, length)));
        const AttentionArgs args{.q = q,
                                 .q_stride = width,
                                 .out = out,
                                 .out_stride = width,
                                 .kv = made.kv,
                                 .heads = sizes_.heads,
                                 .scale = 0.1f,
                                 .positions_max = length,
                                 .scratch = scratch,
                                 .rows = {sequences, d_positions, d_tables, d_blocks}};
        const auto call = [&](int turn) {
          AttentionArgs turned = args;
          turned.kv.base += turn * made.bytes;
          return attention(stream_, turned);
        };
        TRY_ASSIGN(const double taken, seconds(call, made.turns));
        print("attention, decode, " + std::to_string(sequences) + " x " + std::to_string(length) + " positions", taken,
              static_cast<double>(made.bytes), 0);
        forget();
      }
    }
    return {};
  }

  Status attention_prefill() {
    const int32_t width = sizes_.heads * sizes_.head_dim, rows = sizes_.prompt;
    if (!has_tiled_attention(sizes_.head_dim)) return {};
    TRY_ASSIGN(const Cache made, cache(1, rows));
    std::vector<int32_t> positions, blocks;
    std::vector<AttentionTile> tiles;
    for (int32_t row = 0; row < rows; ++row) positions.push_back(row);
    for (int32_t block = 0; block < made.blocks_each; ++block) blocks.push_back(block);
    for (int32_t row = 0; row < rows; row += kAttentionTileRows)
      tiles.push_back({row, std::min(kAttentionTileRows, rows - row)});
    TRY_ASSIGN(int32_t* const d_positions, upload(positions));
    TRY_ASSIGN(int32_t* const d_tables, upload(std::vector<int32_t>(static_cast<size_t>(rows), 0)));
    TRY_ASSIGN(int32_t* const d_blocks, upload(blocks));
    TRY_ASSIGN(AttentionTile* const d_tiles, upload(tiles));
    TRY_ASSIGN(float* const q, floats(int64_t{rows} * width));
    TRY_ASSIGN(std::byte* const out, memory(int64_t{rows} * width * 2));
    const TiledAttentionArgs args{.attention = {.q = q,
                                                .q_stride = width,
                                                .out = out,
                                                .out_stride = width,
                                                .kv = made.kv,
                                                .heads = sizes_.heads,
                                                .scale = 0.1f,
                                                .rows = {rows, d_positions, d_tables, d_blocks}},
                                  .tiles = d_tiles,
                                  .tile_count = static_cast<int32_t>(tiles.size())};
    TRY_ASSIGN(const double taken, seconds([&](int) { return tiled_attention(stream_, args); }));
    const double pairs = 0.5 * rows * (rows + 1.0);  // of a query and a key it may see
    print("attention, prefill of " + std::to_string(rows), taken, 0, 4.0 * pairs * width);
    AttentionArgs by_row = args.attention;
    by_row.positions_max = rows;
    TRY_ASSIGN(by_row.scratch, floats(attention_scratch_floats(rows, sizes_.heads, sizes_.head_dim, rows)));
    TRY_ASSIGN(const double rows_taken, seconds([&](int) { return attention(stream_, by_row); }));
    print("attention, prefill of " + std::to_string(rows) + " row by row", rows_taken, 0, 4.0 * pairs * width);
    forget();
    return {};
  }

  // How the rows of a batch share adapters.
  enum class Draw { kDistinct, kSkewed, kSame };
  Status lora_all() {
    const char* names[] = {"distinct", "skewed", "same"};
    for (const int32_t rank : {8, 16, 64, 128}) {
      for (const int32_t rows : {1, 8, 32, 128, 256}) {
        if (sizes_.calls == 1 && (rows > 8 || rank > 16)) continue;
        for (const Draw draw : {Draw::kDistinct, Draw::kSkewed, Draw::kSame}) {
          if (rows == 1 && draw != Draw::kDistinct) continue;
          TRY(lora_of(rank, rows, draw, names[static_cast<int>(draw)]));
        }
      }
    }
    return {};
  }
  Status lora_of(int32_t rank, int32_t rows, Draw draw, const std::string& name) {
    constexpr int32_t kTargets = 3;  // q, k, v
    const int32_t width = sizes_.hidden;
    std::vector<int32_t> slot_of;
    for (int32_t row = 0; row < rows; ++row) {
      const double u = prng_.uniform();
      slot_of.push_back(draw == Draw::kDistinct ? row
                        : draw == Draw::kSame   ? 0
                                                : static_cast<int32_t>(rows * u * u * u));
    }
    std::sort(slot_of.begin(), slot_of.end());
    std::vector<LoraSegment> segments;
    for (int32_t row = 0, last = -1; row < rows; ++row) {
      int32_t& slot = slot_of[static_cast<size_t>(row)];
      if (slot != last) segments.push_back({row, 0, static_cast<int32_t>(segments.size()), 1.0f});
      last = slot;
      slot = segments.back().slot;  // none is without rows
      ++segments.back().row_count;
    }
    const auto slots = static_cast<int64_t>(segments.size());
    const int64_t factor_bytes = int64_t{rank} * width * 2, bytes = 2 * factor_bytes * kTargets * slots;
    const int turns = turns_of(bytes);
    LoraArgs args{.x_stride = width, .in = width, .target_count = kTargets, .entries = rows, .rank_max = rank};
    PaddedLoraArgs padded{.x_stride = width, .in = width, .rows = rows, .target_count = kTargets, .rank = rank};
    for (int32_t t = 0; t < kTargets; ++t) {
      TRY_ASSIGN(std::byte* const factors, memory(2 * factor_bytes * slots * turns));
      std::vector<DeviceLora> sources(static_cast<size_t>(slots * turns));
      for (size_t i = 0; i < sources.size(); ++i) {
        DeviceLora& source = sources[i];
        source.a = factors + 2 * factor_bytes * static_cast<int64_t>(i);
        source.b_t = static_cast<const std::byte*>(source.a) + factor_bytes;
        source.scaling = 0.01f;
        source.rank = rank;
        source.in = source.out = width;
        source.present = 1;
      }
      TRY_ASSIGN(const DeviceLora* const d_sources, upload(sources));
      TRY_ASSIGN(float* const y, floats(int64_t{rows} * width));
      args.targets[t] = padded.targets[t] = {y, width, d_sources, width};
    }
    LoraPlan plan({.rows = rows, .segments = static_cast<int32_t>(segments.size()), .entries = rows});
    CHECK(plan.fill(segments, rows));
    const auto copy = [&](const auto& span) { return upload(std::vector(span.begin(), span.end())); };
    TRY_ASSIGN(args.step.segments, copy(plan.segments()));
    TRY_ASSIGN(args.step.parts, copy(plan.parts()));
    TRY_ASSIGN(args.step.runs, copy(plan.runs()));
    TRY_ASSIGN(args.step.order, copy(plan.order()));
    args.step.part_count = static_cast<int32_t>(plan.parts().size());
    args.step.run_count = static_cast<int32_t>(plan.runs().size());
    TRY_ASSIGN(std::byte* const x, memory(int64_t{rows} * width * 2));
    TRY_ASSIGN(float* const v, floats(int64_t{kTargets} * rows * rank));
    TRY_ASSIGN(padded.slots, upload(slot_of));
    TRY_ASSIGN(padded.scales, upload(std::vector<float>(static_cast<size_t>(rows), 1.0f)));
    args.x = padded.x = x;
    args.v = padded.v = v;
    const std::string label = "rank " + std::to_string(rank) + ", " + std::to_string(rows) + " rows, " + name;
    const auto turned = [&](auto given, int turn) {
      for (int32_t t = 0; t < kTargets; ++t) given.targets[t].sources += turn * slots;
      return given;
    };
    TRY_ASSIGN(const double grouped, seconds([&](int turn) { return lora(stream_, turned(args, turn)); }, turns));
    print("LoRA q k v, " + label, grouped, static_cast<double>(bytes), 0);
    const auto by_padded = [&](int turn) -> Status {
      const PaddedLoraArgs its = turned(padded, turn);
      TRY(lora_padded_shrink(stream_, its));
      return lora_padded_expand(stream_, its);
    };
    TRY_ASSIGN(const double each_padded, seconds(by_padded, turns));
    print("LoRA q k v padded, " + label, each_padded, static_cast<double>(bytes), 0);
    forget();
    return {};
  }

  Status sampling() {
    for (const int32_t vocab : {sizes_.vocab, 4 * sizes_.vocab}) {
      constexpr int32_t kRows = 32;
      const int32_t rows = sizes_.calls == 1 ? 2 : kRows;
      std::vector<float> spread(static_cast<size_t>(rows) * static_cast<size_t>(vocab));
      for (float& logit : spread) {  // about normal, with a deviation of 3
        double sum = 0;
        for (int i = 0; i < 4; ++i) sum += prng_.uniform() - 0.5;
        logit = static_cast<float>(sum * 3 * std::sqrt(3.0));
      }
      TRY_ASSIGN(const float* const logits, upload(spread));
      const std::pair<const char*, RowChoice> ways[] = {
          {"greedy", {.vocab = vocab}},
          {"temperature", {.temperature = 0.8f, .vocab = vocab}},
          {"top-k and top-p", {.temperature = 0.8f, .top_p = 0.9f, .top_k = 40, .vocab = vocab}},
          {"top-p", {.temperature = 0.8f, .top_p = 0.9f, .vocab = vocab}}};
      for (const auto& [way, one] : ways) {
        TRY_ASSIGN(const RowChoice* const params, upload(std::vector<RowChoice>(static_cast<size_t>(rows), one)));
        TRY_ASSIGN(TokenId* const tokens, upload(std::vector<TokenId>(static_cast<size_t>(rows))));
        const SampleArgs args{.logits = logits, .stride = vocab, .rows = rows, .choices = params, .tokens = tokens};
        TRY_ASSIGN(const double taken, seconds([&](int) { return sample(stream_, args); }));
        print(std::string("sampling, ") + way + ", " + std::to_string(rows) + " x " + std::to_string(vocab), taken,
              4.0 * rows * vocab, 0);
      }
      forget();
    }
    return {};
  }

  static constexpr int64_t kPatternBytes = int64_t{4} << 20;
  const Sizes sizes_;
  Prng prng_{20261122};
  CudaStream stream_;
  CudaEvent from_, to_;
  PinnedBuffer pattern_;
  std::vector<DeviceBuffer> held_;
  double byte_rate_ = 0, operation_rate_ = 0;
};

int bench(bool smoke) {
  const CudaDevices devices = cuda_devices();
  if (devices.list.empty()) {
    std::fprintf(stderr, "cuda_ops_bench: %s\n", devices.reason.c_str());
    return 1;
  }
  const CudaDeviceInfo& device = devices.list.front();
  std::printf("%s, %d multiprocessors, %s, compute %d.%d\n", device.name.c_str(), device.multiprocessors,
              format_bytes(device.total_bytes).c_str(), device.capability_major, device.capability_minor);
  Bench bench(smoke ? kSmoke : Sizes{});
  Status status = bench.open();
  if (status.ok()) status = bench.run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "cuda_ops_bench: %s\n", status.error().message.c_str());
  return 1;
}

}  // namespace
}  // namespace loralei::cuda

int main(int argc, char** argv) {
  const bool smoke = argc == 2 && std::strcmp(argv[1], "--smoke") == 0;
  if (argc > 1 && !smoke) {
    std::fprintf(stderr, "usage: cuda_ops_bench [--smoke]\n");
    return 2;
  }
  return loralei::cuda::bench(smoke);
}

// SPDX-License-Identifier: Apache-2.0
// bench kv-codec: what blocks of KV cache take encoded, alone and as differences, and how
// fast that goes. The numbers are made: normal, with a scale for each channel; a second
// adapter's are the first's with noise, so that both have a stated cosine.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/clock.h"
#include "base/prng.h"
#include "bench/generate.h"
#include "bench/rig.h"
#include "bench/scenarios.h"
#include "codec/kv_blob.h"
#include "codec/kv_paper.h"
#include "device/host/thread_pool.h"
#include "sys/cpu.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr float kSteps[] = {0.25f, 0.5f, 1.0f};             // of a channel's standard deviation
constexpr double kCosines[] = {0.99, 0.9, 0.6};             // of a second adapter to the first
constexpr double kTimedCosine = 0.9;                        // whose differences are timed
constexpr int64_t kNumbers = 1 << 22;                       // of a pass, in whole blocks
constexpr int kPasses = 4;                                  // of a sample
constexpr int64_t kPaperNumbers = 1 << 19;                  // the paper's form is slower
constexpr double kTargetDecode = 0.5, kTargetEncode = 0.2;  // G numbers/s on one thread

class Normal {
 public:
  explicit Normal(uint64_t seed) : prng_(seed) {}
  double operator()() {
    has_second_ = !has_second_;
    if (!has_second_) return second_;
    const double size = std::sqrt(-2 * std::log(1 - prng_.uniform()));
    const double angle = 2 * std::numbers::pi * prng_.uniform();
    second_ = size * std::sin(angle);
    return size * std::cos(angle);
  }

 private:
  Prng prng_;
  double second_ = 0;
  bool has_second_ = false;
};

// Blocks in f16.
struct Blocks {
  std::vector<std::byte> bytes;
  KvView view;
};
Blocks make_blocks(const KvGridShape& shape, int64_t blocks) {
  Blocks made;
  KvView& view = made.view;
  view.dtype = shape.dtype;
  view.kv_heads = shape.kv_heads;
  view.head_dim = shape.head_dim;
  view.head_stride_bytes = kv_head_bytes(shape.dtype, shape.head_dim);
  view.kv_stride_bytes = view.head_stride_bytes * shape.kv_heads;
  view.layer_stride_bytes = 2 * view.kv_stride_bytes;
  view.block_stride_bytes = shape.layers * view.layer_stride_bytes;
  made.bytes.resize(static_cast<size_t>(blocks * view.block_stride_bytes));
  view.base = made.bytes.data();
  return made;
}

// The world of one run: blocks of a first adapter, steps for a scale of each channel.
struct CodecRun {
  KvGridShape shape;
  int64_t blocks = 0;
  std::vector<float> scales;  // [layers][2][channels]
  Blocks first;

  int64_t numbers() const { return blocks * shape.numbers(); }
  Result<KvGrid> grid(float step) const {
    std::vector<float> steps = scales;
    for (float& one : steps) one *= step;
    return KvGrid::create(shape, steps);
  }
};

// `from` (null: zero) plus normal numbers of `noise` times each channel's scale.
Blocks noisy(const CodecRun& run, const Blocks* from, double noise, uint64_t seed) {
  Blocks made = make_blocks(run.shape, run.blocks);
  Normal normal(seed);
  const auto head_numbers = static_cast<size_t>(run.shape.head_numbers());
  std::byte* to = made.bytes.data();
  for (int64_t group = 0; group < run.blocks * 2 * run.shape.layers * run.shape.kv_heads; ++group) {
    const int64_t in_block = group % (int64_t{2} * run.shape.layers * run.shape.kv_heads);
    const float* const scales = run.scales.data() + in_block * run.shape.head_dim;
    const bool is_v = in_block / run.shape.kv_heads % 2 == 1;
    for (size_t i = 0; i < head_numbers; ++i, to += 2) {
      const size_t d = is_v ? i % static_cast<size_t>(run.shape.head_dim) : i / kKvBlockTokens;
      float x = 0;
      if (from != nullptr) decode_row(DType::kF16, from->bytes.data() + (to - made.bytes.data()), &x, 1);
      x += static_cast<float>(noise * normal()) * scales[d];
      encode_row(DType::kF16, &x, to, 1);
    }
  }
  return made;
}

// --- what theory says, in bits a number

double entropy_of(const auto& share_at, int farthest) {
  double bits = 0;
  for (int k = -farthest; k <= farthest; ++k) {
    if (const double share = share_at(k); share > 0) bits -= share * std::log2(share);
  }
  return bits;
}
// Of a normal number of standard deviation 1 in steps.
double entropy_alone(double step) {
  const auto below = [](double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); };
  return entropy_of([&](int k) { return below((k + 0.5) * step) - below((k - 0.5) * step); },
                    static_cast<int>(9 / step) + 2);
}
// Of the difference of two integers whose numbers are apart by a normal one of standard
// deviation `noise`: where a number lies within its step is nearly uniform.
double entropy_delta(double step, double noise) {
  constexpr int kPoints = 200;
  const auto share = [&](int k) {
    double sum = 0;
    for (int i = 0; i < 2 * kPoints; ++i) {
      const double u = (i + 0.5) / kPoints - 1, apart = (k + u) * step / noise;
      sum += (1 - std::fabs(u)) * std::exp(-0.5 * apart * apart);
    }
    return sum / kPoints * step / noise / std::sqrt(2 * std::numbers::pi);
  };
  return entropy_of(share, static_cast<int>(9 * noise / step) + 3);
}

// --- one grid's integers and blobs

struct Side {
  std::vector<KvNumbers> numbers;  // of each block
};
Result<Side> read_all(const KvGrid& grid, const CodecRun& run, const Blocks& blocks) {
  Side side;
  for (int64_t block = 0; block < run.blocks; ++block) {
    side.numbers.emplace_back(grid);
    if (!kv_read(grid, blocks.view, static_cast<int32_t>(block), side.numbers.back()))
      return internal_error("a made block of bench kv-codec has no integers; report this with the command.");
  }
  return side;
}

struct Blobs {
  std::vector<std::vector<std::byte>> room;  // [blocks]
  std::vector<size_t> sizes;

  double bits(const CodecRun& run) const {
    double bytes = 0;
    for (const size_t size : sizes) bytes += static_cast<double>(size);
    return 8 * bytes / static_cast<double>(run.numbers());
  }
};

// The parts of a round: encode integers, decode them, and both with the way from f16 and
// back. `anchors` null: alone.
class CodecTimes {
 public:
  CodecTimes(const KvGrid& grid, const CodecRun& run, const Blocks& blocks, const Side& side, const Side* anchors,
             int threads)
      : grid_(grid),
        run_(run),
        blocks_(blocks),
        side_(side),
        anchors_(anchors),
        pool_(threads),
        back_(make_blocks(run.shape, run.blocks)) {
    blobs_.sizes.resize(static_cast<size_t>(run.blocks));
    blobs_.room.assign(static_cast<size_t>(run.blocks), std::vector<std::byte>(kv_blob_bound(grid)));
    for (int worker = 0; worker < pool_.threads(); ++worker) scratch_.emplace_back(grid);
    pass([&](size_t block, size_t) { encode(block, side_.numbers[block]); });
  }
  const Blobs& blobs() const { return blobs_; }

  void measure() {
    time(encode_, [&](size_t block, size_t) { encode(block, side_.numbers[block]); });
    time(decode_, [&](size_t block, size_t worker) { decode(block, scratch_[worker]); });
    time(encode_f16_, [&](size_t block, size_t worker) {
      good_ = kv_read(grid_, blocks_.view, static_cast<int32_t>(block), scratch_[worker]) && good_;
      encode(block, scratch_[worker]);
    });
    time(decode_f16_, [&](size_t block, size_t worker) {
      decode(block, scratch_[worker]);
      kv_write(grid_, scratch_[worker], back_.view, static_cast<int32_t>(block));
    });
  }
  void drop_last() {
    for (std::vector<double>* samples : {&encode_, &decode_, &encode_f16_, &decode_f16_}) samples->pop_back();
  }
  void report(const std::string& prefix, BenchReport& report) const {
    report.rows.push_back(summarise(prefix + "encode", "Gnum/s", encode_));
    report.rows.push_back(summarise(prefix + "decode", "Gnum/s", decode_));
    report.rows.push_back(summarise(prefix + "encode_f16", "GB/s", in_gb(encode_f16_)));
    report.rows.push_back(summarise(prefix + "decode_f16", "GB/s", in_gb(decode_f16_)));
    if (pool_.threads() > 1) return;
    report.targets.push_back({prefix + "encode", ">=", kTargetEncode, median(encode_)});
    report.targets.push_back({prefix + "decode", ">=", kTargetDecode, median(decode_)});
  }
  bool good() const { return good_; }

 private:
  static std::vector<double> in_gb(std::vector<double> rates) {
    for (double& rate : rates) rate *= 2;
    return rates;
  }
  const KvNumbers* anchor(size_t block) const { return anchors_ == nullptr ? nullptr : &anchors_->numbers[block]; }
  void encode(size_t block, const KvNumbers& numbers) {
    blobs_.sizes[block] = kv_encode(grid_, numbers, anchor(block), blobs_.room[block]);
    if (blobs_.sizes[block] == 0) good_ = false;
  }
  void decode(size_t block, KvNumbers& to) {
    const std::span<const std::byte> blob = std::span(blobs_.room[block]).first(blobs_.sizes[block]);
    if (!kv_decode(grid_, blob, anchor(block), to).ok()) good_ = false;
  }
  template <typename Body>
  void pass(Body body) {
    pool_.parallel_for(run_.blocks, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t block = begin; block < end; ++block) body(static_cast<size_t>(block), static_cast<size_t>(worker));
    });
  }
  template <typename Body>
  void time(std::vector<double>& samples, Body body) {
    const double begin_s = clock_.now_s();
    for (int i = 0; i < kPasses; ++i) pass(body);
    const double taken_s = clock_.now_s() - begin_s;
    samples.push_back(static_cast<double>(kPasses * run_.numbers()) / taken_s * 1e-9);
  }

  const KvGrid& grid_;
  const CodecRun& run_;
  const Blocks& blocks_;
  const Side& side_;
  const Side* anchors_;
  SteadyClock clock_;
  ThreadPool pool_;
  Blocks back_;
  Blobs blobs_;
  std::vector<KvNumbers> scratch_;
  std::atomic<bool> good_ = true;
  std::vector<double> encode_, decode_, encode_f16_, decode_f16_;  // Gnum/s
};

void add_bits(const std::string& name, double bits, double entropy, BenchReport& report) {
  const auto row = [&](const std::string& what, double value) {
    report.rows.push_back({.name = name + what, .unit = "bits", .value = value, .min = value, .max = value});
  };
  row("bits", bits);
  if (entropy > 0) row("entropy", entropy);
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

Status time_one(const BenchOptions& options, const std::string& prefix, CodecTimes& times, BenchReport& report) {
  QuietRounds rounds(options.rounds, options.foreign_max);
  std::vector<bool> kept;
  while (rounds.next()) {
    times.measure();
    if (!rounds.keep()) times.drop_last();
  }
  const size_t first_row = report.rows.size();
  times.report(prefix, report);
  rounds.describe(report, first_row);
  if (!times.good()) return internal_error("a block was refused that bench kv-codec had encoded; report this.");
  return {};
}

Status bench_step(const BenchOptions& options, const CodecRun& run, const std::vector<Blocks>& others, float step,
                  const std::vector<int>& threads, const std::string& prefix, BenchReport& report) {
  TRY_ASSIGN(const KvGrid grid, run.grid(step));
  TRY_ASSIGN(const Side first, read_all(grid, run, run.first));
  const auto one = [&](const std::string& name, const Blocks& blocks, const Side& side, const Side* anchors,
                       double entropy, bool timed) -> Status {
    for (const int count : threads) {
      CodecTimes times(grid, run, blocks, side, anchors, count);
      if (count == threads.front()) add_bits(name, times.blobs().bits(run), entropy, report);
      if (timed) TRY(time_one(options, name + "t" + std::to_string(count) + ".", times, report));
    }
    return {};
  };
  const std::string at_step = prefix + "step" + short_number(static_cast<double>(step)) + ".";
  TRY(one(at_step + "alone.", run.first, first, nullptr, entropy_alone(static_cast<double>(step)), true));
  for (size_t i = 0; i < others.size(); ++i) {
    TRY_ASSIGN(const Side second, read_all(grid, run, others[i]));
    const double noise = std::sqrt(1 / (kCosines[i] * kCosines[i]) - 1);
    TRY(one(at_step + "cos" + short_number(kCosines[i]) + ".", others[i], second, &first,
            entropy_delta(static_cast<double>(step), noise), kCosines[i] == kTimedCosine));
  }
  return {};
}

// The paper's form of the first blocks.
Status bench_paper(const CodecRun& run, const std::vector<Blocks>& others, const std::string& prefix,
                   BenchReport& report) {
  TRY_ASSIGN(const KvGrid grid, run.grid(1));
  const int64_t blocks = std::clamp<int64_t>(kPaperNumbers / run.shape.numbers(), 1, run.blocks);
  std::vector<std::byte> room(2 * kv_blob_bound(grid));
  for (size_t i = 0; i < others.size(); ++i) {
    double bytes = 0;
    for (int32_t block = 0; block < blocks; ++block) {
      const size_t size = kv_encode_paper(grid, {others[i].view, block}, {run.first.view, block}, room);
      bytes += static_cast<double>(size > 0 ? static_cast<int64_t>(size) : 2 * run.shape.numbers());  // else raw
    }
    add_bits(prefix + "paper.cos" + short_number(kCosines[i]) + ".",
             8 * bytes / static_cast<double>(blocks * run.shape.numbers()), 0, report);
  }
  return {};
}

}  // namespace

Status bench_kv_codec(const BenchOptions& options, LogSink& log, BenchReport& report) {
  if (options.shape.empty())
    return invalid_argument("bench kv-codec makes its blocks for a --shape; leave out the model.");
  TRY_ASSIGN(const ModelConfig config, bench_shape(options.shape));
  CodecRun run;
  run.shape = {
      .layers = kv_layers(config), .kv_heads = config.kv_heads, .head_dim = config.head_dim, .dtype = DType::kF16};
  std::vector<int> threads = {1};
  const int most = options.host.threads > 0 ? options.host.threads : usable_cpus();
  if (most > 1) threads.push_back(most);
  run.blocks = std::max<int64_t>(most, kNumbers / run.shape.numbers());
  Prng prng(1);
  for (int32_t i = 0; i < 2 * run.shape.layers * run.shape.channels(); ++i)
    run.scales.push_back(static_cast<float>(std::exp2(4 * prng.uniform() - 2)));
  log.log(LogLevel::kInfo, "kv-codec: " + std::to_string(run.blocks) + " blocks, path " + kv_codec_path().name);
  run.first = noisy(run, nullptr, 1, 2);
  std::vector<Blocks> others;
  for (const double cosine : kCosines)
    others.push_back(noisy(run, &run.first, std::sqrt(1 / (cosine * cosine) - 1), 3 + others.size()));
  const std::string prefix = "kv-codec." + options.shape + ".";
  for (const float step : kSteps) TRY(bench_step(options, run, others, step, threads, prefix, report));
  return bench_paper(run, others, prefix, report);
}

}  // namespace loralei

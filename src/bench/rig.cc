// SPDX-License-Identifier: Apache-2.0
#include "bench/rig.h"

#include <algorithm>
#include <cmath>

#include "bench/generate.h"
#include "ops/probe.h"
#include "sys/process.h"

namespace loralei {
namespace {

constexpr double kTickErrorS = 0.03;  // the system counts in ticks of 10 ms
constexpr int kDropsPerRound = 2;
constexpr int kDeviceBits = 16;

void count_weights(const BaseModelFile& file, Rig& rig) {
  const ExpertConfig& experts = file.config.experts;
  if (experts.count > 0) rig.expert_share = static_cast<double>(experts.used) / experts.count;
  for (const TensorInfo& tensor : file.index.tensors) {
    if (tensor.shape.size() != 2) continue;
    const bool expert = tensor.name.find(".mlp.experts.") != std::string::npos;
    const double numbers =
        static_cast<double>(tensor.shape[0]) * static_cast<double>(tensor.shape[1]) * (expert ? rig.expert_share : 1.0);
    const bool embed = tensor.name == "model.embed_tokens.weight";
    const bool head = tensor.name == "lm_head.weight" || (embed && file.config.tied_head);
    if (head || !embed) {
      Rig::Products& products = rig.products[rig.device_rates ? kDeviceBits : int8_bits(tensor.dtype)];
      (head ? products.head_weights : products.layer_weights) += numbers;
    }
    if (expert) {
      rig.expert_bytes += static_cast<double>(tensor.bytes);
    } else if (!embed || file.config.tied_head) {
      rig.touched_bytes += static_cast<double>(tensor.bytes);
    }
  }
}

// Seconds of a step's products, of so many rows in the layers and in the head,
// at their rates.
double products_s(const Rig& rig, double layer_rows, double head_rows) {
  double seconds = 0;
  for (const auto& [bits, products] : rig.products) {
    const double numbers = products.layer_weights * layer_rows + products.head_weights * head_rows;
    seconds += 2.0 * numbers / (products.gop_s * 1e9);
  }
  return seconds;
}

// K and V that a row reads with so many tokens before it.
double kv_read_bytes(const Rig& rig, double context) {
  if (rig.windows.empty()) return context * rig.kv_bytes_token;
  double tokens = 0;
  for (const int32_t window : rig.windows) tokens += window > 0 ? std::min<double>(window, context) : context;
  return tokens / static_cast<double>(rig.windows.size()) * rig.kv_bytes_token;
}

}  // namespace

std::function<void(int64_t, int64_t)> progress_lines(LogSink& log, std::string what) {
  return [&log, what = std::move(what), last_percent = -20](int64_t done, int64_t total) mutable {
    const int percent = total > 0 ? static_cast<int>(done * 100 / total) : 100;
    if (percent < last_percent + 20) return;
    last_percent = percent;
    log.log(LogLevel::kInfo, what + " " + std::to_string(percent) + " %");
  };
}

Status measure_ceilings(Rig& rig) {
  if (rig.device_rates) {
    TRY_ASSIGN(const DeviceRates rates, rig.device_rates());
    rig.read_gb_s = std::max(rig.read_gb_s, rates.read_gb_s);
    double& gop_s = rig.products[kDeviceBits].gop_s;
    gop_s = std::max(gop_s, rates.product_tflop_s * 1e3);
    rig.upload_gb_s = std::max(rig.upload_gb_s, rates.upload_gb_s);
    return {};
  }
  TRY_ASSIGN(const double read_gb_s, probe_read_gb_s(*rig.probe_pool, rig.clock, {}));
  rig.read_gb_s = std::max(rig.read_gb_s, read_gb_s);
  for (auto& [bits, products] : rig.products)
    products.gop_s = std::max(products.gop_s, probe_int8_gop_s(*rig.probe_pool, rig.clock, 5, bits));
  return {};
}

Result<std::string> choose_model_file(const BenchOptions& options, LogSink& log, EngineHostOptions& host) {
  if (!options.shape.empty()) {
    TRY_ASSIGN(host.model_path, generated_model(options.cache_dir, options.shape, options.quant,
                                                progress_lines(log, "making the model")));
    return options.shape + "." + options.quant;
  }
  std::string label = host.model_path.substr(host.model_path.rfind('/') + 1);
  std::transform(label.begin(), label.end(), label.begin(), [](unsigned char c) { return std::tolower(c); });
  return label;
}

Status open_rig(const BenchOptions& options, int prompt_tokens, LogSink& log, Rig& rig) {
  EngineHostOptions host = options.host;
  TRY_ASSIGN(rig.label, choose_model_file(options, log, host));
  const int batch_most = std::max(options.adapters, *std::max_element(options.batches.begin(), options.batches.end()));
  // With a context that is kept in the cache, room for the answers of the
  // rounds before too.
  host.engine.max_sequences = batch_most + (options.context > 0 ? 1 : 0);
  if (!options.bounded_steps) host.engine.step_time_ns = kStepTimeUnbounded;
  host.engine.max_model_len = prompt_tokens + options.new_tokens + 16;
  TRY_ASSIGN(rig.host, EngineHost::start(host, log, progress_lines(log, "loading")));
  rig.runner = std::make_unique<BatchRunner>(rig.host->engine(), rig.clock);
  const ModelConfig& config = rig.host->file().config;
  rig.vocab = config.vocab;
  rig.threads = rig.host->threads() * host.tensor_parallel;  // of all ranks
  rig.device_rates = host.device.rates;
  if (!rig.device_rates) rig.probe_pool = std::make_unique<ThreadPool>(rig.threads);
  count_weights(rig.host->file(), rig);
  rig.kv_bytes_token =
      2.0 * kv_layers(config) * config.kv_heads * config.head_dim * dtype_info(rig.host->kv_dtype()).block_bytes;
  rig.windows = config.sliding;
  rig.attention_width = static_cast<double>(kv_layers(config)) * config.heads * config.head_dim;
  return measure_ceilings(rig);
}

Result<BenchAdapters> load_adapters(const BenchOptions& options, int count, int files, Rig& rig) {
  if (options.adapter_paths.empty() && options.shape.empty()) {
    return invalid_argument("A bench on your own model needs --adapter PATH; adapters are generated only for --shape.");
  }
  BenchAdapters adapters;
  for (int i = 0; i < count; ++i) {
    adapters.names.push_back("bench-" + std::to_string(i));
    if (!options.adapter_paths.empty()) {
      adapters.paths.push_back(options.adapter_paths[static_cast<size_t>(i) % options.adapter_paths.size()]);
      continue;
    }
    TRY_ASSIGN(std::string path,
               generated_adapter(options.cache_dir, options.shape, options.targets, options.rank, i % files));
    adapters.paths.push_back(std::move(path));
  }
  TRY(rig.runner->load(adapters.names, adapters.paths));
  const EngineStats stats = rig.host->engine().stats();  // memory need not hold all of them
  adapters.bytes_each =
      static_cast<double>(stats.adapter_bytes) / static_cast<double>(stats.adapter_loads - stats.adapter_evictions);
  return adapters;
}

BatchSpec batch_spec(const BenchOptions& options, const Rig& rig, int sequences) {
  BatchSpec spec;
  spec.sequences = sequences;
  spec.prompt_tokens = options.prompts.front();
  spec.new_tokens = options.new_tokens;
  spec.vocab = rig.vocab;
  spec.temperature = options.temperature;
  spec.top_p = options.top_p;
  return spec;
}

double decode_bound_s(const Rig& rig, const BenchOptions& options, int prompt_tokens, int rows, double adapter_bytes) {
  const double context = prompt_tokens + options.new_tokens / 2.0;
  // Of experts those that are chosen where all are chosen alike.
  const double experts = rig.expert_bytes * (1 - std::pow(1 - rig.expert_share, rows));
  const double bytes = rig.touched_bytes + experts + rows * kv_read_bytes(rig, context) + adapter_bytes;
  const double bytes_s = bytes / (rig.read_gb_s * 1e9);
  return std::max(bytes_s, products_s(rig, rows, rows));
}

double prefill_bound_tok_s(const Rig& rig, int prompt_tokens) {
  double seconds = products_s(rig, prompt_tokens, 1);
  if (rig.device_rates) {
    const double pairs = 0.5 * prompt_tokens * (prompt_tokens + 1.0);  // of a token and one it sees
    seconds += 4.0 * pairs * rig.attention_width / (rig.products.at(kDeviceBits).gop_s * 1e9);
  }
  return prompt_tokens / seconds;
}

void add_ceilings(const Rig& rig, BenchReport& report) {
  if (rig.device_rates) {
    report.rows.push_back(summarise("device.read_gb_s", "GB/s", {rig.read_gb_s}));
    report.rows.push_back(summarise("device.product_tflop_s", "Tflop/s", {rig.products.at(kDeviceBits).gop_s * 1e-3}));
    report.rows.push_back(summarise("device.upload_gb_s", "GB/s", {rig.upload_gb_s}));
    // Of memory, beside what was asked for; what was set aside for the driver
    // is an estimate.
    const EngineStats stats = rig.host->engine().stats();
    const auto mb = [](int64_t bytes) { return static_cast<double>(bytes) * 1e-6; };
    report.rows.push_back(summarise("device.context_mb", "MB", {mb(stats.device_before_bytes)}));
    report.rows.push_back(summarise("device.driver_mb", "MB", {mb(stats.device_driver_bytes)}));
    report.rows.back().note = "set aside: " + format_bytes(stats.device_memory.other_bytes);
    return;
  }
  const std::string threads = ".t" + std::to_string(rig.threads);
  report.rows.push_back(summarise("machine.read_gb_s" + threads, "GB/s", {rig.read_gb_s}));
  for (const auto& [bits, products] : rig.products) {
    const std::string name = bits == 8 ? "machine.int8" : "machine.int8_" + std::to_string(bits) + "bit";
    report.rows.push_back(summarise(name + "_gop_s" + threads, "Gop/s", {products.gop_s}));
  }
}

CpuUse cpu_use_now() {
  CpuUse use;
  use.wall_s = SteadyClock().now_s();
  use.machine_s = machine_cpu_s();
  use.own_s = process_cpu_s();
  return use;
}

QuietRounds::QuietRounds(int rounds, double foreign_max, std::function<CpuUse()> use)
    : rounds_(rounds), foreign_max_(foreign_max), use_(std::move(use)) {}

bool QuietRounds::next() {
  if (kept_ >= rounds_) return false;
  ++started_;
  begin_ = use_();
  return true;
}

bool QuietRounds::keep() {
  if (started_ == 0) return false;
  const CpuUse end = use_();
  const double foreign_s = (end.machine_s - begin_.machine_s) - (end.own_s - begin_.own_s);
  const bool quiet = foreign_s <= std::max(kTickErrorS, foreign_max_ * (end.wall_s - begin_.wall_s));
  if (!quiet && dropped_ < kDropsPerRound * rounds_) {
    ++dropped_;
    return false;
  }
  disturbed_ += quiet ? 0 : 1;
  ++kept_;
  return true;
}

void QuietRounds::describe(BenchReport& report, size_t first_row) const {
  if (dropped_ == 0) return;
  std::string note = std::to_string(dropped_) + " rounds dropped for other load";
  if (disturbed_ > 0)
    note += ", " + std::to_string(disturbed_) + " of " + std::to_string(kept_) + " counted all the same: unreliable";
  for (size_t i = first_row; i < report.rows.size(); ++i) {
    BenchRow& row = report.rows[i];
    row.dropped = dropped_;
    row.note += (row.note.empty() ? "" : "; ") + note;
  }
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "engine/layer_assist.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/units.h"
#include "model/layer_program.h"

namespace loralei {
namespace {

static_assert(kMaxAssistHelpers == kAssistHelpersMax);
constexpr double kCorrectEveryS = 0.001;  // of helpers' work
constexpr double kNewest = 0.2;           // that what was seen last counts for

uint32_t modules_of(const Adapter& adapter, const LayerInput& input) {
  uint32_t mask = 0;
  for (const Module module : input.modules)
    if (adapter.pair(input.layer, module).rank > 0) mask |= module_bit(module);
  return mask;
}

// Of models whose layers are alike.
AssistShape shape_of(const ModelConfig& config, int32_t rank_max) {
  AssistShape shape{.layers = config.layers, .rank_max = rank_max};
  for (int index = 0; index < kLayerModules; ++index) {
    const auto module = static_cast<Module>(index);
    shape.ins[static_cast<size_t>(index)] = module_in(config, 0, module);
    shape.outs[static_cast<size_t>(index)] = module_out(config, 0, module);
  }
  return shape;
}

}  // namespace

// --- rates

AssistRates AssistRates::measure(const OpTable& ops, int32_t hidden) {
  constexpr int32_t kRows = 16;
  constexpr int kTimes = 3;  // the fastest counts
  AssistRates rates;
  ThreadPool pool(1);
  OpContext context;
  context.pool = &pool;
  OpLimits limits{.rows_max = kRows, .in_max = hidden, .heads = 1, .kv_heads = 1, .head_dim = 1};
  limits.rank_max = kRanks.back();
  limits.segments_max = 1;
  std::vector<std::byte> scratch(static_cast<size_t>(ops.scratch_bytes(limits)) + 64);
  const auto at = reinterpret_cast<uintptr_t>(scratch.data());
  context.scratch = std::span(scratch).subspan((64 - at % 64) % 64);
  const std::vector<float> x(static_cast<size_t>(kRows) * static_cast<size_t>(hidden), 0.5f);
  std::vector<float> y(x.size());
  for (size_t i = 0; i < kRanks.size(); ++i) {
    const std::vector<uint16_t> factor(static_cast<size_t>(kRanks[i]) * static_cast<size_t>(hidden), 0x3c00);
    const auto* const bytes = reinterpret_cast<const std::byte*>(factor.data());
    const LoraPair pair{
        .a = bytes, .b_t = bytes, .dtype = DType::kBF16, .rank = kRanks[i], .in = hidden, .out = hidden, .scaling = 1};
    const LoraSource source{&pair};
    const LoraSegment segment{0, kRows, 0, 1.0f};
    const LoraTarget target{.y = y.data(), .y_stride = hidden, .sources = &source, .out = hidden};
    const LoraArgs args{
        .x = x.data(), .x_stride = hidden, .in = hidden, .segments = {&segment, 1}, .targets = {&target, 1}};
    double fastest_s = INFINITY;
    for (int time = 0; time < kTimes; ++time) {
      const int64_t begin_ns = SteadyClock().now_ns();
      ops.lora(context, args);
      fastest_s = std::min(fastest_s, static_cast<double>(SteadyClock().now_ns() - begin_ns) * 1e-9);
    }
    rates.multiply_s_[i] = fastest_s / (2.0 * kRows * kRanks[i] * hidden);
  }
  return rates;
}

// Between the ranks that were measured by their logarithms.
double AssistRates::multiply_s(int32_t rank) const {
  const auto above = std::lower_bound(kRanks.begin(), kRanks.end(), rank);
  if (above == kRanks.begin()) return multiply_s_.front();
  if (above == kRanks.end()) return multiply_s_.back();
  const auto index = static_cast<size_t>(above - kRanks.begin());
  const double low = std::log(kRanks[index - 1]), high = std::log(kRanks[index]);
  const double part = (std::log(rank) - low) / (high - low);
  return multiply_s_[index - 1] * (1 - part) + multiply_s_[index] * part;
}

double AssistRates::row_s(const LoraPair& pair) const {
  if (pair.rank == 0) return 0;
  return slowness_ * multiply_s(pair.rank) * pair.rank * (static_cast<double>(pair.in) + pair.out);
}

double AssistRates::rows_per_s(int32_t hidden, int32_t rank) const {
  return 1 / row_s({.rank = rank, .in = hidden, .out = hidden});
}

void AssistRates::correct(double predicted_s, double told_s) {
  slowness_ *= 1 - kNewest + kNewest * std::clamp(told_s / predicted_s, 0.1, 10.0);
}

// --- helpers

Result<std::unique_ptr<LayerAssist>> LayerAssist::create(const AssistSetup& setup, const ModelConfig& config,
                                                         int32_t rank_max, const OpTable& ops, Ledger& ledger,
                                                         const Clock& clock, LogSink& log) {
  std::unique_ptr<LayerAssist> made(new LayerAssist(config, ops));
  AssistOptions options;
  options.program = setup.program;
  options.args = setup.args;
  options.helpers = setup.helpers;
  options.cpus = setup.cpus;
  options.rows_max = kRowsMost;
  options.shape = shape_of(config, rank_max);
  options.ops_table = ops.name;
  const int64_t bytes = assist_layout(options.shape, options.rows_max).bytes * options.helpers;
  auto grant = ledger.try_grant(MemoryUse::kScratch, bytes);
  if (!grant) {
    return too_large("Rows and sums of " + std::to_string(setup.helpers) + " helpers need " + format_bytes(bytes) +
                     " and do not fit the memory budget; lower --assist-helpers or raise --memory-budget.");
  }
  made->grant_ = std::move(*grant);
  TRY_ASSIGN(made->pool_, AssistPool::create(std::move(options), clock, log));
  made->rates_ = AssistRates::measure(ops, config.hidden);
  return made;
}

Result<std::unique_ptr<LayerAssist>> LayerAssist::start(const AssistSetup& setup, const ModelConfig& config,
                                                        int32_t rank_max, const OpTable& ops, Ledger& ledger,
                                                        const Clock& clock, LogSink& log) {
  if (setup.helpers == 0) return std::unique_ptr<LayerAssist>();
  auto made = create(setup, config, rank_max, ops, ledger, clock, log);
  if (made.ok() || setup.asked_for) return made;
  log.log(LogLevel::kWarning, "Helper processes do not start, and cold requests wait for layers instead: " +
                                  made.error().message + " (--assist-helpers 0 does without them and says nothing.)");
  return std::unique_ptr<LayerAssist>();
}

AssistOffer LayerAssist::offer(const Adapter& adapter) {
  if (adapter.shared == nullptr || adapter.saved.any()) return {};
  auto found = known_.find(adapter.version);
  if (found == known_.end()) {
    const auto factors = AssistFactors::make(adapter, *adapter.shared, layers_);
    if (!factors.ok() || !pool_->learn(adapter.version, *factors).ok()) return {};
    found = known_.emplace(adapter.version, Known{.adapter = &adapter}).first;
  }
  Known& known = found->second;
  known.row_s = 0;
  for (size_t i = 0; i + 2 < adapter.pairs.size(); ++i) known.row_s += rates_.row_s(adapter.pairs[i]);
  known.row_s /= layers_;
  const int32_t helpers = pool_->ready_helpers();
  const double group_s = known.row_s / static_cast<double>(kAssistGroups.size());
  known.rows_each =
      std::clamp(static_cast<int32_t>(kWorkPerMessage * kMessageS / std::max(group_s, 1e-9)), 1, kRowsMost);
  return {.rows = helpers * kRowsMost,
          .rows_each = known.rows_each,
          .helpers = helpers,
          .row_s = known.row_s,
          .message_s = kMessageS * static_cast<double>(kAssistGroups.size())};
}

void LayerAssist::forget(AdapterVersionId version) {
  if (known_.erase(version) != 0) pool_->forget(version);
}

Result<AssistTicket> LayerAssist::publish(AdapterVersionId version, const LayerInput& input,
                                          const LoraSegment& segment) {
  const Known& known = known_.at(version);
  const Adapter& adapter = *known.adapter;
  const int32_t helpers = std::max(1, pool_->ready_helpers());
  const int32_t rows_each = std::clamp((segment.row_count + helpers - 1) / helpers, known.rows_each, kRowsMost);
  const AssistTask task{.version = version,
                        .layer = input.layer,
                        .modules = modules_of(adapter, input),
                        .x = input.x + int64_t{segment.row_begin} * input.x_stride,
                        .x_stride = input.x_stride,
                        .rows = segment.row_count};
  if (task.modules == 0) return AssistTicket();
  TRY_ASSIGN(AssistTicket ticket, pool_->publish(task, rows_each));
  double row_s = 0;
  for (const Module module : input.modules) row_s += rates_.row_s(adapter.pair(input.layer, module));
  predicted_s_ += row_s * segment.row_count;
  return ticket;
}

Status LayerAssist::collect(AssistTicket& ticket, AdapterVersionId version, const LayerInput& input,
                            const LoraSegment& segment, std::span<const LoraTarget> targets, OpContext& context,
                            int64_t at_most_ns) {
  const Adapter& adapter = *known_.at(version).adapter;
  const auto add = [&](const LoraTarget& target, Module module, int32_t row_begin, int32_t rows, const float* sums,
                       int64_t stride) {
    const LoraPair& pair = adapter.pair(input.layer, module);
    ops_.lora_add(context, {.sums = sums,
                            .sums_stride = stride,
                            .rows = rows,
                            .pair = &pair,
                            .scale = segment.scale,
                            .y = target.y + int64_t{segment.row_begin + row_begin} * target.y_stride,
                            .y_stride = target.y_stride});
  };
  if (ticket.slices() > 0) {
    TRY(pool_->collect(ticket, std::min(at_most_ns, kLateNs),
                       [&](int32_t row_begin, int32_t rows, Module module, const float* sums, int64_t stride) {
                         for (size_t i = 0; i < targets.size(); ++i)
                           if (input.modules[i] == module) add(targets[i], module, row_begin, rows, sums, stride);
                       }));
    learn_speed();
  }
  // Modules of which the adapter changes the bias alone: nobody has sums for them.
  for (size_t i = 0; i < targets.size(); ++i) {
    const LoraPair& pair = adapter.pair(input.layer, input.modules[i]);
    if (pair.rank == 0 && pair.bias_delta != nullptr)
      add(targets[i], input.modules[i], 0, segment.row_count, nullptr, 0);
  }
  return {};
}

void LayerAssist::learn_speed() {
  if (predicted_s_ < kCorrectEveryS) return;
  const int64_t busy_ns = pool_->stats().busy_ns;
  const double told_s = static_cast<double>(busy_ns - busy_seen_ns_) * 1e-9;
  if (told_s > 0) rates_.correct(predicted_s_, told_s);
  busy_seen_ns_ = busy_ns;
  predicted_s_ = 0;
}

}  // namespace loralei

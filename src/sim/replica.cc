// SPDX-License-Identifier: Apache-2.0
#include "sim/replica.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/units.h"
#include "engine/device_backend.h"

namespace loralei::sim {
namespace {

constexpr int64_t kMemoryParts = 1'000'000;
constexpr int64_t kRoomForAll = int64_t{1} << 50;
constexpr int64_t kBlocksMost = int64_t{1} << 22;  // each takes memory here, too

// The model as the loop sees it: a vocabulary and an end.
ModelConfig config_of(const Profile& profile, int32_t max_model_len) {
  ModelConfig config = fake_config();
  if (profile.model.layers > 0) config.layers = profile.model.layers;
  config.vocab = kSimulatedVocab;
  config.max_position = max_model_len;
  config.eos = {kSimulatedEnd};
  return config;
}

}  // namespace

Result<std::unique_ptr<Replica>> Replica::create(Kernel& kernel, const Profile& profile, SizedAdapters& adapters,
                                                 Faults& faults, const ReplicaOptions& options,
                                                 CostExecutor::NextToken next_token, Sink sink) {
  std::unique_ptr<Replica> replica(new Replica(kernel, std::move(sink)));
  TRY(replica->start(profile, adapters, faults, options, std::move(next_token)));
  return replica;
}

Replica::~Replica() = default;

namespace {

CostExecutor::StepSeconds step_seconds(const Profile& profile, const ReplicaOptions& options) {
  if (options.step_seconds) return options.step_seconds;
  return [&profile](uint64_t, const StepFeatures& features) { return profile.step.predict_s(features); };
}

// To compare with: all adapters are there from the start, whatever room that takes.
bool is_cached(const EngineOptions& engine) { return engine.cold_start == ColdStart::kCached; }

TransferCost at_once(TransferCost cost) {
  cost.seconds = 0;
  cost.bytes_per_second = 1e18;
  return cost;
}

TransferCost link_of(const Profile& profile, const EngineOptions& engine) {
  return is_cached(engine) ? at_once(*profile.link) : *profile.link;
}

TransferCost disk_of(const Profile& profile, const ReplicaOptions& options) {
  const TransferCost disk = profile.disk.value_or(TransferCost{.bytes_per_second = 1});  // simulate() asks for it
  return options.adapters_in_memory || is_cached(options.engine) ? at_once(disk) : disk;
}

// As many as are stated, where the profile says what they take and a way asks for them.
SimulatedHelpers helpers_of(const Profile& profile, const EngineOptions& engine) {
  const bool wanted = engine.cold_start == ColdStart::kAuto || engine.cold_start == ColdStart::kAssisted;
  if (!wanted || !profile.assist || !profile.link || profile.model.layers == 0) return {};
  return {std::clamp(engine.assist_helpers, 0, kMaxAssistHelpers), *profile.assist};
}

}  // namespace

Status Replica::start(const Profile& profile, SizedAdapters& adapters, Faults& faults, const ReplicaOptions& options,
                      CostExecutor::NextToken next_token) {
  const EngineOptions& engine = options.engine;
  const auto stated = [](int64_t bytes, int64_t otherwise) { return bytes > 0 ? bytes : otherwise; };
  block_bytes_ = profile.model.kv_bytes_per_token * kKvBlockTokens;
  const int64_t blocks = stated(engine.kv_cache_bytes, profile.memory.kv_bytes) / block_bytes_;
  if (blocks < 1) return too_large("the KV cache needs at least " + std::to_string(block_bytes_) + " bytes");
  if (blocks > kBlocksMost) {
    return too_large("the KV cache would have " + std::to_string(blocks) + " blocks of " +
                     std::to_string(kKvBlockTokens) + " tokens; " + std::to_string(kBlocksMost) +
                     " are simulated at most: state a smaller --kv-cache-memory");
  }
  const int64_t longest = std::min<int64_t>(
      stated(engine.max_model_len, stated(profile.model.max_tokens, kMaxModelLen)), blocks * kKvBlockTokens);
  max_model_len_ = static_cast<int32_t>(std::min<int64_t>(longest, kMaxModelLen));
  cached_ = is_cached(engine);
  const bool all_fit = cached_ && profile.link;
  const int64_t adapter_bytes = all_fit ? kRoomForAll : stated(engine.adapter_bytes, profile.memory.adapter_bytes);
  const int64_t host_bytes = all_fit        ? kRoomForAll
                             : profile.link ? stated(engine.host_adapter_bytes, profile.memory.host_adapter_bytes)
                                            : adapter_bytes;
  TRY(make_ledger(engine, host_bytes, profile.link ? 0 : blocks * block_bytes_));
  const ModelConfig config = config_of(profile, max_model_len_);
  EngineOptions limited = engine;
  limited.max_model_len = max_model_len_;
  limited.speculate = Speculation::kOff;
  const ModelLimits limits = step_limits(limited, config);
  make_executor(profile, options, limits, adapter_bytes, faults, std::move(next_token));
  const TransferCost disk = disk_of(profile, options);
  loads_ = std::make_unique<SimulatedLoads>(kernel_, disk, adapters, faults,
                                            [this](LoadDone&& done) { deliver(std::move(done)); });
  blocks_ = blocks;
  host_bytes_ = host_bytes;
  LoopParts parts;
  parts.executor = executor_.get();
  BlockPool::Counted counted;  // a device's memory is another
  if (!profile.link) counted = {.ledger = ledger_.get(), .block_bytes = block_bytes_, .capacity = blocks_most()};
  parts.kv = KvCache::create_ids(static_cast<int32_t>(blocks), engine.prefix_cache, clock_, counted);
  parts.kv_eviction = engine.kv_eviction;
  parts.kv_utility = engine.kv_utility;
  parts.joint_kv = joint_;
  parts.adapter_floor_bytes = host_bytes;
  parts.config = config;
  parts.eos = config.eos;
  parts.ledger = ledger_.get();
  parts.clock = &clock_;
  parts.log = &log_;
  parts.on_step = options.on_step;
  parts.start_load = [this](LoadJob&& job) { return loads_->start(std::move(job)); };
  parts.set_budget = [this](int64_t budget_bytes, const RoomMaker& room) { return apply_memory(budget_bytes, room); };
  parts.registry.loads_max = disk.at_once;
  parts.registry.rank_max = limits.rank_max;
  parts.max_model_len = max_model_len_;
  parts.max_sequences = std::min({std::max(1, engine.max_sequences), limits.rows_max, limits.logits_rows_max});
  parts.step_tokens = std::clamp(engine.step_tokens, parts.max_sequences, limits.rows_max);
  parts.step_time_ns = engine.step_time_ns;
  parts.adapter_keeping = engine.adapter_keeping;
  parts.cold_start = engine.cold_start;
  parts.scheduling = engine.scheduling;
  parts.foresee_output = options.foresee_output;
  parts.kv_block_bytes = block_bytes_;
  parts.prefix_cache = engine.prefix_cache;
  parts.speculate = Speculation::kOff;
  parts.queued = &queued_;
  loop_ = std::make_unique<EngineLoop>(std::move(parts));
  return {};
}

void Replica::make_executor(const Profile& profile, const ReplicaOptions& options, const ModelLimits& limits,
                            int64_t adapter_bytes, Faults& faults, CostExecutor::NextToken next_token) {
  CostExecutor::StepSeconds seconds = step_seconds(profile, options);
  auto tier = profile.link ? std::make_unique<LinkTier>(kernel_, link_of(profile, options.engine), adapter_bytes,
                                                        profile.model.layers, faults)
                           : nullptr;
  executor_ = std::make_unique<CostExecutor>(kernel_, limits, std::move(seconds), std::move(next_token),
                                             std::move(tier), helpers_of(profile, options.engine));
  executor_->on_done([this](StepDone&& done) { deliver(std::move(done)); });
  if (DeviceTier* const device = executor_->device_tier())
    device->on_upload([this](UploadDone&& done) { deliver(std::move(done)); });
}

// Without a device of its own the memory is one, of adapters and KV.
Status Replica::make_ledger(const EngineOptions& engine, int64_t adapter_bytes, int64_t kv_bytes) {
  joint_ = engine.memory_sharing == MemorySharing::kJoint && kv_bytes > 0;
  const int64_t shares = adapter_bytes + kv_bytes;
  if (joint_ && engine.memory_budget_bytes > 0 && engine.memory_budget_bytes < shares) {
    return too_large("--memory-budget " + format_bytes(engine.memory_budget_bytes) + " is less than the " +
                     format_bytes(shares) + " that KV and adapters have for sure; raise it or lower these");
  }
  ledger_ = std::make_unique<Ledger>(std::max({int64_t{1}, shares, joint_ ? engine.memory_budget_bytes : 0}));
  if (!joint_) ledger_->set_cap(MemoryUse::kAdapters, adapter_bytes);
  return {};
}

int32_t Replica::blocks_most() const {
  return static_cast<int32_t>(std::min(kBlocksMost, ledger_->budget_bytes() / block_bytes_));
}

void Replica::submit(Submit request) {
  outstanding_ += request.choices;
  queued_.fetch_add(1);
  deliver(Arrival{std::move(request), clock_.now_ns()});
}

// A budget is a millionth of what there was at the start, so that a share is whole bytes.
void Replica::set_memory(uint64_t ticket, double share) {
  deliver(BudgetReady{MemoryCommand{ticket, std::max<int64_t>(1, static_cast<int64_t>(share * kMemoryParts))}, {}});
}

void Replica::sleep(int64_t ns) {
  clock_.sleep(ns);
  wake();
}

Status Replica::apply_memory(int64_t parts, const RoomMaker& room) {
  const int64_t least = kv_blocks_for(max_model_len_);
  const int64_t blocks = std::max(least, blocks_ * parts / kMemoryParts);
  TRY(room.resize_kv(static_cast<int32_t>(blocks)));
  const int64_t adapter_bytes = host_bytes_ / kMemoryParts * parts;
  if (!joint_) ledger_->set_cap(MemoryUse::kAdapters, adapter_bytes);
  room.shrink_adapters(adapter_bytes);
  return {};
}

void Replica::deliver(Message message) {
  messages_.push_back(std::move(message));
  wake();
}

void Replica::wake() {
  if (std::exchange(turn_planned_, true)) return;
  kernel_.after(0, EventOrder::kDecision, [this] {
    turn_planned_ = false;
    turn();
  });
}

// As the engine's thread: what has arrived, then a step or the time to look again.
void Replica::turn() {
  ++turns_;
  loop_->receive(messages_, output_);
  emit();
  if (loop_->in_flight()) return;
  const Next next = loop_->next(clock_.now_ns(), output_);
  emit();
  if (next.step != nullptr) return executor_->start(*next.step);
  if (next.wake_at_ns == Next::kNever) return;
  const int64_t wake_at_ns = std::max(next.wake_at_ns - clock_.slept_ns(), kernel_.now_ns());
  kernel_.at(wake_at_ns, EventOrder::kDecision, [this, turn = turns_] {
    if (turn == turns_ && !turn_planned_) this->turn();
  });
}

void Replica::emit() {
  if (output_.empty()) return;
  for (const TokenEvent& event : output_.tokens) outstanding_ -= event.end != EndReason::kNone ? 1 : 0;
  sink_(output_);
  output_.adapters.clear();
  output_.replies.clear();
  output_.tokens.clear();
}

bool Replica::holds_something() const {
  const EngineStats now = stats();
  if (now.running + now.waiting + now.waiting_for_adapter + now.held > 0 || now.kv_blocks_used > 0) return true;
  if (cached_) return executor_->held_on_device() > executor_->copies_on_device();  // each once, pinned in memory
  return now.idle_adapter_bytes != now.adapter_bytes || executor_->held_on_device() > 0;
}

void Replica::check() const {
  loop_->check();
  CHECK(joint_ || ledger_->used_bytes(MemoryUse::kAdapters) <= host_bytes_);  // S6, and of the device:
  CHECK(executor_->held_adapter_bytes() <= executor_->adapter_bytes());
}

void Replica::add_to(LoadSample& sample) const {
  const EngineStats now = stats();
  sample.running += now.running;
  sample.waiting += now.waiting + now.waiting_for_adapter;
  sample.kv_used_bytes += now.kv_blocks_used * block_bytes_;
  sample.kv_cached_bytes += now.kv_blocks_cached * block_bytes_;
  const bool on_device = executor_->device_tier() != nullptr;
  const int64_t bytes = on_device ? executor_->adapter_bytes() : now.adapter_bytes;
  const int64_t used = on_device ? executor_->held_adapter_bytes() : bytes - now.idle_adapter_bytes;
  sample.adapters_used_bytes += used;
  sample.adapters_idle_bytes += bytes - used;
}

EngineStats Replica::stats() const {
  EngineStats stats;
  loop_->fill_stats(stats);
  return stats;
}

}  // namespace loralei::sim

// SPDX-License-Identifier: Apache-2.0
#include "engine/loop.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "engine/device_backend.h"

namespace loralei {
namespace {

constexpr int64_t kGatherNsMax = 50'000'000;
constexpr int64_t kGatherShare = 16;  // of the last step's duration
// An idle engine wakes while memory is on its way back, and while nothing can
// be computed.
constexpr int64_t kAskAgainNs = 1'000'000'000;

void fill_shares(const Ledger& ledger, int64_t adapter_bytes, MemoryShares& shares) {
  shares.memory_budget_bytes = ledger.budget_bytes();
  shares.weights_bytes = ledger.used_bytes(MemoryUse::kWeights);
  shares.adapter_bytes = adapter_bytes;
  shares.adapter_bytes_max = std::min(ledger.cap_bytes(MemoryUse::kAdapters), ledger.budget_bytes());
  shares.kv_bytes = ledger.used_bytes(MemoryUse::kKv);
  shares.scratch_bytes = ledger.used_bytes(MemoryUse::kScratch);
  shares.request_bytes = ledger.used_bytes(MemoryUse::kRequests);
  shares.other_bytes = ledger.used_bytes(MemoryUse::kOther);
}

}  // namespace

EngineLoop::EngineLoop(LoopParts parts)
    : parts_(std::move(parts)),
      tier_(parts_.executor->device_tier()),
      kv_room_(kv_room_parts()),
      registry_(*parts_.ledger, *parts_.clock, *parts_.log, registry_options(), parts_.start_load),
      planner_(plan_options()),
      times_(parts_.step_time_ns, parts_.step_tokens),
      scheduling_(parts_.scheduling,
                  {.first_fit = parts_.scheduling.first_fit,
                   .bytes_per_token = kv_bytes_per_token(),
                   .tokens_total = tokens_total(),
                   .sequences_max = parts_.max_sequences},
                  times_),
      sampler_(parts_.pool, parts_.config.vocab),
      masks_(*parts_.clock, parts_.pool, parts_.requests) {
  const ModelLimits& limits = parts_.executor->limits();
  CHECK(parts_.max_sequences <= std::min(parts_.step_tokens, limits.logits_rows_max) &&
        parts_.step_tokens <= limits.rows_max);
  CHECK(!keeps_states() || parts_.max_sequences <= parts_.kv->states().slots);
  samples_.reserve(static_cast<size_t>(limits.logits_rows_max));
  if (scheduling_.predicts() && parts_.lengths) scheduling_.lengths().put_back(LengthsState(*parts_.lengths));
  lengths_kept_ns_ = parts_.clock->now_ns();
  parts_.kv->evict_by(
      parts_.kv_eviction, [this] { return kv_worth(); }, parts_.kv_utility);
  if (tier_ != nullptr) tier_->choose_leaving([this](std::vector<AdapterVersionId>& idle) { choose_leaving(idle); });
}

EngineLoop::~EngineLoop() {
  if (tier_ != nullptr) tier_->choose_leaving({});
  cached_.clear();
  for (auto& [id, request] : requests_) {  // before the registry goes
    request->hold.release();
    request->pins.clear();
    request->claims.clear();
  }
}

PlanOptions EngineLoop::plan_options() const {
  const ModelLimits& limits = parts_.executor->limits();
  return {.step_tokens = parts_.step_tokens,
          .logits_rows = limits.logits_rows_max,
          .max_sequences = parts_.max_sequences,
          .segments = limits.segments_max};
}

RegistryOptions EngineLoop::registry_options() {
  RegistryOptions options = parts_.registry;
  options.keep = KeepOrder(parts_.adapter_keeping.policy, parts_.adapter_keeping.weights);
  options.beside = kv_room_.joint() ? &kv_room_ : nullptr;
  options.early = loads_early();
  options.foresees = parts_.adapter_keeping.prefetch == AdapterPrefetch::kHistogram;
  options.dropped = [this](AdapterVersionId version) {
    parts_.executor->withdraw(version);
    ranks_.withdraw(version);
    if (tier_ == nullptr) return;
    prefetched_.erase(version);
    on_device_.erase(version);
    cached_.erase(version);
    tier_->forget(version);
    arriving_changed_ = true;
  };
  return options;
}

Next EngineLoop::next(int64_t now_ns, EngineOutput& output) {
  CHECK(!in_flight_);
  if (gathers(now_ns)) return {.wake_at_ns = gather_until_ns_};
  if (!running_.empty()) rest_between_steps();
  next_begin_ns_ = parts_.clock->now_ns();
  output_ = &output;
  go_on_without_disk();
  look_early(next_begin_ns_);
  make_masks();
  computed_ = plan();
  forget_ended();
  collect_replies();
  if (!computed_ || now_ns - adapters_told_ns_ >= kAdapterNewsNs) tell_adapters(output);
  output_ = nullptr;
  tells_later_ = parts_.kv->tell_more();
  if (!computed_) {
    const bool rested = rest_idle() || keep_idle();
    return {.wake_at_ns = rested ? now_ns : wake_at_ns(now_ns)};
  }
  return {.step = &begin_step()};
}

// The coming step waits a moment for company while weights are streamed and nothing runs,
// because a pass that has begun keeps whoever comes too late waiting for all of it. There
// is something to compute then, and room for more.
bool EngineLoop::gathers(int64_t now_ns) {
  const bool company = !admission_.empty() && admission_.size() < static_cast<size_t>(parts_.max_sequences);
  const bool waits = company && running_.empty() && parts_.executor->streams();
  if (waits && gather_until_ns_ == 0) {
    const auto step_ns = static_cast<int64_t>(counters_.step_ms_last * 1e6);
    gather_until_ns_ = now_ns + std::min(kGatherNsMax, step_ns / kGatherShare);
  }
  if (waits && now_ns < gather_until_ns_) return true;
  gather_until_ns_ = 0;
  return false;
}

int64_t EngineLoop::wake_at_ns(int64_t now_ns) const {
  if (!idle()) return now_ns;
  constexpr int64_t kKeepAgainNs = 50'000'000;  // a disk has taken what was waiting by then
  constexpr int64_t kTellAgainNs = 20'000'000;  // who is told, too
  int64_t ask_again_ns = stuck_ || !ready_.ok() || memory_moves_ ? now_ns + kAskAgainNs : Next::kNever;
  if (disk_waited_for_) ask_again_ns = std::min(ask_again_ns, disk_gives_up_ns());
  if (keeps_later_) ask_again_ns = std::min(ask_again_ns, now_ns + kKeepAgainNs);
  if (tells_later_) ask_again_ns = std::min(ask_again_ns, now_ns + kTellAgainNs);
  return std::min({ask_again_ns, registry_.foresees_at_ns(), looks_early_ns_});
}

bool EngineLoop::idle() const {
  return all_wait_for_arrivals() && (admission_.empty() || stalled_) && forming_.empty() && !arriving_changed_ &&
         !needs_round();
}

void EngineLoop::end_all(std::vector<Message>& messages, EngineOutput& output) {
  for (const Message& message : messages) {
    if (const auto* done = std::get_if<StepDone>(&message)) finish(*done, output);
  }
  CHECK(!in_flight_);
  output_ = &output;
  for (std::vector<Message>* arrived : {&kept_, &messages}) {
    for (Message& message : *arrived) {
      if (auto* ready = std::get_if<BudgetReady>(&message); ready != nullptr && ready->prepared.ok())
        ready->prepared = Error{ErrorCode::kUnavailable, "the server is shutting down"};
      take(message);
    }
    arrived->clear();
  }
  end_requests(EndReason::kCancelled, {});
  forget_ended();
  registry_.fail_outstanding({ErrorCode::kUnavailable, "the server is stopping"});
  collect_replies();
  keep_lengths(0);
  keep_all();
  tell_adapters(output);
  output_ = nullptr;
}

// If there is anything new. A copy of what was learned: about a millisecond where
// adapters are many.
void EngineLoop::keep_lengths(int64_t at_most_every_ns) {
  if (!parts_.keep_lengths || scheduling_.lengths().answers() == lengths_kept_) return;
  const int64_t now_ns = parts_.clock->now_ns();
  if (now_ns - lengths_kept_ns_ < at_most_every_ns) return;
  lengths_kept_ns_ = now_ns;
  lengths_kept_ = scheduling_.lengths().answers();
  parts_.keep_lengths(scheduling_.lengths().state());
}

void EngineLoop::fill_stats(EngineStats& stats) const {
  stats = counters_;
  stats.steps = steps_;
  stats.ready = ready_;
  const ModelTimes times = parts_.executor->times();
  stats.products_s = static_cast<double>(times.products_ns) * 1e-9;
  stats.attention_s = static_cast<double>(times.attention_ns) * 1e-9;
  stats.lora_s = static_cast<double>(times.lora_ns) * 1e-9;
  stats.disk_s = static_cast<double>(times.disk_ns) * 1e-9;
  stats.disk_read_bytes = times.disk_read_bytes;
  stats.expert_hits = times.expert_hits;
  stats.expert_misses = times.expert_misses;
  stats.collective_s = static_cast<double>(times.collective_ns) * 1e-9;
  stats.collective_bytes = times.collective_bytes;
  stats.streamed_bytes = parts_.executor->streamed_bytes();
  stats.running = static_cast<int32_t>(running_.size());
  stats.waiting = std::max(0, static_cast<int32_t>(admission_.size() + forming_.size()) - lacking_);
  stats.held = parked_;
  stats.waiting_for_adapter = static_cast<int32_t>(cold_.size()) + lacking_;
  const SizeQueues& queues = scheduling_.queues();
  const Executor::AssistState assist = parts_.executor->assist_state();
  stats.cold_starts.helpers = assist.helpers;
  stats.cold_starts.helper_restarts = assist.restarts;
  const Executor::PaceState pace = parts_.executor->pace();
  stats.paced_as = pace.profile;
  stats.paced_late_steps = pace.late_steps;
  stats.paced_late_s = pace.late_s;
  stats.queue_count = queues.count();
  for (int32_t queue = 0; queue < queues.count(); ++queue) {
    QueueGauges& gauges = stats.queues[static_cast<size_t>(queue)];
    gauges.waiting = static_cast<int32_t>(admission_.size(queue));
    if (scheduling_.has_queues()) gauges.quota_tokens = queues.quota(queue);
    gauges.taken_tokens = queues.taken(queue);
  }
  const KvCache& kv = *parts_.kv;
  stats.kv_blocks_total = text_blocks(kv.total());
  stats.kv_blocks_cached = text_blocks(kv.cached());
  stats.kv_blocks_used = text_blocks(kv.leased());
  stats.kv_coded = kv.coded();
  stats.kv_states = kv.state_counts();
  if (parts_.kv_disk != nullptr) stats.kv_disk = parts_.kv_disk->stats();
  stats.kv_restored_blocks = kv.restored_blocks();
  stats.kv_block_times = kv.times();
  stats.kv_floor_bytes = kv_room_.floor_blocks() * parts_.kv_block_bytes;
  stats.adapter_floor_bytes = kv_room_.adapter_floor_bytes();
  stats.given = kv_room_.given();
  fill_shares(*parts_.ledger, registry_.bytes(), stats);
  stats.device = parts_.device;
  if (parts_.device_ledger != nullptr)
    fill_shares(*parts_.device_ledger, parts_.executor->adapter_bytes(), stats.device_memory);
  if (const DeviceOverhead* const overhead = parts_.device_overhead) {
    stats.device_before_bytes = overhead->before_bytes;
    stats.device_driver_bytes = overhead->since_bytes.load(std::memory_order_relaxed);
  }
  stats.length_errors = scheduling_.lengths().errors();
  const RegistryCounters counts = registry_.counters();
  for (size_t i = 0; i < kWaitCauses; ++i) stats.waited_s[i] = static_cast<double>(waits_.totals_ns()[i]) * 1e-9;
  stats.idle_adapter_bytes = registry_.idle_bytes();
  stats.adapter_loads = counts.loads;
  stats.adapter_load_bytes = counts.load_bytes;
  stats.adapter_load_failures = counts.failures;
  stats.adapter_evictions = counts.evictions;
  stats.adapter_loads_ahead = counts.loads_ahead;
  stats.adapter_loads_ahead_used = counts.loads_ahead_used;
  if (tier_ == nullptr) return;
  const DeviceTierStats tier = tier_->stats();
  stats.adapter_uploads = static_cast<uint64_t>(tier.uploads);
  stats.adapter_upload_bytes = tier.upload_bytes;
  stats.adapter_upload_s = static_cast<double>(tier.upload_ns) * 1e-9;
}

namespace {

AdapterTier tier_of(AdapterState state) {
  switch (state) {
    case AdapterState::kSource:
      return AdapterTier::kSource;
    case AdapterState::kLoading:
      return AdapterTier::kLoading;
    case AdapterState::kResident:
      return AdapterTier::kResident;
    case AdapterState::kFailed:
      return AdapterTier::kFailed;
  }
  return AdapterTier::kSource;
}

AdapterStatus status_of(const RegistryView& view, int32_t waiting, const std::set<AdapterVersionId>& on_device,
                        int64_t now_ns) {
  AdapterStatus status;
  status.source = *view.source;
  status.tier = tier_of(view.state);
  status.bytes = view.bytes;
  status.users = view.users;
  status.waiting = waiting;
  status.uses = view.uses;
  status.recent_uses = view.recent_uses->count(now_ns);
  status.load_s = view.load_s;
  status.keep_score = view.keep_score;
  status.left = *view.left;
  status.pinned = view.pinned;
  if (view.error != nullptr) status.error = view.error->message;
  if (view.adapter == nullptr) return status;
  status.version = digest_hex(view.adapter->digest);
  status.on_device = on_device.count(view.adapter->version) != 0;
  status.rank = view.adapter->rank_max;
  status.report = view.adapter->report;
  status.modules.assign(view.adapter->modules.begin(), view.adapter->modules.end());
  status.change_norm = view.adapter->change_norm;
  return status;
}

}  // namespace

void EngineLoop::tell_adapters(EngineOutput& output) {
  adapters_told_ns_ = parts_.clock->now_ns();
  registry_.take_changes(
      [&](AdapterSourceId source) {
        scheduling_.lengths().forget(source);
        output.adapters.push_back({source, nullptr});
      },
      [&](const RegistryView& view) {
        const auto found = waiting_by_source_.find(view.source->id);
        const int32_t waiting = found == waiting_by_source_.end() ? 0 : found->second;
        output.adapters.push_back({view.source->id, std::make_shared<const AdapterStatus>(
                                                        status_of(view, waiting, on_device_, adapters_told_ns_))});
      });
}

// Leases are there while choices run, or while the device's are on their way; of one that
// waits there is nothing.
void EngineLoop::check_leases(const Request& request) const {
  const auto runs = [](const auto& choice) { return choice->phase == SeqPhase::kRunning; };
  CHECK(request.running == std::count_if(request.choices.begin(), request.choices.end(), runs));
  const bool leased = request.running > 0 || request.arriving;
  CHECK(!request.arriving || (request.ready && request.running == 0 && request.hold));
  CHECK(!request.early || (request.running > 0 && (tier_ == nullptr || request.hold)));
  CHECK(!request.provisional || tier_ == nullptr);
  CHECK(!request.alone || request.early || request.arriving || request.provisional);
  CHECK(request.pins.size() == (leased ? request.sources.size() : 0));
  CHECK(!request.hold || leased);
  CHECK(tier_ == nullptr || request.running == 0 || request.segments.empty() || request.hold);
  CHECK((cold_.count(request.order) == 1) == !request.ready);
  CHECK(request.claims.empty() || request.claims.size() == request.sources.size());
}

void EngineLoop::check() const {
  std::vector<const KvLease*> leases;
  const std::set<const Sequence*> running(running_.begin(), running_.end());
  CHECK(running.size() == running_.size());
  const std::set<const Sequence*> forming(forming_.begin(), forming_.end());
  CHECK(forming.size() == forming_.size());
  admission_.check();
  check_clients();
  for (const AdapterVersionId version : on_device_) CHECK(tier_ != nullptr && tier_->has(version));
  // Who is set aside waits for the device, or for room that a load waits for.
  CHECK(admission_.set_aside() == 0 || tier_ != nullptr || registry_.loading() || needs_round());
  planner_.check();
  const auto older = [](const auto* a, const auto* b) { return a->order < b->order; };
  CHECK(std::is_sorted(forming_.begin(), forming_.begin() + static_cast<int64_t>(first_dear()), older) &&
        std::is_sorted(running_.begin(), running_.end(), older));
  size_t count = 0, cold = 0, waiting = 0, waiting_formed = 0, waiting_rows = 0;
  int32_t parked = 0, lacking = 0, queued = 0;
  for (const auto& [id, request] : requests_) {
    int32_t unfinished = 0;
    cold += request->ready ? 0 : 1;
    lacking += request->lacks ? 1 : 0;
    queued += request->queued ? 1 : 0;
    CHECK(request->wait.cause() == wait_of(*request));
    check_leases(*request);
    CHECK(request->disk_keys.empty() || (request->ready && !request->started));
    for (const auto& sequence : request->choices) {
      ++count;
      CHECK(sequences_.at(sequence->id) == sequence.get());
      const bool waits = sequence->phase == SeqPhase::kWaiting;
      CHECK(admission_.has(sequence->waiting) == waits);
      waiting += waits ? 1 : 0;
      waiting_formed += waits && sequence->grammar != nullptr ? 1 : 0;
      waiting_rows += waits ? sequence->text().size() : 0;
      CHECK(forming.count(sequence.get()) == (sequence->phase == SeqPhase::kForming ? 1u : 0u));
      CHECK(sequence->phase != SeqPhase::kWaiting || !waits_for_mask(*sequence));
      CHECK(running.count(sequence.get()) == (sequence->phase == SeqPhase::kRunning ? 1u : 0u));
      CHECK(sequence->phase == SeqPhase::kRunning || sequence->lease.blocks().empty());
      CHECK(!sequence->chilled || (!request->ready && sequence->phase == SeqPhase::kHeld));
      CHECK(request->ready || sequence->phase == SeqPhase::kHeld || sequence->phase == SeqPhase::kEnded);
      CHECK(sequence->admitted ? sequence->computed <= static_cast<int32_t>(sequence->tokens.size())
                               : sequence->tokens.empty());
      CHECK(!sequence->parked || (request->held && sequence->phase == SeqPhase::kHeld));
      CHECK(!request->held || sequence->phase == SeqPhase::kHeld || sequence->phase == SeqPhase::kEnded);
      parked += sequence->parked ? 1 : 0;
      unfinished += sequence->phase == SeqPhase::kEnded ? 0 : 1;
      leases.push_back(&sequence->lease);
    }
    CHECK(unfinished == request->unfinished && unfinished > 0);
  }
  CHECK(waiting == admission_.size() && waiting_formed == waiting_formed_);
  CHECK(static_cast<int64_t>(waiting_rows) == waiting_rows_);
  CHECK(queued == queued_);
  CHECK(parked == parked_ && count == sequences_.size() && cold == cold_.size());
  CHECK(lacking == lacking_);
  CHECK(!stuck_);
  CHECK(running_.size() <= static_cast<size_t>(parts_.max_sequences));
  for (const Sequence* sequence : running_) {
    CHECK(!keeps_states() || in_flight_ || sequence->lease.state_at() == sequence->computed);
  }
  parts_.kv->check(leases);
  registry_.check();
  parts_.ledger->check();
}

}  // namespace loralei

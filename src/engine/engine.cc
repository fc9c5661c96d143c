// SPDX-License-Identifier: Apache-2.0
// The engine as a thread: EngineLoop and Executor between an Inbox and an Outbox.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/units.h"
#include "engine/kv_on_disk.h"
#include "engine/loop.h"
#include "engine/memory_plan.h"
#include "engine/start.h"
#include "engine/validate.h"
#include "model/linear_state.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr size_t kOutboxCapacity = 1 << 16;    // events; the engine pauses when the consumer is that far behind
constexpr int32_t kMaxPendingCommands = 1024;  // without a reply
// Rows of logits of a step for prompts' log-probabilities, however few the sequences, and
// what they may take.
constexpr int64_t kPromptLogitsRows = 128, kPromptLogitsBytes = 32 * kMiB;

// One more for loads ahead, which keep no other waiting for its turn.
int load_threads(const EngineOptions& options) {
  return std::max(1, options.adapter_load_threads) +
         (options.adapter_keeping.prefetch == AdapterPrefetch::kHistogram ? 1 : 0);
}

class EngineImpl final : public Engine {
 public:
  // `fetched`: what is to be called with blocks from disk.
  EngineImpl(EngineParts&& parts, LoopParts&& loop_parts, int64_t max_model_len,
             std::function<void(KvFetched&&)>& fetched)
      : executor_(std::move(parts.executor)),
        tier_(executor_->device_tier()),
        clock_(*parts.clock),
        options_(parts.options),
        fingerprint_(std::move(parts.fingerprint)),
        memory_(std::move(parts.memory)),
        before_stop_(std::move(parts.before_stop)),
        requests_(std::move(parts.requests)),
        max_model_len_(max_model_len),
        header_options_{.strict = loop_parts.registry.strict, .int8 = loop_parts.registry.int8},
        rank_max_(loop_parts.registry.rank_max),
        recorded_(loop_parts.on_step != nullptr),
        kv_events_(loop_parts.kv_events),
        outbox_(kOutboxCapacity),
        loads_(
            load_threads(parts.options), std::move(parts.adapters),
            [this](LoadDone&& done) { inbox_.put(std::move(done)); }, &beats_,
            [this](LoadBegun&& begun) { inbox_.put(std::move(begun)); }) {
    loop_parts.executor = executor_.get();
    loop_parts.queued = &queued_;
    loop_parts.start_load = [this](LoadJob&& job) { return loads_.start(std::move(job)); };
    loop_parts.set_budget = [this](int64_t budget_bytes, const RoomMaker& room) {
      const Status applied = memory_.apply(budget_bytes, room);
      memory_changes_.store(false);  // who has the reply may ask for the next change
      return applied;
    };
    loop_parts.watch_memory = memory_.watch;
    fetched = [this](KvFetched&& message) { inbox_.put(std::move(message)); };
    executor_->on_done([this](StepDone&& done) { inbox_.put(std::move(done)); });
    loop_ = std::make_unique<EngineLoop>(std::move(loop_parts));
    refresh_stats();
    if (tier_ != nullptr) tier_->on_upload([this](UploadDone&& done) { inbox_.put(std::move(done)); });
    requests_->on_returned([this] { inbox_.put(RoomChanged{}); });
    thread_ = std::thread([this] { run(); });
  }
  ~EngineImpl() override { stop(); }

  Status submit(Submit request) override {
    if (draining_.load() && !request.follows)
      return Error{ErrorCode::kUnavailable, "the server is shutting down and takes no new requests"};
    TRY(health());
    TRY(validate_submit(request, {.max_model_len = max_model_len_, .kv_sharing = options_.kv_sharing}));
    if (queued_.fetch_add(1) >= options_.max_queued) {
      queued_.fetch_sub(1);
      return Error{ErrorCode::kOverloaded,
                   std::to_string(options_.max_queued) + " requests are waiting already; try again later"};
    }
    const std::lock_guard lock(stop_mutex_);  // nothing is accepted after the thread's last look
    if (stopped_) {
      queued_.fetch_sub(1);
      return Error{ErrorCode::kUnavailable, "the server has stopped"};
    }
    inbox_.put(Arrival{std::move(request), clock_.now_ns()});
    return {};
  }

  using Engine::cancel;
  void cancel(RequestId id, int32_t choice) override { inbox_.put(Cancel{id, choice}); }

  void hold(RequestId id, bool held) override { inbox_.put(Hold{id, held}); }

  Status command(AdapterCommand command) override { return pass_on(std::move(command)); }
  Status command(QueuesCommand command) override { return pass_on(command); }
  Status command(KvCommand command) override { return pass_on(command); }
  Status command(AppCommand command) override { return pass_on(std::move(command)); }

  Status check_adapter(const AdapterSourceSpec& source) override {
    HeaderCheck check = check_headers(loads_.source(), source, header_options_, rank_max_);
    const Status status = check.status.ok() ? Status() : Status(not_loaded(check.status.error(), source.label));
    const std::lock_guard lock(stop_mutex_);
    if (!stopped_) inbox_.put(std::move(check));
    return status;
  }

  Status command(MemoryCommand command) override {
    if (command.budget_bytes <= 0) return invalid_argument("the memory budget must be a positive number of bytes");
    if (!memory_.apply) return unsupported("this engine's memory budget cannot be changed while it runs");
    const std::lock_guard lock(stop_mutex_);
    if (draining_.load()) return Error{ErrorCode::kUnavailable, "the server is shutting down"};
    if (memory_changes_.exchange(true))
      return Error{ErrorCode::kOverloaded, "the memory budget is being changed already; try again when that is done"};
    if (memory_thread_.joinable()) memory_thread_.join();  // the one before, which has done its work
    pending_commands_.fetch_add(1);
    memory_ticket_ = command.ticket;
    memory_stop_ = {};
    auto thread = start_thread([this, command, stop = memory_stop_.get_token()] {
      name_this_thread("memory");
      Status prepared;
      if (memory_.prepare) prepared = memory_.prepare(command.budget_bytes, stats().idle_adapter_bytes, stop);
      if (prepared.ok() && stop.stop_requested())
        prepared = Error{ErrorCode::kUnavailable, "The change of the memory budget was stopped."};
      if (!prepared.ok()) memory_changes_.store(false);
      hand_over({command, std::move(prepared)});
    });
    if (!thread.ok()) {
      memory_changes_.store(false);
      pending_commands_.fetch_sub(1);
      return std::move(thread).error();
    }
    memory_thread_ = std::move(thread).value();
    return {};
  }

  void cancel_memory(uint64_t ticket) override {
    const std::lock_guard lock(stop_mutex_);
    if (ticket == memory_ticket_) memory_stop_.request_stop();
  }

  EngineOutput wait_output(int64_t timeout_ns) override { return outbox_.wait(timeout_ns); }

  EngineStats stats() const override {
    const std::lock_guard lock(stats_mutex_);
    EngineStats stats = stats_;
    if (kv_events_ != nullptr) stats.kv_events = kv_events_->counts();  // who publishes is another thread
    return stats;
  }

  Status health() const override {
    if (!lost_.load(std::memory_order_acquire)) return {};
    return loss_;
  }

  const Heartbeats& heartbeats() const override { return beats_; }
  std::shared_ptr<ByteBudget> request_memory() const override { return requests_; }
  int64_t max_model_len() const override { return max_model_len_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  void drain() override {
    draining_.store(true);
    const std::lock_guard lock(stop_mutex_);
    memory_stop_.request_stop();
  }

  void stop() override {
    drain();
    if (before_stop_) before_stop_();
    {
      const std::lock_guard lock(stop_mutex_);
      stopped_ = true;
    }
    inbox_.stop();
    outbox_.close();  // ends a wait for the consumer; output stays readable
    const std::lock_guard lock(join_mutex_);
    requests_->on_returned({});
    if (thread_.joinable()) thread_.join();
    if (tier_ != nullptr) tier_->on_upload({});
    if (memory_thread_.joinable()) memory_thread_.join();
    loads_.stop();
  }

 private:
  void run() {
    name_this_thread("engine");
    std::vector<Message> messages;
    EngineOutput output;
    Heartbeats::Mark mark(&beats_, "engine");
    int64_t wake_at_ns = Next::kNever;
    const auto wait = [&] {
      mark.rest();
      const bool never = wake_at_ns == Next::kNever;
      const bool going_on =
          inbox_.take(messages, never ? Inbox::kForever : std::max<int64_t>(0, wake_at_ns - clock_.now_ns()));
      mark.beat();
      return going_on;
    };
    while (wait()) {
      const int64_t woken_ns = messages.empty() ? wake_at_ns : 0;  // where the clock stands still that time has come
      loop_->receive(messages, output);
      deliver(output);
      if (loop_->in_flight()) continue;
      mark.rest();  // the consumer's to end
      outbox_.wait_for_room();
      mark.beat();
      const Next next = loop_->next(std::max(clock_.now_ns(), woken_ns), output);
      wake_at_ns = next.wake_at_ns;
      if (next.step == nullptr || !output.empty()) {
        deliver(output);
      } else if (recorded_) {
        refresh_stats();
      }
      next.step != nullptr ? executor_->start(*next.step) : executor_->idle();
    }
    const auto ended = [](const Message& message) { return std::holds_alternative<StepDone>(message); };
    while (loop_->in_flight() && std::none_of(messages.begin(), messages.end(), ended)) inbox_.take_more(messages);
    loop_->end_all(messages, output);  // what was accepted before the stop gets its end, too
    deliver(output);
  }

  // A command that the loop replies to.
  Status pass_on(Message&& command) {
    if (pending_commands_.fetch_add(1) >= kMaxPendingCommands) {
      pending_commands_.fetch_sub(1);
      return Error{ErrorCode::kOverloaded, "too many commands are waiting; try again later"};
    }
    const std::lock_guard lock(stop_mutex_);
    if (stopped_) {
      pending_commands_.fetch_sub(1);
      return Error{ErrorCode::kUnavailable, "the server has stopped"};
    }
    inbox_.put(std::move(command));
    return {};
  }

  // Who gets a reply, or is ended because nothing can be computed, may look at once.
  void deliver(EngineOutput& output) {
    notice_loss();
    refresh_stats();
    publish(output);
  }

  // To the engine's thread, unless that has had its last look.
  void hand_over(BudgetReady&& ready) {
    const std::lock_guard lock(stop_mutex_);
    if (!stopped_) return inbox_.put(std::move(ready));
    EngineOutput refusal;
    refusal.replies.push_back(
        {.ticket = ready.command.ticket, .status = Error{ErrorCode::kUnavailable, "the server has stopped"}});
    publish(refusal);
  }

  // For good: who is refused or ended because of it may look at once.
  void notice_loss() {
    if (loop_->health().ok() || lost_.load(std::memory_order_relaxed)) return;
    loss_ = loop_->health();
    lost_.store(true, std::memory_order_release);
  }

  void publish(EngineOutput& output) {
    pending_commands_.fetch_sub(static_cast<int32_t>(output.replies.size()));
    outbox_.put(output);
  }

  void refresh_stats() {
    const std::lock_guard lock(stats_mutex_);
    loop_->fill_stats(stats_);
  }

  const std::unique_ptr<Executor> executor_;
  DeviceTier* const tier_;  // of the executor, or null
  const Clock& clock_;
  const EngineOptions options_;
  const std::string fingerprint_;
  const MemoryControl memory_;
  const std::function<void()> before_stop_;
  const std::shared_ptr<RequestBudget> requests_;
  const int64_t max_model_len_;
  const AdapterLoadOptions header_options_;
  const int rank_max_;
  const bool recorded_;                        // steps are
  const std::shared_ptr<KvEvents> kv_events_;  // null: nobody is told
  std::atomic<int32_t> queued_{0}, pending_commands_{0};
  std::atomic<bool> draining_{false};
  Status loss_;  // written once, before lost_
  std::atomic<bool> lost_{false};
  std::mutex stop_mutex_, join_mutex_;
  bool stopped_ = false;
  Inbox inbox_;
  Outbox outbox_;
  Heartbeats beats_{clock_};
  LoadPool loads_;
  std::unique_ptr<EngineLoop> loop_;
  mutable std::mutex stats_mutex_;
  EngineStats stats_;
  std::atomic<bool> memory_changes_{false};
  uint64_t memory_ticket_ = 0;  // of the last budget change
  std::stop_source memory_stop_;
  std::thread thread_, memory_thread_;
};

DType kv_dtype(const EngineOptions& options, const ModelConfig& config) {
  return options.kv_dtype.value_or(config.dtype == DType::kF32 ? DType::kF32 : DType::kF16);
}

int64_t configured_length(const EngineOptions& options, const ModelConfig& config) {
  const int64_t length = options.max_model_len > 0 ? options.max_model_len : config.max_position;
  return std::clamp<int64_t>(length, 1, kMaxModelLen);
}

// Blocks that the options ask for, or the default: what every sequence at full length
// needs, at most half of what is available now.
Result<int32_t> kv_block_count(const EngineOptions& options, const KvShape& shape, int64_t length, Ledger& ledger) {
  const int64_t block_bytes = kv_block_bytes(shape);
  int64_t blocks = options.kv_cache_bytes / block_bytes;
  if (options.kv_cache_bytes == 0) {
    const int64_t wanted = shape.tables.blocks_most(length) * std::max(1, options.max_sequences);
    blocks = std::min(wanted, ledger.available_bytes(MemoryUse::kKv) / 2 / block_bytes);
  }
  blocks = std::min<int64_t>(blocks, INT32_MAX / kKvBlockTokens);
  if (blocks < 1) {
    return too_large("the KV cache needs at least " + format_bytes(block_bytes) + " for one block of " +
                     std::to_string(kKvBlockTokens) + " tokens; give it more memory");
  }
  return static_cast<int32_t>(blocks);
}

}  // namespace

ModelLimits step_limits(const EngineOptions& options, const ModelConfig& config) {
  ModelLimits limits;
  const int32_t sequences = std::max(1, options.max_sequences);
  limits.rows_max = std::max({1, options.step_tokens, sequences});
  limits.logits_rows_max = sequences;
  if (options.speculate != Speculation::kOff) {
    limits.logits_rows_max += kDraftTokensMax * std::min(sequences, kDraftingSequences);
  }
  const int64_t prompt_rows = kPromptLogitsBytes / (int64_t{sizeof(float)} * std::max(1, config.vocab));
  const auto floor = static_cast<int32_t>(std::min(kPromptLogitsRows, prompt_rows));
  limits.logits_rows_max = std::min(std::max(limits.logits_rows_max, floor), limits.rows_max);
  limits.segments_max = sequences * kMaxAdaptersPerRequest;
  limits.rank_max = options.adapter_rank_max > 0 ? options.adapter_rank_max : kMaxLoraRank;
  limits.max_model_len = configured_length(options, config);
  return limits;
}

namespace {

// What is for single blocks has no use for a state of a whole text.
Status check_states(const EngineParts& parts) {
  const bool blocks = parts.executor->kv_blocks() > 0 || !parts.options.kv_dir.empty() || parts.kv_events != nullptr;
  if (!blocks || state_floats(parts.config) == 0) return {};
  return unsupported("states of sequences do not go together with a device's KV cache, --kv-dir or --kv-events");
}

// The executor's own blocks, or blocks of host memory; how many.
Result<int32_t> make_kv(EngineParts& parts, const KvShape& shape, int64_t length, LoopParts& loop) {
  TRY(check_states(parts));
  const EngineOptions& options = parts.options;
  loop.kv_block_bytes = kv_block_bytes(shape);
  loop.kv_eviction = options.kv_eviction;
  loop.kv_utility = options.kv_utility;
  loop.kv_lending = parts.kv_lending;
  int32_t blocks = parts.executor->kv_blocks();
  if (blocks > 0) {
    loop.kv = KvCache::create_ids(blocks, options.prefix_cache, *parts.clock);
    TRY(loop.kv->rest_by({.sharing = options.kv_sharing, .delta = options.kv_delta, .ledger = parts.ledger}));
    return blocks;
  }
  TRY_ASSIGN(blocks, kv_block_count(options, shape, length, *parts.ledger));
  TRY_ASSIGN(loop.kv, KvCache::create(shape, blocks, options.prefix_cache, *parts.ledger, *parts.clock,
                                      parts.memory.kv_blocks_max));
  if (const int64_t floats = state_floats(parts.config); floats > 0) {
    constexpr int32_t kSlotsOfSequence = 2;  // its own, and a copy
    const int32_t slots = parts.state_slots > 0 ? parts.state_slots
                                                : options.max_sequences * (options.prefix_cache ? kSlotsOfSequence : 1);
    TRY(loop.kv->keep_states(floats, slots, *parts.ledger));
    parts.executor->use_states(loop.kv->states());
  }
  KvRestOptions rest{
      .sharing = options.kv_sharing, .delta = options.kv_delta, .pool = parts.pool, .ledger = parts.ledger};
  if (parts.kv_steps && !has_vector_scale(shape.dtype)) {
    TRY_ASSIGN(rest.grid, parts.kv_steps->grid(shape.dtype));
    // What was measured was measured with differences within the steps.
    if (options.kv_delta == KvDelta::kSteps) rest.agreement = parts.kv_steps->farthest().agreement;
  } else if (parts.kv_grid) {
    rest.grid = std::move(parts.kv_grid);
  }
  TRY(loop.kv->rest_by(std::move(rest)));
  parts.executor->use_kv(loop.kv->view(), loop.kv->streams());
  return blocks;
}

// To whom fetched blocks go, once there is somebody.
struct FetchedTo {
  std::function<void(KvFetched&&)> put;
};

// With --kv-dir.
Status open_kv_disk(const EngineParts& parts, const KvShape& shape, int64_t length,
                    const std::shared_ptr<FetchedTo>& to, LoopParts& loop) {
  if (parts.options.kv_dir.empty()) return {};
  if (parts.executor->kv_blocks() > 0)
    return unsupported("--kv-dir keeps what lies in host memory, and here a device has the KV cache; start without it");
  if (!parts.options.prefix_cache)
    return invalid_argument("--kv-dir keeps prefixes, and --no-prefix-cache keeps none; start without one of them");
  KvDiskOptions options = kv_disk_sizes(parts.options, shape);
  options.format = kv_disk_format(parts.fingerprint, parts.options, parts.config, shape, length);
  if (const std::optional<KvGrid>& grid = loop.kv->grid()) options.grid = grid->digest();
  TRY_ASSIGN(loop.kv_disk, KvDisk::open(options, *parts.ledger, *parts.clock, *parts.log,
                                        [to](KvFetched&& fetched) { to->put(std::move(fetched)); }));
  loop.kv->spill_to(*loop.kv_disk);
  return {};
}

// Who is told of prefixes is told from the first on.
Status tell_of_kv(const EngineParts& parts, KvCache& kv) {
  if (parts.kv_events == nullptr) return {};
  if (!parts.options.prefix_cache)
    return invalid_argument(
        "--kv-events tells of prefixes, and --no-prefix-cache keeps none; start without one of them");
  kv.tell(*parts.kv_events);
  return {};
}

// At once.
int32_t sequences_most(const EngineOptions& options, const ModelLimits& limits, const StateView& states) {
  const int32_t most = std::min({options.max_sequences, limits.rows_max, limits.logits_rows_max});
  return states.slots > 0 ? std::min(most, states.slots) : most;
}

}  // namespace

Result<std::unique_ptr<Engine>> start_engine(EngineParts parts) {
  CHECK(parts.executor && parts.ledger && parts.clock && parts.log);
  EngineOptions& options = parts.options;
  const ModelConfig& config = parts.config;
  const ModelLimits& limits = parts.executor->limits();
  if (options.max_sequences < 1 || options.max_queued < 1)
    return invalid_argument("max-num-seqs and max-queued must be at least 1");
  const KvShape shape{.layers = kv_layers(config),
                      .kv_heads = config.kv_heads,
                      .head_dim = config.head_dim,
                      .dtype = kv_dtype(options, config),
                      .streams = parts.kv_lending.streams,
                      .tables = parts.executor->kv_blocks() > 0 ? KvTables() : parts.kv_tables};
  if (is_quantised(shape.dtype))
    return unsupported("the KV cache holds f32, f16, bf16 or int8 numbers; choose one of them");

  if (parts.requests == nullptr) {
    parts.requests = std::make_shared<RequestBudget>(*parts.ledger, *parts.ledger->try_grant(MemoryUse::kRequests, 0));
  }
  LoopParts loop;
  loop.requests = parts.requests;
  TRY(parts.executor->reserve_vocab(config.vocab));
  const int64_t length = configured_length(options, config);
  TRY_ASSIGN(const int32_t blocks, make_kv(parts, shape, length, loop));
  const auto fetched_to = std::make_shared<FetchedTo>();
  TRY(open_kv_disk(parts, shape, length, fetched_to, loop));
  TRY(tell_of_kv(parts, *loop.kv));
  const int64_t capacity = shape.tables.tokens_within(blocks);
  if (capacity < length && options.max_model_len > 0) {
    return too_large("the KV cache holds " + std::to_string(capacity) + " tokens, fewer than max-model-len " +
                     std::to_string(length) + "; lower one or raise the other");
  }
  if (capacity < length) {
    parts.log->log(LogLevel::kWarning,
                   "the KV cache holds " + std::to_string(capacity) +
                       " tokens, so prompt and output together are limited to that (the model allows " +
                       std::to_string(length) + ")");
  }
  const int64_t max_model_len = std::min(length, capacity);
  const int64_t available = parts.ledger->available_bytes(MemoryUse::kAdapters);
  const int64_t adapters = options.adapter_bytes > 0 ? options.adapter_bytes : default_adapter_bytes(available);
  const JointMemory joint = parts.memory.joint;
  parts.ledger->set_cap(
      MemoryUse::kAdapters,
      joint.adapters ? joint_adapter_bytes(available, adapters, parts.ledger->budget_bytes()) : adapters);
  loop.joint_kv = joint.kv;
  loop.adapter_floor_bytes = adapters;
  loop.reserve_part = kReservePart;

  static_cast<EngineContext&>(loop) = parts;
  loop.keep_kv_grid = std::move(parts.keep_kv_grid);
  if (loop.eos.empty()) loop.eos = config.eos;
  loop.registry.loads_max = std::max(1, options.adapter_load_threads);
  loop.registry.strict = options.adapter_strict;
  loop.registry.int8 = options.adapter_int8;
  loop.registry.shared = parts.shared_adapters;
  loop.registry.rank_max =
      options.adapter_rank_max > 0 ? std::min(options.adapter_rank_max, limits.rank_max) : limits.rank_max;
  loop.max_model_len = static_cast<int32_t>(max_model_len);
  loop.max_sequences = sequences_most(options, limits, loop.kv->states());
  loop.step_tokens = std::clamp(options.step_tokens, loop.max_sequences, limits.rows_max);
  loop.step_time_ns = options.step_time_ns;
  loop.adapter_keeping = options.adapter_keeping;
  loop.cold_start = options.cold_start;
  loop.scheduling = options.scheduling;
  loop.prefix_cache = options.prefix_cache;
  loop.speculate = options.speculate;
  loop.kv_sharing = options.kv_sharing;
  return std::unique_ptr<Engine>(new EngineImpl(std::move(parts), std::move(loop), max_model_len, fetched_to->put));
}

}  // namespace loralei

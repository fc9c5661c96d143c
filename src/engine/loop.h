// SPDX-License-Identifier: Apache-2.0
// EngineLoop: everything the engine thread does between two looks at its inbox, without a
// thread of its own: sole owner of all requests.
//
//   receive()  1  messages                                                  intake.cc
//              2  loads, and who is ready with their adapters               leases.cc
//   next()     3  company for a pass over streamed weights                  loop.cc
//              4  masks of grammars                                         step.cc
//              5  offers in the order of admission: leases, then the planner
//              6  the plan: preempt, lease KV, reserve blocks; the batch slot
//   finish()   7  sampled rows, full blocks published, ends: events         commit.cc
//
// Who begins before its adapters are there:                 cold_start.cc, early_loads.cc
// What clients have had of the server, and what requests want of time:      service.cc
//
// A turn ends where the step begins: whoever called next() starts the step that it
// answers, and receive() has its StepDone among the messages (or finish() has it alone).
// Nothing here computes a step or waits, and who turns the loop needs no policy: it
// calls again when something arrives or the wake time has come.
//
// Thread: one. Ownership: owns requests, KV, registry and batch slot; borrows executor,
// ledger, clock, log, pool. Invariants (check()): every sequence is in exactly one place;
// nothing that ended holds a lease, a pin or a block; every request ends exactly once per
// choice. Messages that come while a step is in flight are looked at behind it. Nobody
// waits for nothing: where there is neither a step nor a wake time, whoever waits does so
// for an event. Failure: an executor error ends the sequences of that step with it and
// nothing else.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "adapters/registry.h"
#include "base/clock.h"
#include "base/log.h"
#include "cost/transfer_times.h"
#include "device/host/thread_pool.h"
#include "engine/api.h"
#include "engine/batch_slot.h"
#include "engine/executor.h"
#include "engine/kv_room.h"
#include "engine/mailbox.h"
#include "engine/mask_work.h"
#include "engine/request.h"
#include "engine/row_sampler.h"
#include "engine/start.h"
#include "engine/step_record.h"
#include "kv/kv_cache.h"
#include "memory/keep_order.h"
#include "sched/admission.h"
#include "sched/cold_start.h"
#include "sched/scheduling.h"
#include "sched/step_planner.h"
#include "sched/step_times.h"
#include "sched/virtual_tokens.h"
#include "sched/wait_times.h"

namespace loralei {

struct LoopParts : EngineContext {
  Executor* executor = nullptr;
  std::unique_ptr<KvDisk> kv_disk;  // of `kv`, and outlives it; null: none
  std::unique_ptr<KvCache> kv;
  std::function<Status(const KvGrid&)> keep_kv_grid;  // EngineParts::keep_kv_grid; empty: nothing is to be kept
  int64_t kv_block_bytes = 0;                         // of one block, wherever its bytes are
  KvEviction kv_eviction = KvEviction::kLru;
  KvUtility kv_utility;
  KvSharing kv_sharing = KvSharing::kExact;  // as `kv` rests (KvCache::rest_by)
  KvLending kv_lending;                      // with the streams of `kv`
  bool joint_kv = false;                     // KvRoomParts, and the next two
  int64_t adapter_floor_bytes = 0;
  int32_t reserve_part = 0;
  std::shared_ptr<ByteBudget> requests;  // their memory; null: all there is
  std::function<bool(LoadJob&&)> start_load;
  std::function<Status(int64_t budget_bytes, const RoomMaker& room)> set_budget;
  std::function<bool(const std::function<void(int64_t bytes)>&)> watch_memory;  // MemoryControl::watch
  RegistryOptions registry;
  int32_t max_model_len = 0;
  int32_t max_sequences = 0;
  int32_t step_tokens = 0;
  int64_t step_time_ns = 0;  // EngineOptions::step_time_ns
  bool prefix_cache = true;
  Speculation speculate = Speculation::kAuto;
  AdapterKeeping adapter_keeping;
  ColdStart cold_start = ColdStart::kAuto;
  SchedulingOptions scheduling;
  // In simulations alone: how long an answer is to be taken for, in the place of what is
  // predicted. Empty: it is predicted.
  std::function<double(const Submit&)> foresee_output;
  std::atomic<int32_t>* queued =
      nullptr;  // requests of which nothing was admitted yet; counted up by submit(), down here
};

// What is to be done: a step, to be started now and the batch to be left alone until its
// StepDone; or nothing before wake_at_ns, unless something arrives.
struct Next {
  static constexpr int64_t kNever = INT64_MAX;
  const StepBatch* step = nullptr;
  int64_t wake_at_ns = kNever;
};

class EngineLoop {
 public:
  explicit EngineLoop(LoopParts parts);
  ~EngineLoop();

  // Takes the messages in (and clears them), the end of a step before all others; starts
  // loads, makes requests ready. What came of it is appended to `output`, here as below.
  void receive(std::vector<Message>& messages, EngineOutput& output);
  // Not while a step is in flight. `now_ns`: of the clock, or the wake time of before.
  Next next(int64_t now_ns, EngineOutput& output);
  // The step that next() answered has ended.
  void finish(const StepDone& done, EngineOutput& output);
  bool in_flight() const { return in_flight_; }
  // The error that every request ends with since the executor can compute nothing any
  // more; ok: it can.
  const Status& health() const { return health_; }
  // What the executor said when it was last asked whether it can compute; while that is
  // an error it is asked in every turn.
  const Status& ready() const { return ready_; }
  uint64_t steps() const { return steps_; }
  const VirtualTokens& clients() const { return clients_; }
  int64_t mask_work() const { return masks_.work(); }  // of grammars, between steps
  // True when another turn would do nothing until a message arrives.
  bool idle() const;
  // Takes the messages in (and clears them), the end of a step in flight among them, and
  // ends every request with kCancelled and every command with an error.
  void end_all(std::vector<Message>& messages, EngineOutput& output);

  void fill_stats(EngineStats& stats) const;
  // What is new of the adapters, now. The loop does that by itself when EngineOutput says
  // so.
  void tell_adapters(EngineOutput& output);
  void check() const;

 private:
  bool gathers(int64_t now_ns);
  int64_t wake_at_ns(int64_t now_ns) const;
  void check_leases(const Request& request) const;

  // intake.cc
  void take(Message& message);
  void watch_memory();
  // The ledger may have other room than before: whoever waits for some is looked at in
  // the next turn.
  void room_changed() { cold_changed_ = true; }
  void receive(Arrival&& arrival);
  void receive(const Cancel& cancel);
  void receive(const Hold& hold);
  void receive(const AdapterCommand& command);
  void introduce(const AdapterSourceSpec& source);
  void keep_lengths(int64_t at_most_every_ns);
  void receive(const KvCommand& command);      // kv_state.cc
  void receive(const AppCommand& command);     // kv_state.cc
  void receive(const QueuesCommand& command);  // queues.cc, as what follows
  QueuesState queues_state(int32_t listed_max) const;
  QueuedSequence queued(const Sequence& sequence, int64_t now_ns) const;
  void fill_queues(QueuesState& state, size_t listed_max, int64_t now_ns) const;
  void fill_unplaced(QueuesState& state, size_t listed_max, int64_t now_ns) const;
  void receive(LoadBegun&& begun) { registry_.on_load_begun(std::move(begun)); }
  void receive(LoadDone&& done);
  void receive(HeaderCheck&& check);
  void receive(const BudgetReady& ready);
  void receive(const UploadDone& done);
  void receive(const RoomChanged&) { room_changed(); }
  void receive(KvFetched&& fetched);  // kv_fetch.cc
  void collect_replies();

  // leases.cc
  enum class Leases : uint8_t { kTaken, kSkip, kGone };
  void wait_for_adapters(Request& request);
  void count_waiting(Request& request, bool waits);
  void leave_cold(Request& request);
  bool needs_round() const;
  void look_at_cold();
  void give_up_claims();
  void look_at(Request& request);
  void make_ready(Request& request, std::span<const Adapter* const> adapters);
  void start_choices(Request& request);
  Leases take_leases(Sequence& sequence);
  Status renew(Request& request);
  Leases hold_on_device(Sequence& sequence);
  Leases take_alone(Sequence& sequence);
  void look_again_in(double seconds, Request& request);
  Result<bool> hold_adapters(Request& request);
  Result<bool> have_arrived(const Request& request);
  void set_lacks(Request& request, bool lacks);
  void drop_leases(Request& request);
  void drop_unused_leases(Request& request);
  void let_go_unused(const Request& request);
  void choose_leaving(std::vector<AdapterVersionId>& idle);
  void note_arrived(const UploadDone& done);
  void note_left(AdapterVersionId version);
  void note_who_left();
  void drop_copy(AdapterVersionId version);
  void learn_uploads();
  void prefetch();
  Status prepare(Request& request, std::span<const Adapter* const> adapters);
  KvSharing sharing_of(const Request& request) const { return request.submit.kv_sharing.value_or(parts_.kv_sharing); }
  void choose_lower(Request& request, std::span<const Adapter* const> adapters, std::vector<KvIdentityPart>& identity);
  Status apply_adapters(Request& request, std::span<const Adapter* const> adapters,
                        std::vector<KvIdentityPart>& identity);

  // early_loads.cc
  bool loads_early() const;
  bool begins_while_loading(Request& request);
  bool keeps_prefixes(const Request& request) const;
  Digest digest_of(const Adapter& adapter, Request& request) const;
  void announce(const AdapterPin& pin);
  Result<bool> have_been_read(const Request& request) const;
  bool is_whole(const Request& request) const;
  void confirm(Request& request);
  void confirm_step();

  // cold_start.cc
  std::optional<AdapterOnItsWay> on_its_way(AdapterVersionId version) const;
  void bring_all();
  double arrival_s(const AdapterOnItsWay& way, int32_t piece, double slowness) const;
  double stall_of(std::span<const AdapterVersionId> versions, double pass_s, double slowness) const;
  int32_t rows_of_step(const Sequence& sequence, int32_t computed) const;
  double pass_s(int32_t rows, int32_t computed) const;
  struct Assisted {
    double pass_s = 0;
    int32_t rows = 0;       // of a step, at most
    bool holds_up = false;  // helpers are slower than the device
  };
  Assisted assisted(const Request& request, double pass_s, int32_t rows);
  bool begins_early(Sequence& sequence);
  bool begins_assisted(Request& request, double pass, double stall, int32_t rows);
  double others_step_s() const;
  double stall_allowed_s(double pass_s) const;
  void take_assist_rows(const Request& request, SeqState& state);
  void look_early(int64_t now_ns);
  void begin_early(Request& request);
  void end_early(Request& request);
  void settle_early();
  bool waits_for_layers(const Sequence& sequence) const;
  bool wants_alone() const;
  bool all_wait_for_arrivals() const;
  int64_t arrivals_wait_ns() const;
  void give_up_early(const StepWaits& waits);
  void count_waits(const StepWaits& waits);

  // standing.cc
  AskedFor asked_of(const Sequence& sequence) const;
  void lay_out_queues();
  void squash_late();
  int64_t place_ns(const Request& request, int64_t now_ns) const;
  int64_t tokens_total() const;
  void stand_down(Sequence& sequence);

  // step.cc
  void make_masks();
  void take_formed(size_t looked_at, size_t dear);
  size_t first_dear() const;  // of forming_
  bool plan();
  bool plan_step();
  PrefillRows prefill_rows() const;
  void offer_waiting();
  void offer_alone();
  std::optional<Fit> offer(Sequence& sequence, int64_t now_ns);
  void stop_offers(WaitCause cause);
  // What so many blocks of the pool are in blocks of text, of sequences of the longest
  // length; without windows as many.
  int64_t text_blocks(int64_t blocks) const {
    const KvTables& tables = parts_.kv->tables();
    if (!tables.has_windows()) return blocks;
    const int64_t most = tables.blocks_most(parts_.max_model_len);
    return (blocks * kv_blocks_for(parts_.max_model_len) + most - 1) / most;
  }
  int64_t kv_bytes_per_token() const {
    const KvTables& tables = parts_.kv->tables();
    if (!tables.has_windows()) return std::max<int64_t>(1, parts_.kv_block_bytes / kKvBlockTokens);
    const int64_t tokens = int64_t{kv_blocks_for(parts_.max_model_len)} * kKvBlockTokens;
    return std::max<int64_t>(1, tables.blocks_most(parts_.max_model_len) * parts_.kv_block_bytes / tokens);
  }
  void learn_step(int64_t ns);
  void record_step(int64_t ns, int64_t waited_ns);
  bool speculates() const;
  std::span<const TokenId> draft_of(Sequence& sequence) const;
  void notice_stuck(bool stuck);
  struct HeldBlocks {
    int32_t of_text = 0, of_pool = 0, exclusive = 0;
  };
  SeqState state_of(const Sequence& sequence, int32_t computed, const HeldBlocks& held) const;
  int32_t match_limit(const Sequence& sequence) const;
  int32_t lent_to(const Sequence& sequence, int32_t computed) const;
  void commit_plan();
  bool materialise_admitted();
  bool borrow_admitted();
  void admit(Sequence& sequence);
  void preempt(Sequence& sequence);
  Status resize_kv(int32_t blocks);
  const StepBatch& begin_step();
  void lose(const Error& error);
  void end_if_lost();
  void ask_ready();
  void end_if_not_ready();

  // states.cc
  void lease_prefix(Sequence& sequence);
  bool keeps_states() const { return parts_.kv->states().slots > 0; }
  void renew_states();
  bool found_as_planned();

  // kv_share.cc
  KvRoomParts kv_room_parts();
  KvWorth kv_worth() const;
  int32_t blocks_of_running() const;
  void give_way(int64_t bytes);
  void fit_kv();
  void make_available(int32_t running);
  bool rest_idle();
  void owe_rest();
  void rest_between_steps();
  int32_t rest_some();

  // kv_fetch.cc
  bool wait_for_disk(Request& request);
  bool fetch_pays(const Request& request, int32_t first);
  void fetch_next();
  bool disk_is_stuck() const;
  void go_on_without_disk();
  void end_disk_wait(Request& request);
  int64_t disk_gives_up_ns() const;
  bool keep_idle();
  void keep_all();

  // commit.cc
  void commit_rows();
  void commit_hidden(Sequence& sequence, const PlanGroup& group, const StepResult& result, size_t& hidden_index);
  void commit_samples();
  void accept(Sequence& sequence);
  void commit_token(Sequence& sequence, const RowSample& sample);
  void release_siblings(Request& request);
  void finish_unsampled(Sequence& sequence);
  TokenEvent& new_event(Sequence& sequence);
  void end(Sequence& sequence, EndReason reason, Error error = {});
  void end_request(Request& request, EndReason reason, const Error& error);
  void end_requests(EndReason reason, const Error& error);
  void forget_ended();

  // service.cc
  void client_came(const Request& request);
  void client_left(const Request& request);
  void begin_wait(Sequence& sequence);
  void charge_prompt(Request& request);
  void charge(const Request& request, int64_t input_tokens, int64_t output_tokens);
  int64_t least_tpot_ns() const;
  void note_token(Sequence& sequence);
  void note_answer(Request& request);
  void note_end(const Sequence& sequence);
  void count_slo(SloKind kind, bool met) { ++counters_.slo_requests[static_cast<size_t>(kind)][met ? 1 : 0]; }
  void check_clients() const;

  // Into admission_ or forming_; where its request is held it is parked.
  void enqueue(Sequence& sequence);
  void leave_waiting(const Sequence& sequence);
  void leave_queue(Request& request);
  std::optional<WaitCause> wait_of(const Request& request) const;
  void note_wait(Request& request);

  RegistryOptions registry_options();
  PlanOptions plan_options() const;

  LoopParts parts_;
  DeviceTier* const tier_;         // of the executor, or null
  bool arriving_changed_ = false;  // somebody may go on, or there may be more room on the device
  bool device_full_ = false;       // somebody waits for room there, since that changed last
  int32_t lacking_ = 0;            // requests with Request::lacks
  bool prefetch_due_ = false;      // somebody waits, or there is room on the device, since the last prefetch()
  std::map<AdapterVersionId, AdapterSourceId> prefetched_;    // on their way to the device, and held by nobody
  std::set<AdapterVersionId> on_device_;                      // copies that have arrived, for AdapterStatus
  bool brings_ahead_ = false;                                 // prefetch() asks for room, not a request
  std::unordered_map<AdapterVersionId, AdapterHold> cached_;  // with ColdStart::kCached, on the device
  int32_t early_ = 0;                                         // requests that run so
  int64_t looks_early_ns_ = Next::kNever;                     // when somebody may begin, or sooner
  bool alone_turn_ = false;           // steps of this turn have rows of those that are alone, and no others
  bool alone_last_ = false;           // the last step had
  int32_t assist_rows_left_ = 0;      // of helpers, in the step that is planned
  std::vector<SeqId> alone_waiting_;  // that may begin in a step of those
  std::vector<Request*> early_requests_;
  std::vector<AdapterVersionId> versions_;
  TransferTimes upload_times_;
  DeviceTierStats uploads_seen_;  // by upload_times_
  KvRoom kv_room_;
  AdapterRegistry registry_;
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::unordered_map<SeqId, Sequence*> sequences_;
  std::map<uint64_t, Request*> cold_;  // those that wait for adapters, by age
  std::unordered_map<AdapterSourceId, std::set<uint64_t>> cold_by_source_;
  std::unordered_map<AdapterSourceId, int32_t> waiting_by_source_;  // requests with adapters that do not run
  // Their first mask is being made (or, preempted, the next): oldest first, behind them
  // those whose mask is dear, in the order in which it was found to be.
  std::vector<Sequence*> forming_;
  Admission admission_;             // those that wait for a step
  VirtualTokens clients_;           // where they have turns
  size_t waiting_formed_ = 0;       // of these: with a grammar
  int64_t waiting_rows_ = 0;        // of these: their texts
  int32_t queued_ = 0;              // requests of which nothing was admitted yet
  WaitTimes waits_;                 // of these
  std::vector<Sequence*> running_;  // oldest first
  std::vector<RequestId> ended_;    // requests to forget at the end of the turn
  EngineOutput* output_ = nullptr;  // of the current turn
  uint64_t next_order_ = 1, next_seq_ = 1;
  uint64_t round_generation_ = UINT64_MAX;  // the registry's when cold_ was last gone through
  bool cold_changed_ = false;
  std::optional<SeqId> refused_;    // by the planner, in the last planning, though it had all leases
  std::deque<RequestId> to_fetch_;  // those that wait for blocks from disk, but for those of `fetches_`
  int32_t fetches_ = 0;             // under way
  int64_t fetched_ns_ = 0;          // when one ended last, or began with no other under way
  bool disk_waited_for_ = false;    // by somebody, perhaps
  bool tells_later_ = false;        // of what the KV cache holds not all could be told yet
  bool keeps_later_ = false;        // the disk took no more when something was to be kept
  uint64_t plans_ = 0;              // plan_step() was called
  bool stalled_ = false;            // those that wait for a step all wait for an event
  bool given_up_ = false;           // the step that was planned last, to be planned anew
  bool stuck_ = false;              // but for one, for which there is none: a defect
  bool in_flight_ = false;          // a step
  std::vector<Message> kept_;       // that came meanwhile
  int64_t taken_in_ns_ = 0;         // how long the last receive() took
  int64_t adapters_told_ns_ = 0;
  int64_t lengths_kept_ns_ = 0;
  uint64_t lengths_kept_ = 0;  // LengthPredictor::answers() then
  int64_t next_begin_ns_ = 0, step_begin_ns_ = 0;
  int64_t gather_until_ns_ = 0;  // 0: no company is waited for
  int64_t memory_watched_ns_ = 0;
  uint64_t steps_watched_ = 0;
  bool memory_moves_ = false;  // and is to be watched while there is nothing to do
  int32_t parked_ = 0;
  Status health_, ready_;

  // Reused from step to step.
  std::vector<SeqState> running_states_;
  PrefillRows rows_now_;
  StepPlanner planner_;
  StepTimes times_;
  Scheduling scheduling_;
  PlanOutput planned_;
  std::vector<Sequence*> group_sequences_;
  std::vector<RowSample> samples_;
  RowSampler sampler_;
  BatchSlot slot_;
  std::vector<Sequence*> masks_wanted_, moved_;
  MaskWork masks_;
  bool computed_ = false;     // in the last turn
  int64_t pass_ns_ = 0;       // of the last step, without what comes of it
  int64_t rest_owed_ns_ = 0;  // that encoding KV may take before the next
  AdapterRanks ranks_;        // for record_, where steps are recorded
  StepRecord record_;
  std::vector<RegistryReply> replies_;
  std::vector<AdapterSourceId> news_;
  std::vector<uint64_t> to_look_at_, looked_at_;  // of cold_
  std::vector<const Adapter*> adapters_;
  std::vector<std::pair<AdapterVersionId, uint64_t>> wanted_versions_;  // and by whom
  std::vector<CacheItem> leaving_;
  uint64_t steps_ = 0;
  EngineStats counters_;  // the running totals; gauges are filled on demand
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// LoopWorld: one engine loop over the fake model, on a manual clock and without a thread,
// driven turn by turn. Every event is recorded and every invariant checked after every
// turn. The same seed gives the same bytes.
//
// Thread: one; several worlds may live side by side.
// Ownership: owns all that the loop borrows.
// Failure: what a world must not do is a sentence in `wrong`, for its owner to look at;
// a broken invariant ends the process (CHECK).
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapters/source_test_util.h"
#include "engine/adapter_board.h"
#include "engine/loop.h"
#include "sim/fake_model.h"

namespace loralei::sim {

struct WorldOptions {
  int32_t blocks = 64;
  KvTables tables;         // of one layer each
  int32_t blocks_max = 0;  // that resize() may ask for; 0: no more than `blocks`
  int32_t states = 0;      // slots for states of sequences (kv/state_pool.h); 0: the model keeps none
  int32_t max_sequences = 8;
  int32_t step_tokens = 32;
  int64_t adapter_bytes = 1 << 20;  // that adapters may have
  KvEviction kv_eviction = KvEviction::kLru;
  KvSharing kv_sharing = KvSharing::kExact;  // or kLossless: the blocks are of int8 then
  std::shared_ptr<KvEvents> kv_events;       // EngineContext
  std::string kv_dir;                        // prefixes are kept there, too; empty: they are not
  // KV and adapters share `memory_bytes`: the blocks are a floor then, as
  // adapter_floor_bytes are, and there may be blocks_max of them.
  bool joint = false;
  int64_t memory_bytes = 64 << 20;
  int64_t adapter_floor_bytes = 0;
  std::function<bool(const std::function<void(int64_t bytes)>&)> watch_memory;  // LoopParts
  bool prefix_cache = true;
  int32_t max_model_len = 300;
  Speculation speculate = Speculation::kAuto;
  int32_t draft_rows = 0;     // rows of logits beside one for every sequence
  int64_t device_bytes = 0;   // of adapters in the executor's own memory; 0: they are used in host memory
  int32_t device_layers = 0;  // in which they come there; 0: as a whole
  bool early_loads = false;   // adapters may be used while they are being read
  ColdStart cold_start = ColdStart::kAuto;
  std::shared_ptr<ByteBudget> requests;
  std::function<void(const StepRecord&)> on_step;
  AdapterKeeping adapter_keeping;
  SchedulingOptions scheduling;
  std::shared_ptr<const LengthsState> lengths;  // EngineContext
  std::function<void(LengthsState&&)> keep_lengths;
};

class LoopWorld {
 public:
  explicit LoopWorld(const WorldOptions& setup = {});
  int64_t max_model_len() const {
    return std::min<int64_t>(setup_.max_model_len, setup_.tables.tokens_within(setup_.blocks));
  }

  RequestId submit(Submit submit) {
    submit.id = RequestId{++last_id};
    submits[submit.id] = submit;
    queued.fetch_add(1);
    messages.emplace_back(Arrival{submit, clock.now_ns()});
    return submit.id;
  }
  void cancel(RequestId id, int32_t choice = kAllChoices) {
    messages.emplace_back(std::in_place_type<Cancel>, Cancel{id, choice});
  }
  void hold(RequestId id, bool held) { messages.emplace_back(std::in_place_type<Hold>, Hold{id, held}); }
  void command(AdapterAction action, const std::string& name, const std::string& path = "", bool reload = false,
               AdapterSourceId replaces = {}) {
    messages.emplace_back(AdapterCommand{++tickets, action, testing_support::spec_of(name, path), reload, replaces});
  }
  // Another number of KV blocks, by way of a budget.
  void resize(int32_t blocks) { messages.emplace_back(BudgetReady{MemoryCommand{++tickets, blocks}, {}}); }
  void finish_load(size_t index = 0) {
    if (jobs.empty()) return;
    LoadJob job = std::move(jobs[index]);
    jobs.erase(jobs.begin() + static_cast<int64_t>(index));
    messages.emplace_back(std::in_place_type<LoadDone>, run_load_job(files.source(), job));
  }
  // One that may be handed out early is: its memory is there, and nothing of what it is.
  bool begin_load(size_t index = 0);
  // One that was handed out early has a piece more (the last one comes with its end), or
  // its load ends, well or not; false: there is none, or none of this version.
  bool bring_piece();
  bool end_load(std::optional<AdapterVersionId> version = {});
  bool fail_load(const Error& error, std::optional<AdapterVersionId> version = {});
  // The oldest upload to the device ends; false: none is under way.
  bool finish_upload(bool well = true) {
    std::optional<UploadDone> done;
    if (executor.tier != nullptr) done = executor.tier->end_upload(well);
    if (!done) return false;
    messages.emplace_back(std::move(*done));
    return true;
  }

  void turn() {
    clock.advance_ns(1000);
    while (!disk_is_stuck && disk != nullptr && disk->run_one_job()) {
    }
    EngineOutput output;
    turn(output);
    loop->check();
    take(output);
  }
  // What has arrived is taken in, and one step computed if there is one.
  void turn(EngineOutput& output) {
    Next next = this->next(output);
    if (next.step == nullptr && !loop->idle() && next.wake_at_ns > clock.now_ns()) {  // for company
      clock.advance_ns(next.wake_at_ns - clock.now_ns());
      next = this->next(output);
    }
    if (next.step != nullptr) compute(*next.step, output);
  }
  Next next(EngineOutput& output) {
    loop->receive(messages, output);
    return loop->next(clock.now_ns(), output);
  }
  void compute(const StepBatch& step, EngineOutput& output) {
    executor.start(step);
    loop->finish(done, output);
  }
  void take(EngineOutput& output);
  // Until nothing is left to do; loads and uploads end by themselves.
  void run(int turns_max = 5000);
  std::vector<RequestId> submit_all(const std::vector<Submit>& requests) {
    std::vector<RequestId> ids;
    for (const Submit& request : requests) ids.push_back(submit(request));
    return ids;
  }
  EngineStats stats() const;
  AdapterList adapters() const;  // as they are now

  struct Record {
    std::vector<TokenId> tokens;
    std::vector<TokenLogprobs> logprobs;
    TokenEvent first, last;
    EndReason end = EndReason::kNone;
    int events = 0;
  };
  Record& record(RequestId id, int32_t choice = 0) { return records[{id, choice}]; }

  // What the request must give, whatever else ran: adapters by the versions that the
  // events named.
  Expected oracle(RequestId id, int32_t choice = 0);

  const WorldOptions setup_;
  std::vector<std::string> wrong;  // a sentence for whatever must not happen
  Ledger ledger;
  ManualClock clock;
  NullLogSink log;
  FakeExecutor executor;
  KvDisk* disk = nullptr;  // the loop's, with WorldOptions::kv_dir
  bool disk_is_stuck = false;
  FakeFiles files;
  std::map<uint64_t, std::vector<TokenId>> invocations;  // by content
  std::deque<LoadJob> jobs;
  struct BegunLoad {
    LoadDone done;
    std::shared_ptr<Adapter> adapter;  // as it was handed out
    std::shared_ptr<Arrivals> arrivals;
  };
  std::deque<BegunLoad> begun;
  std::atomic<int32_t> queued{0};
  std::vector<Message> messages;
  StepDone done;  // the last step
  std::map<RequestId, Submit> submits;
  std::map<std::pair<RequestId, int32_t>, Record> records;
  std::vector<CommandReply> replies;
  uint64_t last_id = 0, tickets = 0;
  mutable AdapterBoard board;  // of the news so far
  std::unique_ptr<EngineLoop> loop;

 private:
  void keep_states(KvCache& kv);
  std::optional<BegunLoad> take_begun(std::optional<AdapterVersionId> version);
};

std::vector<TokenId> prompt_of(int count, int salt = 0);
Submit simple(int prompt, int output, int salt = 0, std::vector<AdapterUse> adapters = {});
// Only these tokens are likely: the fewer, the more the text repeats itself.
Submit repeating(int prompt, int output, int salt, const std::vector<TokenId>& letters,
                 std::vector<AdapterUse> adapters = {});

}  // namespace loralei::sim

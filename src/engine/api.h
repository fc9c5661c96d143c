// SPDX-License-Identifier: Apache-2.0
// The engine as everybody above the core line sees it: values going down (Submit, Cancel,
// commands), values coming up (TokenEvent, CommandReply, AdapterNews), one snapshot
// of its counters. Nothing else crosses.
//
// Thread: every method of Engine is thread-safe and does not block on a step;
// check_adapter() reads files.
// Ownership: values are moved through bounded queues.
// Invariants: every accepted Submit gets exactly one final TokenEvent per choice
// (`end` set), whatever happens: finish, cancel, error, adapter load failure, shutdown.
// Events of one choice arrive in token order. A token is never sent twice (preemption
// recomputes silently).
// Failure: submit() answers overloaded when the inbox is full, unavailable when draining
// (but for what `follows`) and once nothing can be computed any more (health()),
// invalid_argument with the numbers when a prompt can never fit; everything later travels
// in TokenEvent::error.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapters/source_spec.h"
#include "base/byte_budget.h"
#include "base/heartbeats.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "engine/kv_state.h"
#include "engine/queue_state.h"
#include "kv/block_times.h"
#include "kv/eviction.h"
#include "kv/kv_disk_stats.h"
#include "kv/kv_events.h"
#include "kv/kv_summary.h"
#include "kv/sharing.h"
#include "memory/keep_order.h"
#include "memory/shelf.h"
#include "sampling/params.h"
#include "sched/cold_start.h"
#include "sched/scheduling.h"
#include "sched/wait_times.h"
#include "tensor/dtype.h"

namespace loralei {

// A source, with the request's own weight. The list order matters for the KV identity.
struct AdapterUse {
  AdapterSourceId source;
  float scale = 1.0f;
};

enum class Pooling : uint8_t { kNone, kLast, kMean };

// What a request wants of time; 0: nothing. Counted by whether it was met.
struct RequestSlo {
  int64_t ttft_ns = 0;  // from arrival to its first token, or its answer where there is none
  int64_t tpot_ns = 0;  // between its tokens
};
enum class SloKind : uint8_t { kTtft, kTpot };
inline constexpr std::array<const char*, 2> kSloNames = {"ttft", "tpot"};

struct Submit {
  RequestId id;
  std::vector<TokenId> prompt;       // not empty
  std::vector<AdapterUse> adapters;  // empty: the base model
  SamplingParams sampling;
  int32_t choices = 1;      // n: choice c samples with (seed, c, position)
  int32_t max_tokens = 16;  // 0 allowed with prompt_logprobs or pooling
  int32_t min_tokens = 0;   // end-of-sequence and stop ids are masked before
  bool ignore_eos = false;
  std::vector<TokenId> stop_ids;     // besides the model's own end-of-sequence ids
  bool prompt_logprobs = false;      // echo with logprobs
  Pooling pooling = Pooling::kNone;  // embeddings: no generation
  std::string cache_salt;            // part of the KV identity
  std::string app_id;
  std::optional<KvSharing> kv_sharing;  // at most as loose as the engine's, which is the default
  int32_t priority = 0;                 // with SchedulePolicy::kPriority: the lower first
  ClientId client = {};
  RequestSlo slo = {};
  bool follows = false;  // belongs to work that was taken in before: taken in while draining, too
};

enum class EndReason : uint8_t { kNone, kStop, kLength, kCancelled, kError };

struct TokenLogprobs {
  float logprob = 0;
  std::vector<TokenLogprob> top;  // descending
};

struct TokenEvent {
  RequestId id;
  int32_t choice = 0;
  bool has_token = false;
  TokenId token = 0;  // an ending stop id is reported as a token with end = kStop
  std::optional<TokenLogprobs> logprobs;
  std::vector<std::optional<TokenLogprobs>>
      prompt_logprobs;           // once, on the first event, when asked for; entry 0 is empty
  std::vector<float> embedding;  // pooling: [hidden], not normalised
  EndReason end = EndReason::kNone;
  std::optional<TokenId> stop_token;  // the id that ended it
  Error error;                        // with kError
  // Filled on the first event of a choice:
  int32_t cached_tokens = 0;
  int32_t borrowed_tokens = 0;  // beside them: of which only the layers above the base's were computed
  int64_t queue_ns = 0;         // from submit to admission
  std::string adapter_version;  // digest prefixes joined by "+", empty for the base
};

// --- adapters

enum class AdapterAction : uint8_t {
  kAdd,  // loads nothing
  // Adds it if needed and loads now. With `reload` a new version takes over atomically,
  // and running requests keep theirs.
  kLoad,
  kDrop,  // forget the source at once; memory is freed when the last user finished; the reply comes then
  kPin,   // load and never evict
  kUnpin,
};

struct AdapterCommand {
  uint64_t ticket = 0;  // chosen by the caller, echoed in the reply
  AdapterAction action = AdapterAction::kAdd;
  AdapterSourceSpec source;  // of one that is known the id will do
  bool reload = false;
  // kLoad: the source whose place it takes, or none. It gives its room if nobody uses it,
  // even if it is pinned; when the load has ended well its pin goes over. To drop
  // it is the caller's.
  AdapterSourceId replaces;
};

// Another budget for everything, while requests run: weights are locked or given up and
// streamed, the KV cache shrinks (cached prefixes go, then the youngest sequences are
// preempted) or grows; adapters that nobody uses go where they have no room; activations
// and the adapters in use keep what they have, and max_model_len stays.
struct MemoryCommand {
  uint64_t ticket = 0;
  int64_t budget_bytes = 0;
};

struct CommandReply {
  uint64_t ticket = 0;
  Status status;            // not_found, invalid_argument (already loaded), too_large with the numbers, corrupt, ...
  int64_t bytes_freed = 0;  // kDrop, AppCommand
  std::string version;      // digest, kLoad and kPin
  std::shared_ptr<const QueuesState> queues = nullptr;  // QueuesCommand
  std::shared_ptr<const KvState> kv = nullptr;          // KvCommand
};

enum class AdapterTier : uint8_t { kSource, kLoading, kResident, kFailed };

struct AdapterStatus {
  AdapterSourceSpec source;
  AdapterTier tier = AdapterTier::kSource;
  std::string version;  // hex digest once known
  int64_t bytes = 0;
  int32_t rank = 0;
  int32_t users = 0;    // running requests
  int32_t waiting = 0;  // queued requests
  int64_t uses = 0;
  double recent_uses = 0;            // RecentUses, when this was told
  double load_s = 0;                 // of its last load; 0: none
  std::optional<double> keep_score;  // KeepOrder's, when room was last looked for and it could have left
  std::string left;                  // why it left memory; empty: it is there, or was never
  bool pinned = false;
  bool on_device = false;                                // kResident: a copy of it lies in the device's memory, too
  std::string error;                                     // kFailed
  std::vector<std::string> report;                       // what was applied
  std::vector<std::pair<std::string, int32_t>> modules;  // by name, on how many
  double change_norm = 0;                                // Adapter::change_norm
};
using AdapterList = std::vector<std::shared_ptr<const AdapterStatus>>;

// What a source is shown as is another than before, or (null) it is gone.
struct AdapterNews {
  AdapterSourceId source;
  std::shared_ptr<const AdapterStatus> status;
};

// --- state

// Steps are counted by their rows, up to each of these and beyond (vLLM's buckets).
inline constexpr std::array<int32_t, 13> kStepRowsLimits = {1,   8,    16,   32,   64,   128,  256,
                                                            512, 1024, 2048, 4096, 8192, 16384};
// A memory's budget and who has how much of it.
struct MemoryShares {
  int64_t memory_budget_bytes = 0, weights_bytes = 0, adapter_bytes = 0, adapter_bytes_max = 0, kv_bytes = 0,
          scratch_bytes = 0, request_bytes = 0, other_bytes = 0;
};

// Of one queue of the scheduler.
struct QueueGauges {
  int32_t waiting = 0;
  int64_t quota_tokens = 0, taken_tokens = 0;  // 0 and 0 where there are no quotas
};

struct EngineStats : MemoryShares {  // the host's
  std::string device;                // that computes in a memory of its own, as users name it; empty: none
  MemoryShares device_memory;
  // Of the device's memory beside what was asked for: when the budget was
  // made (this program's context, other programs), and by the driver since
  // (device_memory.other_bytes is its allowance).
  int64_t device_before_bytes = 0, device_driver_bytes = 0;
  // Why every request ends with an error for now (weights that cannot be read until their
  // file is made again); it passes, and is ok again, by itself. Ok: they are computed,
  // or see Engine::health().
  Status ready;
  int32_t running = 0, waiting = 0, waiting_for_adapter = 0, held = 0;
  std::array<QueueGauges, kSizeGroupsMax> queues{};
  int32_t queue_count = 1;  // of these
  // Used: leased by running sequences. Cached: free to evict, those that hold what is
  // encoded among them.
  int64_t kv_blocks_total = 0, kv_blocks_used = 0, kv_blocks_cached = 0;
  KvCoded kv_coded;
  KvStates kv_states;
  std::optional<KvDiskStats> kv_disk;      // where prefixes are kept on disk
  int64_t kv_restored_blocks = 0;          // that came back from there
  std::optional<KvEventCounts> kv_events;  // where others are told
  BlockTimes kv_block_times;
  // What KV and adapters have for sure, and who gave to whom beyond that.
  int64_t kv_floor_bytes = 0, adapter_floor_bytes = 0;
  GivenBytes given;
  uint64_t steps = 0, prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, preemptions = 0;
  uint64_t borrowed_tokens = 0;  // TokenEvent's, and those of sequences that were preempted
  uint64_t squashes = 0;         // of preemptions: of those that had passed others and ran longer than they were to
  std::array<LengthErrors, kLengthPredictions> length_errors{};  // of predicted lengths, by what predicted
  uint64_t prefix_queries = 0, prefix_hits = 0;                  // tokens
  uint64_t drafted_tokens = 0, accepted_tokens = 0;              // of speculation
  // Requests that wanted something of time, by SloKind: [0] missed, [1] met.
  std::array<std::array<uint64_t, 2>, kSloNames.size()> slo_requests{};
  // How long requests waited before anything of them was computed, by cause.
  std::array<double, kWaitCauses> waited_s{};
  int64_t idle_adapter_bytes = 0;  // of adapter_bytes: nobody uses them, and they are not pinned
  uint64_t adapter_loads = 0, adapter_load_failures = 0, adapter_evictions = 0;
  int64_t adapter_load_bytes = 0;                                  // as they lie in memory
  uint64_t adapter_loads_ahead = 0, adapter_loads_ahead_used = 0;  // of adapter_loads; RegistryCounters
  uint64_t adapter_uploads = 0;                                    // from host memory to the device that computes
  int64_t adapter_upload_bytes = 0;
  double adapter_upload_s = 0;
  ColdStarts cold_starts;
  double step_ms_last = 0;
  int32_t rows_last = 0;
  uint64_t rows = 0;                                                 // of all steps
  std::array<uint64_t, kStepRowsLimits.size() + 1> steps_by_rows{};  // the last: above all limits
  // Of all steps: planning, computing, sampling; and what of it went into the
  // model's large parts.
  double step_s = 0, products_s = 0, attention_s = 0, lora_s = 0, disk_s = 0;
  double collective_s = 0;       // of it, with other ranks, waiting for them included
  int64_t collective_bytes = 0;  // that these sent
  int64_t disk_read_bytes = 0;   // of streamed weights
  int64_t expert_hits = 0;       // experts that a layer's rows chose: in the cache of them
  int64_t expert_misses = 0;     // and read from disk
  int64_t streamed_bytes = 0;    // of weights in every pass; 0: everything is resident
  // Of a profile by which steps take their time (engine/pace.h), its name; empty: they
  // take what they take. Of those that took longer: how many, and by how much.
  std::string paced_as;
  uint64_t paced_late_steps = 0;
  double paced_late_s = 0;
};

// What comes up: news in order, before everything else, so that who has a reply may look
// at once; replies in order of completion; tokens in order. News that no reply waits for
// are at most kAdapterNewsNs old while steps are computed, and there at once otherwise.
struct EngineOutput {
  std::vector<AdapterNews> adapters;
  std::vector<CommandReply> replies;
  std::vector<TokenEvent> tokens;

  bool empty() const { return adapters.empty() && replies.empty() && tokens.empty(); }
};
inline constexpr int64_t kAdapterNewsNs = 100'000'000;

// Guessing tokens ahead, to be checked in one step (sched/prompt_lookup.h). The text
// stays the same, token for token.
enum class Speculation : uint8_t {
  kAuto,    // while weights are streamed: a row more costs little there
  kOff,     // never
  kLookup,  // always
};

// Which adapters come to memory before a step needs them.
enum class AdapterPrefetch : uint8_t {
  kQueue,      // those of waiting requests, in the order of admission
  kHistogram,  // and those that are expected soon, by when they were used so far (adapters/idle_times.h)
};

// Adapters that nobody uses and nobody waits with, where steps read them (a device's
// memory, else the host's). Texts are the same either way. Pinned ones stay.
struct AdapterKeeping {
  bool keeps = true;                         // until others need their room; false: they leave at once
  KeepPolicy policy = KeepPolicy::kDensity;  // who leaves first then
  KeepWeights weights;                       // of kChameleon
  AdapterPrefetch prefetch = AdapterPrefetch::kQueue;

  static AdapterKeeping none() { return {.keeps = false}; }
};

// Memory that nobody needs now (engine/kv_room.h).
enum class MemorySharing : uint8_t {
  kFixed,  // KV and adapters keep the shares that they have at start
  kJoint,  // these are floors; the rest has whoever gets more out of it. Not on a device.
};

inline constexpr int64_t kDefaultKvDirBytes = int64_t{4} << 30;
inline constexpr int64_t kStepTimeUnbounded = INT64_MAX;

struct EngineOptions {
  int64_t max_model_len = 0;  // prompt + output of one sequence, up to positions_reached(); 0: the model's max_position
  int32_t max_sequences = kDefaultMaxSequences;  // running at once
  int32_t max_queued = kDefaultMaxQueued;        // waiting requests; more are refused as overloaded
  int32_t step_tokens = kDefaultStepTokens;      // token budget of one step (chunked prefill)
  // Of one step, by which prompts are cut; 0: as sched/step_times.h says.
  int64_t step_time_ns = 0;
  // 0: what max_model_len x max_sequences needs, at most half of available memory after
  // the weights.
  int64_t kv_cache_bytes = 0;
  MemorySharing memory_sharing = MemorySharing::kFixed;  // of what is not stated
  KvEviction kv_eviction = KvEviction::kDensity;
  KvUtility kv_utility;  // of kUtility
  KvSharing kv_sharing = KvSharing::kExact;
  KvDelta kv_delta = KvDelta::kSteps;
  // Prefixes are kept in files of this folder, too, and found again by the next process;
  // empty: they are not.
  std::string kv_dir;
  int64_t kv_dir_bytes = kDefaultKvDirBytes;  // of files, at most
  AdapterKeeping adapter_keeping;
  ColdStart cold_start = ColdStart::kAuto;
  bool cold_start_stated = false;  // by the user: on a GPU nobody begins early otherwise
  int32_t assist_helpers = -1;     // processes for kAssisted; -1: as many as cores are left
  SchedulingOptions scheduling;
  int64_t adapter_bytes = 0;        // 0: a quarter of what is left
  int64_t request_bytes = 0;        // reserved for requests; 0: a part of the budget where a server runs
  int64_t host_adapter_bytes = 0;   // beside a device: of host memory; 0: as many as there, in what is sensible
  int64_t memory_budget_bytes = 0;  // 0: what the machine has available now
  std::optional<DType> kv_dtype;    // f32, f16, bf16, int8 or fp8; unset: f32 for f32 models, else f16
  bool prefix_cache = true;
  Speculation speculate = Speculation::kAuto;
  bool adapter_strict = true;
  bool adapter_int8 = false;     // keep low-rank factors as int8 (--adapter-quant int8)
  int32_t adapter_rank_max = 0;  // 0: limits.h
  int32_t adapter_load_threads = 2;
};

inline constexpr int32_t kAllChoices = -1;

class Engine {
 public:
  virtual ~Engine() = default;

  virtual Status submit(Submit request) = 0;
  // Ends one choice, or all of them. Idempotent; unknown ids and choices are ignored.
  virtual void cancel(RequestId id, int32_t choice) = 0;
  void cancel(RequestId id) { cancel(id, kAllChoices); }
  // Nobody takes what a request says: while it is held no step computes anything of it,
  // and slots and KV are for others. Let go it takes its turn by its age, from where
  // it was: what it had computed is found in the prefix cache, or computed again.
  // Unknown ids are ignored.
  virtual void hold(RequestId id, bool held) = 0;
  virtual Status command(AdapterCommand command) = 0;
  // One change at a time: overloaded while another is under way; its reply says
  // too_large, with the least that would do, when the budget cannot do (and
  // nothing changed then).
  virtual Status command(MemoryCommand command) = 0;
  virtual Status command(QueuesCommand command) = 0;
  virtual Status command(KvCommand command) = 0;
  virtual Status command(AppCommand command) = 0;
  // Ends the budget change of this ticket while it is being prepared (its reply says so;
  // nothing has changed). One that is being made is made; unknown tickets are ignored.
  virtual void cancel_memory(uint64_t ticket) = 0;

  // Looks at config and headers of the adapter's files, on the caller's thread: what a
  // load would say of them is the answer, and comes up as AdapterNews soon after, as far
  // as no load tells more. Ok also clears a failure that was mended since.
  virtual Status check_adapter(const AdapterSourceSpec& source) = 0;

  // Waits up to timeout_ns for output; empty when none came. One consumer thread.
  virtual EngineOutput wait_output(int64_t timeout_ns) = 0;
  virtual EngineStats stats() const = 0;  // a recent snapshot
  // Why nothing can be computed any more (a GPU that is lost): from then on every request
  // ends with this error, until the process is started again. Ok: it can.
  virtual Status health() const = 0;

  // What requests may take of the memory budget, beside what the engine itself
  // computes with.
  virtual std::shared_ptr<ByteBudget> request_memory() const = 0;
  virtual const Heartbeats& heartbeats() const = 0;  // of its threads: "engine", "adapter loader"
  virtual int64_t max_model_len() const = 0;
  virtual const std::string& fingerprint() const = 0;  // build, weights digest, kernel path

  // Refuses new requests; those running, and what follows them, go on, but a budget
  // change that is still being prepared ends. stop() ends what is left with kCancelled
  // and joins the engine thread.
  virtual void drain() = 0;
  virtual void stop() = 0;
};

}  // namespace loralei

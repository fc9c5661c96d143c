// SPDX-License-Identifier: Apache-2.0
// EngineHost: a model file turned into a running engine on this machine's cores or a
// device: opened, memory planned, its weights loaded or streamed, kernels chosen. What
// serve, run and bench share.
//
// Thread: start and destroy from one thread; the engine inside is thread-safe.
// Ownership: owns every part, destroyed in the right order.
// Failure: a sentence that names the file, flag or number.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/log.h"
#include "cost/profile.h"
#include "cost/step_features.h"
#include "engine/api.h"
#include "engine/budget_plan.h"
#include "engine/device_backend.h"
#include "formats/base_model.h"
#include "kv/kv_events.h"
#include "parallel/process_group.h"
#include "sys/block_reader.h"
#include "sys/file.h"
#include "weights/residency.h"
#include "weights/shrink_choice.h"

namespace loralei {

// How layer inputs meet weights. kAuto rounds them as the fastest kernels take them:
// to int8 for quantised weights (ops/args.h), to bf16 for bf16 ones where the processor
// multiplies those (OpTable::rounds_bf16). kInt8 does only the first, kF32 neither (slow;
// quantised weights are decoded to f32).
enum class Activations { kAuto, kInt8, kF32 };

struct EngineHostOptions {
  std::string model_path;
  std::vector<std::string> model_names;  // what else the model is called: an adapter says which one it was made for
  std::optional<DType> quantise;
  Activations activations = Activations::kAuto;
  std::string isa;  // "" = the best this machine has; ref, avx2, avx512_vnni ...
  int threads = 0;  // 0: the cores this process may use
  // Ranks that compute the model together, each a thread with its share of `threads` and
  // its part of the weights.
  int tensor_parallel = 1;
  // Where the ranks are processes (parallel/process_group.h), this one's group; null:
  // they are threads. Borrowed.
  ProcessGroup* processes = nullptr;
  // Where the weights do not fit the budget: what is locked, and where the packed file
  // may lie if not beside the model.
  ResidencyOptions residency;
  StreamShrink stream_shrink = StreamShrink::kAuto;
  std::string cache_dir;
  bool read_ahead = true;  // false: weights are read when they are waited for; for measuring
  // Opens the packed file to stream from; empty: open_block_reader. Tests put
  // faults in its place.
  std::function<Result<std::unique_ptr<BlockReader>>(const std::string& path, const BlockReaderOptions&)> open_stream;
  // What is resident of this process, asked about once a second so that its share
  // of the budget follows; empty: it stays what it was at start. Not asked where
  // a device computes.
  std::function<int64_t()> process_bytes;
  // What adapters are read from; null: the machine's, wherever links lead. Borrowed.
  const FileSystem* adapter_files = nullptr;
  std::function<void(const StepRecord&)> on_step;  // EngineContext::on_step
  // EngineContext::lengths, of a base model by its fingerprint, and keep_lengths; both or
  // neither.
  std::function<std::shared_ptr<const LengthsState>(const std::string& base)> recall_lengths;
  std::function<void(LengthsState&&)> keep_lengths;
  std::shared_ptr<KvEvents> kv_events;  // EngineContext::kv_events
  bool whole_windows = false;           // one block table for all layers, whatever windows these attend to
  // Steps and loads of adapters take at least what this says (engine/pace.h); null: what
  // they take.
  std::shared_ptr<const Profile> pace;
  EngineOptions engine;
  DeviceFactory device;            // empty: the cores
  AssistSetup assist;              // how helpers are started; how many, engine.assist_helpers says
  std::vector<std::string> notes;  // sentences about these options, for the log
  std::string build;               // named in the fingerprint
};

using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

struct FixedBytes;
struct StreamShares;
struct StreamingOptions;
struct PackedFile;
struct WeightOptions;
struct EngineParts;
struct RoomMaker;
struct ModelLimits;
class Ledger;

// What start() would do with the model under the budget, without doing it. A packed file
// that is there tells how its matrices are stored; without one they are taken as they are
// held, which is the most that start() would read.
struct StreamForecast {
  std::string text;            // the shares and the plan as a table
  int64_t touched_bytes = 0;   // weights a pass of one row uses
  int64_t streamed_bytes = 0;  // of them read from disk in every pass; of experts, what is expected (residency.h)
};
Result<StreamForecast> forecast_streaming(const EngineHostOptions& options);

// A rank other than 0 of options.processes: reads its part of the model and computes as
// rank 0's engine tells it to, until that stops (ok) or the group ends. A rank that
// cannot go on answers why.
Status run_rank(const EngineHostOptions& options, LogSink& log, const LoadProgress& progress);

class EngineHost {
 public:
  static Result<std::unique_ptr<EngineHost>> start(const EngineHostOptions& options, LogSink& log,
                                                   const LoadProgress& progress);
  ~EngineHost();
  EngineHost(const EngineHost&) = delete;
  EngineHost& operator=(const EngineHost&) = delete;

  Engine& engine();
  const BaseModelFile& file() const;
  int threads() const;
  int32_t max_sequences() const;  // that run at once: as many as asked for, or fewer where memory has no more states
  DType kv_dtype() const;
  const char* isa() const;
  const WeightStore& weights() const;           // with a GPU: shapes and vectors, the matrices' bytes are there
  const WeightOptions& weight_options() const;  // how the weights are held
  const Ledger& ledger() const;
  const Ledger* device_ledger() const;     // null: the cores compute
  std::string banner() const;              // where the memory goes, as a small table
  std::vector<std::string> notes() const;  // a sentence for each thing a user should know of the model and the plan

 private:
  friend class ModelHost;
  EngineHost();
  Status prepare(const EngineHostOptions& options, LogSink& log, const LoadProgress& progress, EngineParts& engine);
  Status use_cores(const FixedBytes& fixed, EngineParts& engine, LogSink& log);
  Status load_ranks();
  Status join_fingerprints();
  Status start_ranks(const ModelLimits& limits, EngineParts& engine);
  Status use_device(const FixedBytes& fixed, EngineParts& engine, LogSink& log);
  Status check_device_room(const FixedBytes& fixed) const;
  void keep_pace(EngineParts& engine);
  void control_memory(EngineParts& engine, LogSink& log);
  void watch_device(LogSink& log);
  void use_kv_steps(EngineParts& engine, LogSink& log);
  void use_found_steps(EngineParts& engine, LogSink& log);
  void plan_lending(EngineParts& engine, LogSink& log);
  std::string describe_kv() const;
  std::string describe_states() const;
  std::string describe_kv_sharing() const;
  std::string note_of_windows() const;
  std::string threads_text() const;
  Result<std::unique_ptr<WeightStore>> stream_weights(const StreamShares& shares, LogSink& log);
  StreamingOptions streaming(int64_t weight_bytes) const;
  RunningMemory running_memory(int64_t idle_adapter_bytes) const;
  Result<BudgetShares> shares_of(int64_t budget, int64_t idle_adapter_bytes) const;
  Status prepare_budget(int64_t budget, int64_t idle_adapter_bytes, const std::stop_token& stop, LogSink& log);
  Result<PackedFile> pack_beside_steps(WeightOptions options, const std::stop_token& stop, LogSink& log);
  Status mend_packed(LogSink& log);
  void begin_mending(LogSink& log);
  Status stream_from(const Result<std::string>& made, LogSink& log);
  Status apply_budget(int64_t budget, const RoomMaker& room, LogSink& log);
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace loralei

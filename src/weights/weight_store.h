// SPDX-License-Identifier: Apache-2.0
// WeightStore: residency of the base model's matrices: all in memory, or some rows
// locked there and the rest streamed from the packed file in every pass (FlexInfer,
// mechanisms §2).
//
// The layer program uses matrices in rounds: each hands out panels that are in memory,
// the locked ones first, and their streamed panels may be overwritten as soon as the next
// round begins. Everything resident is one round.
//
// Experts of a mixture are used through ExpertUse (expert_use.h): where not all of them
// fit, they are in a cache of their own instead of being locked or streamed by passes.
//
// Thread: load() and stream() from one thread; uses, look_up(), passes and resize()
// from the executor thread, resize() between passes; plan_for(), least_bytes() and
// whole_bytes() from any, while neither resize() nor open_packed_file() runs.
// Ownership: owns the bytes under a ledger grant; a WeightUse and a WeightPass must not
// outlive the store.
// Invariants: a pass uses the matrices in the order of residency.h (it may end early);
// the bytes of a round are valid and unchanged until the next; a matrix stored in f16
// whose numbers are all of bf16 is held as bf16, streamed or not (tensor/bf16_in_f16.h);
// locked rows and those of a round are held as the kernels take them, shrunk ones decoded
// (tensor/shrink.h); what is held never exceeds the grant, during a resize neither.
// Failure: load() answers a sentence (too large for the budget, with the numbers; short
// file; unsupported dtype); next() and look_up() answer what reading failed of. Each tile
// of the packed file is checked whenever it is read; one that is damaged is kCorrupt,
// and the file is removed, so that it is made again (damage(), reopen()); what is sound
// of it is read on.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/log.h"
#include "base/result.h"
#include "device/host/thread_pool.h"
#include "formats/base_model.h"
#include "memory/ledger.h"
#include "sys/block_reader.h"
#include "tensor/weight_view.h"
#include "weights/expert_cache.h"
#include "weights/read_units.h"
#include "weights/residency.h"
#include "weights/streamer.h"

namespace loralei {

// For messages to a user whose model is too large: "use a quantised file or --quant
// q4_0", where that changes something.
std::string smaller_weights_advice(const BaseModelFile& model);

using TensorSlot = int32_t;  // index of a matrix in the store; -1: the model has none of that name
inline constexpr TensorSlot kNoTensor = -1;

class ExpertUse;
class WeightStore;

// The panels of up to kMatricesMax matrices that meet one input, round by round: streamed
// ones as soon as they are there, a portion of the locked ones while they are not.
class [[nodiscard]] WeightUse {
 public:
  static constexpr size_t kMatricesMax = 4;
  WeightUse(WeightStore& store, std::span<const TensorSlot> slots);
  ~WeightUse();
  WeightUse(const WeightUse&) = delete;
  WeightUse& operator=(const WeightUse&) = delete;

  // The next round, after which the panels of the one before are not used any more: false
  // when every panel has been handed out. Waits for the disk where it must.
  Result<bool> next();
  // This round's panels of matrix `index`, possibly none.
  const WeightView& view(size_t index) const { return views_[index]; }

 private:
  bool awaits_streamed();
  bool next_locked(int64_t most_bytes);
  Result<bool> next_sound();
  Result<bool> next_streamed();

  WeightStore& store_;
  const size_t count_;
  std::array<TensorSlot, kMatricesMax> slots_{};
  std::array<WeightView, kMatricesMax> views_;
  size_t locked_matrix_ = 0;  // whose locked panels come next
  size_t locked_panel_ = 0;
  size_t matrix_ = 0;         // whose streamed panels come next
  int64_t panel_ = 0;         // of them
  int64_t streamed_end_ = 0;  // number in the pass behind the last that was handed out
};

// One forward pass. Without done() the next one begins anew: this one failed. Where the
// packed file could not be opened for reading the last time, it is tried again.
class [[nodiscard]] WeightPass {
 public:
  explicit WeightPass(WeightStore& store);
  ~WeightPass();
  WeightPass(const WeightPass&) = delete;
  WeightPass& operator=(const WeightPass&) = delete;
  void done();

 private:
  WeightStore& store_;
  bool done_ = false;
};

// Rows of an embedding: `tokens` index the rows of `view`.
struct EmbeddedRows {
  WeightView view;
  std::span<const TokenId> tokens;
};

struct StreamingOptions {
  int64_t weight_bytes = 0;  // for matrices, vectors and window
  ResidencyOptions residency;
  int32_t rows_max = 512;      // rows looked up together
  std::string packed_path;     // made by find_or_pack (pack.h)
  ThreadPool* pool = nullptr;  // checks and decodes panels, idle while next() is called; null: the calling thread does
  BlockReaderOptions reader;
  bool read_ahead = true;  // streamer.h
  // Of locked panels handed out together while streamed ones are awaited; 0: as many
  // bytes as the window has, which take much less time to compute than to read, and long
  // beside the start of a product.
  int64_t locked_round_bytes = 0;
  // Opens the packed file; empty: open_block_reader. Tests put faults in its place.
  std::function<Result<std::unique_ptr<BlockReader>>(const std::string& path, const BlockReaderOptions&)> open_reader;
};

// Of the packed file: found in a tile that was read. Once it is known the file is gone,
// or could not be removed.
enum class PackedDamage { kNone, kRemoved, kStays };

struct StreamShape {
  int64_t streamed_bytes = 0;      // in every pass, as planned and as stored
  int64_t decoded_bytes = 0;       // the same, as held
  int64_t window_bytes = 0;        // memory of what is on its way
  int64_t window_bound_bytes = 0;  // what three layers stream, or 128 MiB, whichever is less
};

class WeightStore {
 public:
  // Bytes of all matrices and vectors when held as the options say.
  static Result<int64_t> bytes_needed(const BaseModelFile& model, const WeightOptions& options);
  // What a plan for this model works on.
  static Result<std::vector<PlannedMatrix>> planned(const BaseModelFile& model, const WeightOptions& options);

  // Reads every tensor of the model into memory (parallel, un-permuting GGUF q/k rows
  // where the file says so).
  static Result<std::unique_ptr<WeightStore>> load(const BaseModelFile& model, Ledger& ledger,
                                                   const WeightOptions& options);
  // Reads the locked rows from the packed file and begins to stream the rest.
  static Result<std::unique_ptr<WeightStore>> stream(const BaseModelFile& model, Ledger& ledger,
                                                     const WeightOptions& options, const StreamingOptions& streaming,
                                                     LogSink& log);
  // stream() from the packed file that find_or_pack finds or makes, whose path it writes
  // into `streaming`; one that is found to be damaged is made again, once.
  static Result<std::unique_ptr<WeightStore>> stream_found(const BaseModelFile& model, Ledger& ledger,
                                                           const WeightOptions& options, const std::string& cache_dir,
                                                           StreamingOptions& streaming, LogSink& log);
  ~WeightStore();

  // What resize() to so many bytes would do, which it refuses where this does,
  // and the least bytes that do. Both count with matrices as they are held until
  // open_packed_file() has told how they are stored.
  Result<ResidencyPlan> plan_for(int64_t weight_bytes, const ResidencyOptions& residency) const;
  int64_t least_bytes(ResidencyPolicy policy) const;
  Status open_packed_file(const BaseModelFile& model, const WeightOptions& options, const std::string& path);

  // Holds the same weights in other bytes from the next pass on: locks rows or gives
  // them up, in place, and streams what is not locked. Refused (a plan that cannot do,
  // a packed file that does not fit or was removed or replaced since it was opened,
  // a model whose file has changed since) it changes nothing; when reading the rows to be
  // locked fails, those are streamed instead and the error is answered: nothing more is
  // held than before, or than the plan.
  Status resize(const BaseModelFile& model, const WeightOptions& options, const StreamingOptions& streaming,
                LogSink& log);

  PackedDamage damage() const;
  bool packed_shrunk() const;  // matrices are shrunk in the packed file, where that is worth it
  // Between passes: streams on from another packed file of the same weights, made in
  // the place of a damaged one. Refused (it is of other weights, or cannot be opened)
  // the damage stays.
  Status reopen(const BaseModelFile& model, const WeightOptions& options, const std::string& path, LogSink& log);

  // Gives the matrices' bytes back, because a device has them. Shapes, vectors and
  // fingerprint stay; no pass may follow. For a store that does not stream.
  void release_matrices();

  TensorSlot find(const std::string& name) const;  // canonical name
  // The whole matrix; its panels only where it is resident.
  const WeightView& view(TensorSlot slot) const;
  Result<EmbeddedRows> look_up(TensorSlot slot, std::span<const TokenId> tokens);
  // One-dimensional tensors (norms, biases) as f32, resident for ever. [count]
  const float* vector(const std::string& name) const;
  int64_t resident_bytes() const;  // locked rows, vectors and window
  int64_t whole_bytes() const;     // what everything takes when nothing is streamed
  // Formats of the matrices in a layout, each once.
  std::vector<DType> formats(LayoutId layout) const;
  // Names these weights in system_fingerprint: a fast hash of names, places and
  // bytes of the source.
  const std::string& fingerprint() const;
  // Of a rank's part the fingerprint is one of the part alone. With those of all other
  // ranks it is the model's.
  void join_fingerprint(const std::string& of_other);
  bool streams() const;
  StreamerTotals stream_totals() const;  // of experts, too
  ExpertTotals expert_totals() const;    // where they are cached
  StreamShape stream_shape() const;
  int64_t read_bytes_per_pass() const;  // of one row, experts as is expected (residency.h)
  // For people: the plan and how the disk is read, where weights are streamed, and how
  // many f16 matrices are bf16.
  std::string describe() const;
  void check() const;  // no use open is an idle invariant

 private:
  friend class ExpertUse;
  friend class WeightUse;
  friend class WeightPass;
  WeightStore();
  void begin_pass();
  void end_pass(bool done);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace loralei

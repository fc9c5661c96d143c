// SPDX-License-Identifier: Apache-2.0
// CudaModel: the layer program on a GPU, the twin of Model for the same ModelBatch.
// Unproven on a GPU so far: its tests run the kernels on the emulated one and compare
// logits with Model's.
//
// A step is one copy of its tables to the device (StepTables), launches, copies of what
// was asked for back (tokens that were chosen here, logits of the other rows, hidden
// states), and one wait at the end. The launches of a decode step (one row of every
// sequence, no hidden states) are those of its bucket (StepShape), recorded the second
// time a bucket comes and run as one graph from then on (StepGraphs).
// Thread: create() and forward() from one thread at a time; forward() makes the model's
// device the thread's.
// Ownership: owns weights, activations, adapters and stream on the
// device; borrows nothing but the log and the group after create().
// Invariants: a row's logits depend on its tokens, adapters and KV alone, bit for bit
// among steps of the same kernel class (cuda_products.h: few or many rows; step_tables.h:
// attention row by row or in tiles), which the host's Model promises for all steps;
// with `batch_invariant` there is one class (products of few rows, attention row by row),
// and that promise is kept here too; recorded or not is the same bits. No allocation in
// forward() but for a bucket's first two (the driver keeps a graph's nodes in memory of
// its own, not in device_bytes()). Adapters are brought before their first step through
// adapters(); one that nobody brought is uploaded, and waited for, in the step that
// uses it. An adapter that is uploaded, dropped or replaced needs no new graph as long
// as the highest rank of each module stays in its power of two. With `layered_adapters` a
// step may have adapters that are on their way (ArrivingLayers): it is launched kernel by
// kernel, and its bits are those of a step that has them. Numbers: the residual
// stream and sums are f32; inputs of products bf16 (or f32, as chosen), or rounded to
// int8 as on the CPU.
//
// Full tensors that adapters replace (batch.overrides) are read by the rows of that
// adapter alone, from its copy on the device. A step with such rows is launched kernel
// by kernel, never recorded; for all other rows of it the launches, and so the bits,
// are those of a step without. A head of an adapter's own, and its trained tokens in the
// head, go through the products of few rows whatever the rows: one class.
//
// One of several ranks computes its part, as Model says (model.h), with a DeviceGroup;
// only rank 0 gives results: logits of all rows of the vocabulary, hidden states, chosen
// tokens. Its steps are launched kernel by kernel, never recorded. A step that fails in
// one rank ends the group, unless it is one that all refuse alike: too many positions.
//
// Not supported, and refused with a sentence: weights that stream from disk, vocabularies
// beyond vocab_max(), and, with a group, adapters that are on their way.
// Failure: create() says what is needed and what is free; after a failed forward()
// the step's results are undefined and the model can go on, unless the device is lost
// (cuda_device.h: kUnavailable; then every step fails). A step whose adapters' layers are
// late or will not come fails as ArrivingLayers says, and waits().ended_by has whose.
#pragma once

#include <cstdint>
#include <memory>

#include "base/log.h"
#include "base/result.h"
#include "model/cuda/cuda_adapters.h"
#include "model/cuda/cuda_kv.h"
#include "model/cuda/device_group.h"
#include "model/layer_sums.h"
#include "model/model.h"

namespace loralei {

class StepGraphs;

struct CudaModelOptions {
  int device = 0;
  ModelLimits limits;
  DType activation = DType::kBF16;                  // inputs of products; f32: exact, and slow for many rows
  int64_t adapter_bytes_max = int64_t{64} << 20;    // taken at create(), in one piece
  int64_t upload_bytes_max = int64_t{16} << 20;     // of adapters in flight: pinned host memory, taken at create()
  int32_t adapters_max = 256;                       // in one step
  int64_t decode_bytes_max = int64_t{128} << 20;    // weights decoded for products of many rows at a time
  int64_t attention_bytes_max = int64_t{64} << 20;  // partial results of attention at a time, one row's at least
  int64_t table_blocks_max = 0;                     // KV blocks of all sequences of a step; 0: see cuda_model.cc
  // Logits beyond the model's vocabulary, for adapters with a larger one: on the
  // device, and pinned.
  int64_t extra_logits_bytes_max = int64_t{8} << 20;
  bool batch_invariant = false;   // all steps in one kernel class: slow for many rows
  bool graphs = true;             // decode steps as recorded graphs
  int32_t graphs_max = 64;        // kept at a time, the least recently used goes first; 0: none
  int32_t host_rows_max = 0;      // of a step, of adapters on their way whose layers the host computes
  bool layered_adapters = false;  // steps may use adapters that are on their way
  LogSink* log = nullptr;         // told when the driver refuses to record; outlives the model
};

class CudaModel {
 public:
  // With a group: the rank's part, of which `config` is config_of_rank() and `weights`
  // hold the rank's part.
  static Result<std::unique_ptr<CudaModel>> create(const ModelConfig& config, const WeightStore& weights,
                                                   const CudaModelOptions& options, DeviceGroup* group = nullptr);
  ~CudaModel();
  CudaModel(const CudaModel&) = delete;
  CudaModel& operator=(const CudaModel&) = delete;

  // `kv` is of this model's shape (a rank's has its heads alone) and on its device.
  // `wait_at_most_ns`: in all, for layers of adapters that are on their way. `sums`: who
  // computes on the host what such layers add, by options' host_rows_max; may be null.
  Status forward(const ModelBatch& batch, const CudaKv& kv, int64_t wait_at_most_ns = 0, LayerSums* sums = nullptr);
  const StepWaits& waits() const;  // of the step before
  CudaAdapters& adapters();
  const StepGraphs& graphs() const;
  int64_t sources_made() const;  // steps for which the table of LoRA sources was made and copied
  const ModelConfig& config() const;
  const ModelLimits& limits() const;
  int32_t vocab_max() const;  // of an adapter

  // Device memory held for weights, activations and scratch; adapters and CudaKv
  // have their own.
  int64_t device_bytes() const;
  // The same before a model is made, by use, so that memory can be planned; no
  // device is needed.
  struct DeviceBytes {
    int64_t weights = 0;
    int64_t scratch = 0;  // activations, tables, decoded weights, partial results
    int64_t driver = 0;   // an allowance for what the driver takes: kernels' code and recorded graphs
  };
  static Result<DeviceBytes> device_bytes(const ModelConfig& config, const WeightStore& weights,
                                          const CudaModelOptions& options, const Shard& shard = {});
  // Host memory that is pinned for results, tables and uploads, and what is taken of it
  // for rows whose layers the host computes.
  static int64_t pinned_bytes(const ModelConfig& config, const CudaModelOptions& options);

 private:
  struct State;
  explicit CudaModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace loralei

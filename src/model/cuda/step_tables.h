// SPDX-License-Identifier: Apache-2.0
// StepTables: what a step's kernels read besides activations, filled on the host into
// one pinned buffer and copied to the device at once: tokens, positions, block tables,
// attention tiles, LoRA plans, the rows of logits and how their tokens are chosen,
// trained tokens. The table of LoRA sources lies before them and is filled and copied
// where a step's adapters, or their places, are others than those of the step before. A
// decode step is filled up to its bucket (StepShape) with idle rows, parts and runs. Rows
// whose adapter replaces full tensors are in no bucket: their launches name these
// tensors, so a step with one is launched as it is, kernel by kernel. So is a step with
// adapters that are on their way (ArrivingLayers): its launches are those of the moment.
//
// Thread: the model's.
// Ownership: owns both buffers; the spans of a StepView live until the next fill().
// Invariants: no allocation after create() but for adapters that nobody brought before
// their first step; the step before is done when fill() begins; arrays lie where the
// shape's numbers put them, so steps of one shape have the same addresses (block tables
// come last: their length is the step's own).
// Failure: sentences, for a step beyond the limits and for what the device has no kernel
// for; nothing was launched but uploads of adapters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "model/cuda/arriving_layers.h"
#include "model/cuda/cuda_adapters.h"
#include "model/cuda/cuda_kv.h"
#include "model/cuda/step_shape.h"
#include "model/model.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/lora_plan.h"

namespace loralei {

// Runs of at least so many rows of one sequence go through tiled attention where the head
// size has it: fewer would leave most of a tile's 64 rows idle while the positions are
// read all the same.
inline constexpr int32_t kTiledAttentionRows = 16;

// Rows [row_begin, row_begin + row_count) that go through attention row by row; their
// positions are below positions_max.
struct AttentionRun {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  int32_t positions_max = 0;
};

struct LoraUse {
  cuda::LoraStep step;
  int32_t entries = 0;  // of the shape; 0: no LoRA
};

// Rows of an adapter whose layers the host may compute (ArrivingLayers).
struct ApartLora {
  size_t arriving = 0;  // which
  LoraUse use;
};

// Rows [row_begin, row_begin + row_count) that use the same full tensors.
struct SavedRun {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  const DeviceSaved* saved = nullptr;  // null: the model's own
  // Among the step's rows: rows trained_to[i] have a trained token, the
  // trained_from[i]th.
  const int32_t* trained_from = nullptr;
  const int32_t* trained_to = nullptr;
  int32_t trained_count = 0;
};

// What a step needs and had begun to come is not there after all.
inline Error lost_on_its_way() {
  return internal_error("An adapter of a step did not come to the device while the step was prepared.");
}

inline bool own_embed(const SavedRun& run) { return run.saved != nullptr && run.saved->embed.rows > 0; }
inline bool own_head(const SavedRun& run) { return run.saved != nullptr && run.saved->lm_head.rows > 0; }

// Device pointers of the step, whose lengths are those of the shape. Modules are numbered
// as ModelBatch::sources has them.
struct StepView {
  const StepShape* shape = nullptr;
  bool bucket = false;  // a decode step, filled up: its launches may be recorded
  const TokenId* tokens = nullptr;
  cuda::StepRows rows;
  const int32_t* hidden_from = nullptr;
  const int32_t* logits_from = nullptr;
  const RowChoice* choices = nullptr;  // of the rows that want logits, where the shape says that it chooses
  std::span<const AttentionRun> runs;
  const cuda::AttentionTile* tiles = nullptr;
  int32_t tile_count = 0;
  LoraUse lora, head_lora;
  std::span<const ApartLora> apart;           // that are not in `lora`
  const cuda::DeviceLora* sources = nullptr;  // [modules][slots]
  // Each covers its rows in order: the step's, those that want hidden states, those
  // that want logits.
  std::span<const SavedRun> saved, hidden_saved, logits_saved;
  int32_t vocab = 0;  // columns of the logits: the largest vocabulary of their rows, the model's at least
  int64_t logits_stride = 0;
  ArrivingLayers* arriving = nullptr;  // null: all adapters of the step are there
};

// Rows of logits begin where a product may put them whatever vocabularies
// meet: 256 bytes.
inline int64_t logits_stride(int32_t vocab) { return (int64_t{vocab} + 63) / 64 * 64; }

class StepTables {
 public:
  struct Options {
    ModelLimits limits;
    bool tiled_attention = false;
    int64_t table_blocks_max = 0;  // entries of all block tables of a step
    int32_t slots_max = 0;
    int32_t vocab_max = 0;      // of an adapter's head
    bool buckets = false;       // decode steps are filled up to their bucket
    int64_t positions_max = 0;  // of a sequence
    int32_t host_rows_max = 0;  // of adapters that are apart
  };
  static int64_t bytes(const ModelConfig& config, const Options& options);  // pinned, and the same on the device
  int64_t sources_made() const { return sources_made_; }                    // times the table of sources was copied
  static Result<StepTables> create(const ModelConfig& config, const Options& options);

  // Puts the copy on the stream. `arriving`, which has begun, is told of the adapters
  // that are on their way.
  Result<StepView> fill(const ModelBatch& batch, const CudaKv& kv, CudaAdapters& adapters, ArrivingLayers& arriving,
                        CudaStream& stream);
  static int32_t entries_max(const ModelLimits& limits);

 private:
  // What the table of sources was made from.
  struct Filled {
    std::vector<AdapterVersionId> versions;  // empty: of nothing
    int32_t slots = 0;                       // of the shape
    std::vector<int32_t> ranks;              // the step's own
    uint64_t generation = 0;                 // of the adapters
    std::vector<int32_t> slabs;
  };
  StepTables(const ModelConfig& config, const Options& options);
  // Room for `count` of T: where the host writes, and where the device will find it.
  Status take_bytes(int64_t bytes, std::byte** host, const std::byte** device);
  template <typename T>
  Status take(size_t count, T** host, const T** device) {
    std::byte* host_bytes = nullptr;
    const std::byte* device_bytes = nullptr;
    TRY(take_bytes(static_cast<int64_t>(count * sizeof(T)), &host_bytes, &device_bytes));
    *host = reinterpret_cast<T*>(host_bytes);
    *device = reinterpret_cast<const T*>(device_bytes);
    return {};
  }
  // `values`, then `padding` up to `count`.
  template <typename T>
  Status put(std::span<const T> values, int32_t count, T padding, const T** device);

  static int64_t source_bytes(const ModelConfig& config, const Options& options);
  Status expect(const ModelBatch& batch, CudaAdapters& adapters, ArrivingLayers& arriving);
  std::span<const LoraSegment> sort_segments(const ModelBatch& batch, const ArrivingLayers& arriving);
  Status make_plans(const ModelBatch& batch, std::span<const LoraSegment> segments);
  Status put_apart(const ModelBatch& batch, const ArrivingLayers& arriving, StepView& view);
  Status too_many_pairs() const;
  LoraSizes plan_sizes(const cuda::LoraPlan& plan, std::span<const LoraSegment> segments) const;
  void measure(const ModelBatch& batch, std::span<const LoraSegment> segments, const CudaKv& kv, bool bucket);
  Status put_rows(const ModelBatch& batch, int32_t** tables, StepView& view);
  void fill_choices(const ModelBatch& batch, RowChoice* choices) const;
  Status put_blocks(const ModelBatch& batch, int32_t blocks, int32_t* tables, StepView& view);
  Status put_attention(const ModelBatch& batch, StepView& view);
  Status put_lora(const cuda::LoraPlan& plan, const LoraSizes& sizes, LoraUse& use);
  Status ensure_saved(const ModelBatch& batch, CudaAdapters& adapters);
  Status put_trained(const ModelBatch& batch);
  Status put_saved(const ModelBatch& batch, CudaAdapters& adapters, StepView& view);
  Status ensure_adapters(const ModelBatch& batch, CudaAdapters& adapters);
  bool is_filled_from(const ModelBatch& batch, const CudaAdapters& adapters) const;
  Status put_sources(const ModelBatch& batch, CudaAdapters& adapters, bool layered, CudaStream& stream);
  Status check(const LoraPair& pair) const;
  void gather_segments(const ModelBatch& batch);

  const ModelConfig* config_;
  Options options_;
  PinnedBuffer host_;
  DeviceBuffer device_;
  int64_t used_ = 0;
  cuda::LoraPlan plan_, head_plan_, apart_plan_;
  std::vector<AttentionRun> runs_;
  std::vector<cuda::AttentionTile> tiles_;
  std::vector<LoraSegment> head_segments_, together_, one_apart_;  // together_: those that are not apart
  std::vector<ApartLora> apart_;
  std::vector<SavedRun> own_, saved_, hidden_saved_, logits_saved_;  // own_: those with tensors of their own
  std::vector<int32_t> trained_from_, trained_to_;
  int32_t vocab_ = 0;  // as StepView has it
  StepShape shape_;
  std::vector<CudaAdapters::ModulePair> pairs_;
  Filled filled_;
  int64_t sources_made_ = 0;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// StepTables: what a step's kernels read besides activations, filled on the host into one pinned buffer and copied to
// the device at once: tokens, positions, block tables, attention tiles, LoRA plans, the table of LoRA sources, the rows
// of logits, host deltas.
//
// Thread: the model's. Ownership: owns both buffers; the spans of a StepView live until the next fill(). Invariants: no
// allocation after create() but for what an adapter's first use takes; the step before is done when fill() begins.
// Failure: sentences, for a step beyond the limits and for what the device has no kernel for; nothing was launched but
// uploads of adapters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "model/cuda/cuda_adapters.h"
#include "model/model.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/lora_plan.h"

namespace loralei {

// Runs of at least so many rows of one sequence go through tiled attention where the head size has it: fewer would
// leave most of a tile's 64 rows idle while the positions are read all the same.
inline constexpr int32_t kTiledAttentionRows = 16;

// Rows [row_begin, row_begin + row_count) that go through attention row by row; their positions are below
// positions_max.
struct AttentionRun {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  int32_t positions_max = 0;
};

struct LoraUse {
  cuda::LoraStep step;
  int32_t entries = 0;  // (segment, row) pairs; 0: no LoRA
};

// Device pointers of the step. Modules are numbered as ModelBatch::sources has them.
struct StepView {
  const TokenId* tokens = nullptr;
  cuda::StepRows rows;
  const int32_t* hidden_from = nullptr;
  const int32_t* logits_from = nullptr;
  std::span<const AttentionRun> runs;
  const cuda::AttentionTile* tiles = nullptr;
  int32_t tile_count = 0;
  LoraUse lora, head_lora;
  const cuda::DeviceLora* sources = nullptr;  // [modules][slots]
  int32_t slots = 0;
  std::span<const int32_t> ranks;  // [modules]: highest of the step; -1: nobody changes this module
};

class StepTables {
 public:
  struct Options {
    ModelLimits limits;
    bool tiled_attention = false;
    int64_t table_blocks_max = 0;      // entries of all block tables of a step
    int64_t host_delta_bytes_max = 0;  // of LoraSourceKind::kHostDelta
    int32_t slots_max = 0;
  };
  static int64_t bytes(const ModelConfig& config, const Options& options);  // pinned, and the same on the device
  static Result<StepTables> create(const ModelConfig& config, const Options& options);

  // Puts the copy on the stream. `blocks` is the cache's number of blocks.
  Result<StepView> fill(const ModelBatch& batch, int32_t blocks, CudaAdapters& adapters, CudaStream& stream);
  static int32_t entries_max(const ModelLimits& limits);

 private:
  StepTables(const ModelConfig& config, const Options& options);
  // Room for `count` of T: where the host writes, and where the device will find it.
  template <typename T>
  Status take(size_t count, T** host, const T** device);
  template <typename T>
  Status put(std::span<const T> values, const T** device);

  Status put_rows(const ModelBatch& batch, int32_t blocks, StepView& view);
  Status put_attention(const ModelBatch& batch, StepView& view);
  Status put_lora(std::span<const LoraSegment> segments, int32_t rows, cuda::LoraPlan& plan, LoraUse& use);
  Status put_sources(const ModelBatch& batch, CudaAdapters& adapters, CudaStream& stream, StepView& view);
  Status check(const LoraPair& pair, size_t module) const;
  Result<cuda::DeviceLora> source(const ModelBatch& batch, size_t module, size_t slot, CudaAdapters& adapters,
                                  CudaStream& stream);
  Result<cuda::DeviceLora> put_delta(const ModelBatch& batch, size_t module, size_t slot, const float* delta);
  void gather_segments(const ModelBatch& batch);

  const ModelConfig* config_;
  Options options_;
  PinnedBuffer host_;
  DeviceBuffer device_;
  int64_t used_ = 0;
  cuda::LoraPlan plan_, head_plan_;
  std::vector<AttentionRun> runs_;
  std::vector<cuda::AttentionTile> tiles_;
  std::vector<LoraSegment> head_segments_;
  std::vector<int32_t> ranks_;  // [modules]
  std::vector<const LoraPair*> pairs_;
};

}  // namespace loralei

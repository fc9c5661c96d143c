// SPDX-License-Identifier: Apache-2.0
// CudaProgram: the layer program as launches on one stream, from a step's tables to rows
// of logits and hidden states.
//
// Thread: the model's.
// Ownership: owns stream, weights and activations.
// Invariants: everything here puts kernels on the stream and nothing else (no copy, no
// allocation, no wait), and which ones with which arguments follows from the view's shape
// and addresses alone, so that it can be recorded; but for a step with adapters that are
// on their way, in which the stream waits for them (view.arriving), and for what ranks do
// together (cuda_ranks.cc).
// Failure: Status of the launches, and of the group.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "formats/model_config.h"
#include "model/cuda/cuda_model.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/cuda_weights.h"
#include "model/cuda/device_group.h"
#include "model/cuda/step_tables.h"

namespace loralei {

// The activations of a step in one piece of memory.
struct CudaActivations {
  float* x = nullptr;          // [rows, hidden] residual stream
  std::byte* input = nullptr;  // [rows, widest input of a product] in the type that the product wants
  float* q = nullptr;
  float* k = nullptr;
  float* v = nullptr;
  float* gate = nullptr;
  float* up = nullptr;
  float* gathered = nullptr;     // [rows, hidden] rows of x that want logits or hidden states; before, sums of ranks
  float* logits = nullptr;       // [logits rows, StepView::vocab]; of rank 0 alone
  float* part_logits = nullptr;  // rank 0: of a chunk of rows of all ranks; else of its rows (head_parts.h)
  TokenId* chosen = nullptr;     // [logits rows]
  float* lora = nullptr;         // [targets][entries][rank]
  float* attention = nullptr;
  int64_t attention_floats = 0;
};

// Places everything behind `base` (null: only counts) and answers the bytes.
int64_t place_activations(const ModelConfig& config, const CudaModelOptions& options, const Shard& shard,
                          std::byte* base, CudaActivations& to);

int64_t max_positions(const ModelConfig& config, const ModelLimits& limits);
// The largest vocabulary of an adapter for which the logits have room, and that room.
int32_t max_vocab(const ModelConfig& config, const CudaModelOptions& options);
int64_t logits_floats(const ModelConfig& config, const CudaModelOptions& options);

struct CudaProgram {
  ModelConfig config;
  CudaStream stream;
  CudaWeights weights;
  CudaProducts products;
  DeviceBuffer memory;  // of the activations
  CudaActivations at;
  DeviceGroup* ranks = nullptr;  // null: this is the whole model
  int32_t part_rows = 0;         // of logits that ranks pass on together

  Shard shard() const { return ranks == nullptr ? Shard{} : ranks->shard(); }

  // Embedding and layers.
  Status layers(const StepView& view);
  // After layers(): hidden states after the final norm into at.gathered, then logits into
  // at.logits (at.gathered and at.x are lost).
  Status hidden(const StepView& view);
  Status head(const StepView& view);
  // After head(): tokens from the logits of the rows that choose, into at.chosen.
  Status choose(const StepView& view);

 private:
  int32_t q_width() const { return config.heads * config.head_dim; }
  int32_t kv_width() const { return config.kv_heads * config.head_dim; }

  // Projections that share an input. Made before the input, whose type they decide.
  struct Group {
    std::array<CudaProduct, 3> products;
    std::array<size_t, 3> modules;  // as ModelBatch::sources numbers them
    size_t count = 0;
    std::span<const CudaProduct> all() const { return {products.data(), count}; }
  };
  void add(Group& group, int layer, Module module, float* y) const;

  Status project(const Group& group, const CudaInput& input, const StepView& view, const LoraUse& use, bool accumulate);
  Status lora(std::span<const CudaProduct> products, std::span<const size_t> modules, const CudaInput* input,
              const StepView& view, const LoraUse& use);
  Status lora_of(std::span<const CudaProduct> products, std::span<const size_t> modules, const CudaInput* input,
                 const StepView& view, const LoraUse& use, size_t arriving);
  // The rows of x that `from` names, into at.gathered.
  Status gather(const int32_t* from, int32_t rows);
  // rms_norm of all rows of the runs, whose weight is the model's (args.weight) but where
  // own(tensors) is another.
  template <typename Own>
  Status norm(std::span<const SavedRun> runs, const cuda::RmsNormArgs& args, Own&& own);
  // Of rows [.., hidden] at `x`.
  cuda::RmsNormArgs norm_args(const float* x, const float* weight, void* y, DType y_dtype) const;
  template <typename Own>
  Result<CudaInput> normed(const float* x, int32_t rows, const float* weight, std::span<const SavedRun> runs, Own&& own,
                           std::span<const CudaProduct> products);
  Status embed(const StepView& view);
  Status attend(const StepView& view, int layer, DType out_dtype);
  Status attention_block(const StepView& view, int layer);
  Status ffn_block(const StepView& view, int layer);
  Status own_heads(const StepView& view);

  // What ranks do together (cuda_ranks.cc).
  // Where a module whose inputs are shared among the ranks puts its sums.
  float* sums() const { return ranks == nullptr ? at.x : at.gathered; }
  // x += input W^T (+ bias) + x A B, of such a module, which `output` has with sums().
  Status project_to_stream(const Group& output, const CudaInput& input, const StepView& view);
  Status gather_head(const StepView& view, const CudaInput& input);
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// What a Model holds, for the files that make it up: layers (model.cc) and the head
// (model_head.cc). Thread, ownership and failure: model.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "device/host/arena.h"
#include "model/expert_rows.h"
#include "model/layer_program.h"
#include "model/model.h"
#include "ops/expert_pairs.h"
#include "weights/expert_use.h"

namespace loralei {

// Calls body(begin, count, saved) over runs of rows that share their full tensors
// (null: the base's).
template <typename Body>
void for_each_run(int32_t rows, std::span<const RowOverride> overrides, Body&& body) {
  int32_t row = 0;
  for (const RowOverride& run : overrides) {
    if (run.row_begin > row) body(row, run.row_begin - row, nullptr);
    body(run.row_begin, run.row_count, run.saved);
    row = run.row_begin + run.row_count;
  }
  if (row < rows) body(row, rows - row, nullptr);
}

// A matrix of numbers in memory that stay where they are.
class ResidentMatrix {
 public:
  ResidentMatrix(const float* data, int32_t rows, int32_t cols)
      : panel_{reinterpret_cast<const std::byte*>(data), 0, rows}, view_{.rows = rows, .cols = cols} {
    view_.panels = {&panel_, 1};
  }
  ResidentMatrix(const ResidentMatrix&) = delete;
  ResidentMatrix& operator=(const ResidentMatrix&) = delete;
  const WeightView& view() const { return view_; }

 private:
  WeightPanel panel_;
  WeightView view_;
};

// Adds the time from its making to its end.
class Timed {
 public:
  explicit Timed(int64_t& total_ns) : total_ns_(total_ns), begin_ns_(SteadyClock().now_ns()) {}
  ~Timed() { total_ns_ += SteadyClock().now_ns() - begin_ns_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  int64_t& total_ns_;
  const int64_t begin_ns_;
};

struct Model::State {
  ModelConfig config;  // of the rank
  ModelLimits limits;
  WeightStore* weights = nullptr;
  const OpTable* ops = nullptr;
  OpContext context;
  Collective* group = nullptr;  // null: this is the whole model
  LayerProgram program;
  RopeTable rope;
  RopeTable sliding_rope;  // of layers for which has_sliding_rope()
  HostBuffer arena;
  std::vector<KvPlace> kv_places;   // [layers]
  std::vector<RowGroup> kv_groups;  // of a layer, where there are several tables

  // Activations, all [rows_max, width].
  float* x = nullptr;       // [rows, hidden] residual stream
  float* normed = nullptr;  // [rows, hidden]
  float* q = nullptr;       // [rows, heads * head_dim]
  float* k = nullptr;       // [rows, kv_heads * head_dim]
  float* v = nullptr;
  float* attended = nullptr;  // [rows, heads * head_dim]
  float* gate = nullptr;      // [rows, ffn]
  float* up = nullptr;
  float* angles = nullptr;          // [rows, head_dim] of the step's positions
  float* sliding_angles = nullptr;  // null: config has no sliding_rope
  // Of layers of gated linear attention, and of gates of attention (model_linear.cc).
  float* gated_q = nullptr;           // [rows, heads, query and gate]; null: there are no gates
  float* q_gates = nullptr;           // [rows, heads * head_dim]
  float* mixed = nullptr;             // [rows, channels] q, k and v of the delta rule
  float* value_gates = nullptr;       // [rows, value_width]
  float* beta = nullptr;              // [rows, v_heads]
  float* decay = nullptr;             // [rows, v_heads]
  std::vector<StateRows> state_rows;  // [groups] of the layer
  // Of layers with experts (model_experts.cc).
  float* scores = nullptr;                // [rows, experts]
  float* gathered = nullptr;              // [assignments, hidden]
  float* expert_gate = nullptr;           // [assignments, experts.width]
  float* expert_up = nullptr;             // likewise
  float* shared = nullptr;                // [rows, hidden] of the shared expert
  float* shared_scores = nullptr;         // [rows]
  ExpertRows expert_rows;                 // of the layer
  std::vector<ExpertView> expert_views;   // [experts]
  std::vector<TileProduct> expert_tiles;  // [experts * 2] of a call
  std::vector<TileRows> expert_runs;      // [experts] likewise
  std::vector<LoraSource> score_sources;  // [slots]
  // The head among ranks (model_ranks.cc).
  WeightView head_part;                  // this rank's rows
  std::vector<WeightPanel> head_panels;  // of it
  float* part_logits = nullptr;          // rank 0: of a chunk of rows of all ranks; else of its rows
  std::vector<LoraSegment> head_segments;
  std::vector<RowOverride> head_overrides;
  int64_t held_bytes = 0;
  ModelTimes times;

  Shard shard() const { return group == nullptr ? Shard{} : Shard{group->rank(), group->size()}; }
  int q_width() const { return config.heads * config.head_dim; }
  int kv_width() const { return config.kv_heads * config.head_dim; }

  // Streams (model_streams.cc).
  // The rows that have begun at this layer.
  static ModelBatch begun(const ModelBatch& batch, int layer);
  // Before a layer: rows that begin here get their stream, others leave theirs.
  void pass_streams(const ModelBatch& batch, const KvStreams& streams, int layer);

  // Layers (model.cc; products: model_products.cc).
  Status allocate();
  Status embed(const ModelBatch& batch);
  void embed_lora(const ModelBatch& batch);
  void find_angles(const ModelBatch& batch, const RopeTable& table, float* out);
  // Of the stream, or of q or k; in place allowed.
  void norm_rows(const ModelBatch& batch, LayerNorm which, int layer, const float* input, float* output);
  const float* block_input(const ModelBatch& batch, LayerNorm norm, int layer);
  // outputs[i] = input W_i^T (+ bias) for every module that shares this input, then one
  // grouped LoRA call for all of them.
  Status project(const ModelBatch& batch, int layer, std::span<const Module> modules, const float* input,
                 int64_t input_stride, std::span<float* const> outputs, bool accumulate);
  // The three parts of that.
  Status publish(const ModelBatch& batch, const LayerInput& input);
  Status multiply(const ModelBatch& batch, const LayerInput& input, std::span<float* const> outputs, bool accumulate);
  Status add_lora(const ModelBatch& batch, const LayerInput& input, std::span<float* const> outputs);
  // x += input W^T (+ bias) + x A B, of a module whose inputs are shared among the ranks.
  Status project_to_stream(const ModelBatch& batch, int layer, Module module, const float* input, int64_t input_stride);
  void turn(int32_t rows, int layer);  // q and k, by their positions
  // Whose block tables are those of this layer.
  std::span<const RowGroup> groups_of(const ModelBatch& batch, int layer);
  Status attention_block(const ModelBatch& batch, const KvView& kv, int layer);
  Status ffn_block(const ModelBatch& batch, int layer);
  Status gate_times_up(const ModelBatch& batch, int layer, const float* input);  // gate = swiglu(gate, up) of the input
  void add_to_stream(const ModelBatch& batch, LayerNorm after, int layer);       // x += normed

  // Linear attention and gates (model_linear.cc).
  Status linear_block(const ModelBatch& batch, int layer);
  Status linear_inputs(const ModelBatch& batch, int layer);
  void run_delta_rule(const ModelBatch& batch, int layer);
  std::span<const StateRows> states_at(const ModelBatch& batch, int64_t offset);
  void split_gates(int32_t rows);            // q and q_gates of gated_q
  const float* gate_attended(int32_t rows);  // attended * sigmoid(q_gates)

  // Experts (model_experts.cc).
  Status experts_block(const ModelBatch& batch, int layer);
  void score(const ModelBatch& batch, int layer, const float* input, const float* matrix, const float* bias,
             int32_t out, std::vector<LoraPair> ExpertPairs::*pairs, float* scores);
  Status shared_expert(const ModelBatch& batch, int layer, const float* input);
  void use_experts(const ModelBatch& batch, int layer, std::span<const ExpertView> views);
  // Of a matrix of an expert, or null.
  const float* expert_bias(int layer, int32_t expert, int part) const;
  void expert_products(int layer, std::span<const ExpertView> views, std::span<const int> parts, const float* input,
                       int64_t stride, std::span<float* const> outputs, int64_t out_stride);
  void expert_lora(const ModelBatch& batch, int layer, std::span<const ExpertView> views, std::span<const int> parts,
                   const float* input, int32_t in, std::span<float* const> outputs, int32_t out);
  void sum_experts(int32_t rows, float* sum);

  // The head (model_head.cc).
  Status head(const ModelBatch& batch);
  void head_lora(const ModelBatch& batch);
  // normed[i] = final_norm(x[rows[i]]); segments and overrides of the gathered rows land
  // in head_segments and head_overrides.
  void gather(const ModelBatch& batch, std::span<const int32_t> rows);
  // The base's head for the runs that use it, round by round, and the adapters'
  // own for the others.
  Status head_matrix(const ModelBatch& batch);
  // The same but for the base's product, which is at rank 0 already.
  void own_heads(const ModelBatch& batch);
  // Logits of a run of gathered rows from the panels of `w`.
  void head_product(const WeightView& w, int32_t row, int32_t count, float* output, int64_t stride);

  // The ranks' (model_ranks.cc).
  void find_head_part();
  Status gather_head(const ModelBatch& batch);
  void replace_head_tokens(const ModelBatch& batch, int32_t row, int32_t count, const SavedTensors& saved);
};

}  // namespace loralei

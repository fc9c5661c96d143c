// SPDX-License-Identifier: Apache-2.0
// Model: the layer program. Knows tokens and rows, not requests.
//
// Thread: one executor thread.
// Ownership: borrows the weight store, op table and pool, which outlive it; owns its
// activations, sized once at creation from ModelLimits (no allocation in forward).
// Invariant: a row's logits depend on its tokens, adapters, KV and state (and stream,
// where it begins with one) alone, bit for bit (batch invariance).
// Failure: create() answers a sentence; forward() fails only when a weight cannot
// be read (streaming), or a rank of the group fails.
//
// One of several ranks computes its part of the heads and of the inner width:
//
//   every rank   embed, norms                   whole
//                q k v gate up                  its outputs: no communication
//                o, down + their x A B          its inputs: one sum over ranks, of both
//                lm_head                        its rows of the vocabulary
//   rank 0       logits of all, an adapter's own head, its x A B
//
// The residual stream is the same bits in every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "formats/model_config.h"
#include "model/layer_inputs.h"
#include "ops/expert_pairs.h"
#include "ops/kv_streams.h"
#include "ops/kv_tables.h"
#include "ops/op_table.h"
#include "ops/row_choice.h"
#include "parallel/collective.h"
#include "parallel/shard.h"
#include "weights/weight_store.h"

namespace loralei {

struct ModelLimits {
  int32_t rows_max = 512;         // token rows of a step
  int32_t logits_rows_max = 256;  // rows that want logits
  int32_t segments_max = 1024;
  int32_t rank_max = 256;
  int64_t max_model_len = 0;  // fixes the factors of dynamic and long RoPE scaling; 0: the config's max_position
  KvTables kv_tables = {};    // in which the KV cache has the layers
};

// Rows whose full tensors differ from the base's (modules_to_save). Sorted, disjoint.
struct RowOverride {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  const SavedTensors* saved = nullptr;
  AdapterVersionId version;  // whose they are, for who has copies of them (CudaModel)
};

// The step in the form kernels read: pointers into the engine's batch slot, valid
// during forward().
struct ModelBatch {
  std::span<const TokenId> tokens;     // [rows], each below the vocabulary its row uses
  std::span<const int32_t> positions;  // [rows]
  std::span<const RowGroup> groups;    // cover all rows in order
  // [groups] entries from a block table to the next, where there are several (KvTables);
  // of a sliding one nothing is read in front of the window of the group's first row.
  std::span<const int32_t> table_strides;
  // [groups] the state of each group's sequence (linear_state.h), brought up to date by
  // forward(), also where it fails; empty: the model keeps none. No two are the same.
  std::span<float* const> states;
  // Beside groups, those that begin at a higher layer behind the others; empty: rows
  // begin with the embedding, and no stream is kept.
  std::span<const GroupStream> streams;
  std::span<const LoraSegment> segments;
  const LoraSource* sources = nullptr;  // [layers * kLayerModules + 2][slots]: layer modules, then kLmHead, kEmbed
  int32_t slots = 0;
  // [slots] what adapters have for experts, null where nothing; empty: none has any.
  std::span<const ExpertPairs* const> experts;
  std::span<const int32_t> expert_layers;  // [slots] the first layer from which on they count; empty: from 0 on
  std::span<const AdapterVersionId>
      versions;  // [slots], for who has copies of their pairs (CudaModel); others need none
  std::span<const RowOverride> overrides;
  LayerInputs* inputs = nullptr;         // of adapters that are on their way; null: all are there
  std::span<const int32_t> logits_rows;  // ascending
  float* logits = nullptr;               // [logits_rows, logits_stride]; columns beyond a row's vocabulary are -inf
  int64_t logits_stride = 0;             // >= the largest vocabulary of any row
  // [logits_rows], or empty where the caller wants all logits. A row with a vocabulary
  // gets its token (-1: none is possible) and no logits.
  std::span<const RowChoice> choices;
  TokenId* chosen = nullptr;             // [logits_rows]
  std::span<const int32_t> hidden_rows;  // ascending
  float* hidden = nullptr;               // [hidden_rows, hidden] after the final norm

  const ExpertPairs* experts_from(int32_t slot, int layer) const {
    const auto index = static_cast<size_t>(slot);
    return expert_layers.empty() || layer >= expert_layers[index] ? experts[index] : nullptr;
  }
  bool is_chosen(size_t logits_row) const { return !choices.empty() && choices[logits_row].vocab > 0; }
};

// Where forward() has spent its time since the model was made. What is left of a step are
// norms, rotation, activations, sampling and the engine's own work.
struct ModelTimes {
  int64_t products_ns = 0;   // with base weights
  int64_t attention_ns = 0;  // cache writes included
  int64_t lora_ns = 0;
  int64_t disk_ns = 0;           // waiting for streamed weights
  int64_t disk_read_bytes = 0;   // of streamed weights
  int64_t expert_hits = 0;       // experts that a layer's rows chose: in the cache of them
  int64_t expert_misses = 0;     // and read from disk
  int64_t collective_ns = 0;     // with other ranks, waiting for them included
  int64_t collective_bytes = 0;  // that they sent
};

// What each of so many ranks computes of a model that check_shards() found to divide: a
// part of its heads and of its inner width.
ModelConfig config_of_rank(const ModelConfig& config, int size);
// Its heads in a cache that holds those of all ranks.
KvView kv_of_rank(const KvView& kv, const Shard& shard);

class Model {
 public:
  // With a group: the rank's part, of which `config` is config_of_rank() and `weights`
  // hold the rank's part. Streams are refused (CHECK). Only rank 0 gives results.
  static Result<std::unique_ptr<Model>> create(const ModelConfig& config, WeightStore& weights, const OpTable& ops,
                                               ThreadPool& pool, const ModelLimits& limits,
                                               Collective* group = nullptr);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // `streams`: where batch.streams are kept and read.
  Status forward(const ModelBatch& batch, const KvView& kv, const KvStreams& streams = {});
  const ModelConfig& config() const;
  int64_t scratch_bytes() const;  // activations and kernel scratch held
  // The same before a model is made, so that memory can be planned.
  static int64_t scratch_bytes(const ModelConfig& config, const OpTable& ops, const ModelLimits& limits, int threads,
                               const Shard& shard = {});
  uint64_t op_count() const;  // operations issued so far
  ModelTimes times() const;
  int64_t streamed_bytes() const;  // of weights that come from disk in every pass

 private:
  struct State;
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// inv_freq [rotary_dim_of(config) / 2] and the attention scale of a config (RoPE scaling:
// linear, llama3, yarn, dynamic and longrope at max_model_len).
struct RopeTable {
  std::vector<float> inv_freq;
  float attention_scale = 1.0f;
};
RopeTable make_rope_table(const ModelConfig& config, int64_t max_model_len);
// Longrope: whether all texts are turned by the factors for long ones.
bool uses_long_factors(const ModelConfig& config, int64_t max_model_len);

}  // namespace loralei

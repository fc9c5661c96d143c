// SPDX-License-Identifier: Apache-2.0
// LoadPlan: where each tensor of an adapter file goes in the adapter's memory, decided
// from headers alone.
//
// load_peft.cc, load_gguf.cc and load_mlx.cc make plans (all checks of names, shapes and
// ranks happen there); load.cc asks whether the plan's bytes are allowed and allocates
// once, and FilePass (file_pass.h) reads the file once and places every tensor. A plain
// value; one thread. Offsets are into the one storage block; -1 means absent.
//
// Every tensor belongs to a layer, in the order in which a pass over the model needs
// them: what the embedding has (pair, saved matrix, token rows) to layer 0; final norm
// and what the head has come behind the last one, as layer `layers`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "adapters/peft_map.h"
#include "base/result.h"
#include "formats/gguf.h"
#include "formats/tensor_index.h"

namespace loralei {

// One tensor, seen as a matrix [rows, cols] (a vector is [rows, 1]), or a run of its
// rows, and where it goes.
struct Placement {
  const TensorInfo* tensor = nullptr;
  int64_t row_begin = 0, row_count = 0;
  int64_t cols = 0;
  bool transpose = false;  // stored [cols, row_count]
  DType to = DType::kF32;  // the tensor's own format, or f32
  int32_t layer = 0;       // the tensor's: one and the same in all of its placements
  int64_t offset = 0;
  int64_t scale_offset = -1;  // where the scales of int8 factors go (`to` is f32 then); absent: plain numbers
  // Of each row these columns alone, with `transpose`; all: 0, 1.
  int64_t col_begin = 0, col_step = 1;
  int64_t row_step = 1;            // of the tensor's rows from row_begin on one of so many, likewise
  std::vector<int32_t> row_order;  // where row i of the run goes; empty: to place i
  std::vector<int32_t> col_order;  // likewise of columns, of plain numbers that are not transposed
  float plus = 0;                  // added to each number (`to` is f32 then)
};

struct PairPlan {
  int64_t a = -1, b_t = -1, b_bias = -1, bias = -1;
  int64_t a_scale = -1, b_scale = -1;  // of int8 factors
  DType dtype = DType::kF32;
  int rank = 0, in = 0, out = 0;
  float scaling = 0;
};

struct SavedMatrix {
  int64_t offset = -1;
  DType dtype = DType::kF32;
  int rows = 0;
};

struct LoadPlan {
  std::vector<PairPlan> pairs;  // as Adapter::pairs
  // As ExpertPairs; empty until one of them is planned.
  std::vector<PairPlan> routers, shared_gates, expert_matrices;
  std::vector<Placement> placements;
  SavedMatrix embed, head;
  int64_t final_norm = -1;
  std::array<std::vector<int64_t>, kLayerNorms> norms;  // [LayerNorm][layers] or empty
  std::vector<TokenId> embed_tokens, head_tokens;       // sorted
  int64_t embed_rows = -1, head_rows = -1;
  std::vector<TokenId> alora_invocation;
  std::vector<std::string> report, doubts;
  std::map<std::string, int> modules;
  // Tied and trained as one (PEFT ensure_weight_tying): the head's pair is the
  // embedding's, transposed after reading.
  bool head_pair_from_embed = false;
  int vocab = 0;
  int32_t layers = 0;  // of the base
  bool int8 = false;   // AdapterLoadOptions::int8
  int64_t bytes = 0;

  LoadPlan(const ModelConfig& config, const AdapterLoadOptions& options);
  // Reserves `count` bytes at a multiple of 64.
  int64_t reserve(int64_t count);
  PairPlan& pair(int layer, Module module);
  PairPlan& pair_of(const ModelConfig& config, const ModuleRef& module);  // of a layer with experts
  bool has_experts() const { return !routers.empty() || !shared_gates.empty() || !expert_matrices.empty(); }
  int rank_max() const;
  int32_t layer_of(const ModuleRef& module) const;
};

// The tensors of one low-rank pair.
struct PairTensors {
  const TensorInfo* a = nullptr;
  const TensorInfo* b = nullptr;
  const TensorInfo* b_bias = nullptr;
};

// Checks the shapes of a pair against the module (every message names tensor and both
// shapes) and plans it. For the embedding, `a` is [rank, vocab] unless `embed_a_by_token`
// (GGUF: [vocab, rank]). `vocab`: rows of head and embedding, which a resized
// adapter changes. `row_order_of` answers the order of B's rows of a linear module,
// or an empty vector.
struct PairOptions {
  int rank_wanted = -1;  // -1: whatever the file holds
  double scaling = 0;
  int vocab = 0;
  bool embed_a_by_token = false;
  std::vector<int32_t> (*row_order_of)(const ModelConfig& config, int layer, Module module) = nullptr;
  std::vector<int32_t> (*col_order_of)(const ModelConfig& config, int layer, Module module) = nullptr;  // of A's
};
// row_order_of for files that have q and k as the base's own files have them.
std::vector<int32_t> rows_as_in_base(const ModelConfig& config, int layer, Module module);
// Of rows of q and k in interleaved-rope order: where each of them goes in half-split
// order. Empty: of other modules.
std::vector<int32_t> unpermuted_rows(const ModelConfig& config, int layer, Module module);
// The same of the columns of A.
std::vector<int32_t> cols_as_in_base(const ModelConfig& config, int layer, Module module);
Status plan_pair(const ModelConfig& config, const ModuleRef& module, const PairTensors& tensors,
                 const PairOptions& options, const std::string& path, LoadPlan& plan);

// A vector or matrix of a layer, kept as it is (offset returned), in f32 or in the file's
// format.
Result<int64_t> plan_whole(const TensorInfo& tensor, const std::vector<int64_t>& shape, DType to, int32_t layer,
                           const std::string& path, LoadPlan& plan);

// The vector of a norm, which takes the place of the base's, with `plus` added to each
// number. False: `module` is no norm of this base, nothing is planned.
Result<bool> plan_norm(const ModelConfig& config, const ModuleRef& module, const TensorInfo& tensor, float plus,
                       const std::string& path, LoadPlan& plan);

// What an adapter says of the base it was made for (made_for.h), for whoever loads it.
void note_made_for(const std::string& base_model, const AdapterBase& base, LoadPlan& plan);

// Shape mismatch as a sentence with both shapes.
Status check_shape(const TensorInfo& tensor, const std::vector<int64_t>& shape, const std::string& path);

// Plans of the two kinds of file.
struct AdapterFile {
  std::string weights_path;
  std::string config_text;          // what is hashed before the weights; empty for GGUF
  std::vector<TensorInfo> tensors;  // ordered by offset; the plan points into it
};
// GGUF LoRA: `gguf` is the parsed head of file.weights_path, and the plan points
// into its tensors.
Result<LoadPlan> plan_gguf(const GgufFile& gguf, const AdapterBase& base, const AdapterLoadOptions& options);
// Of mlx-lm, whose factors lie transposed in the file and have to be seen as rows before.
void see_mlx_factors_as_rows(std::vector<TensorInfo>& tensors);
Result<LoadPlan> plan_mlx(const std::string& config_path, const AdapterFile& file,
                          const std::vector<std::string>& foreign, const AdapterBase& base,
                          const AdapterLoadOptions& options);
Result<LoadPlan> plan_peft(const std::string& config_path, const AdapterFile& file,
                           const std::vector<std::string>& foreign, const AdapterBase& base,
                           const AdapterLoadOptions& options);

}  // namespace loralei

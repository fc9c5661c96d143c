// SPDX-License-Identifier: Apache-2.0
// ModelHarness: a model file, its weights, adapters and a plain KV area, so that a test
// can run any batch through the real layer program without an engine. One thread; owns
// everything. Errors end the test through ASSERT-like CHECKs with the message printed.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "device/host/arena.h"
#include "formats/base_model.h"
#include "memory/ledger.h"
#include "model/model.h"
#include "weights/weight_store.h"

namespace loralei::test {

struct HarnessOptions {
  std::string ops;                 // empty: the best of this machine that rounds no inputs of bf16 weights
  const OpTable* table = nullptr;  // instead of `ops`
  LayoutId quantised_layout = LayoutId::kTile16;  // kTile16: inputs rounded to int8; kPlain: f32
  int threads = 2;
  int64_t max_model_len = 0;
  DType kv_dtype = DType::kF32;
  std::optional<DType> quantise;
  int sequences_max = 8;
  int tokens_max = 256;  // per sequence
  // Weights are streamed from a file packed into this folder; empty: resident.
  std::string stream_folder;
  StreamShrink stream_shrink = StreamShrink::kAuto;  // auto: these models are too small to be shrunk
  StreamingOptions streaming;
};

// What a harness with these options computes with.
Result<const OpTable*> table_of(const HarnessOptions& options);
ModelLimits limits_of(const HarnessOptions& options);

struct AdapterRef {
  const Adapter* adapter = nullptr;
  float scale = 1.0f;
  int start = 0;  // first position it applies to (activated LoRA)
};

// A run of tokens of one sequence in a step.
struct Span {
  int sequence = 0;
  int position = 0;
  std::vector<TokenId> tokens;
  std::vector<AdapterRef> adapters;
  std::vector<int> logits_at;  // indices into tokens, ascending
  bool hidden = false;
  std::vector<int32_t> blocks;  // block table; empty: the sequence's own
};

struct StepOutput {
  std::vector<std::vector<float>> logits;  // in the order of spans and their logits_at
  std::vector<std::vector<float>> hidden;  // all rows of the spans that asked
  uint64_t ops = 0;
};

class ModelHarness {
 public:
  static Result<std::unique_ptr<ModelHarness>> open(const std::string& path, const HarnessOptions& options = {});

  Result<const Adapter*> load(const std::string& path, bool strict = true, bool int8 = false);
  Result<StepOutput> run(const std::vector<Span>& spans);

  // Adapters that have a slot in every step from now on, used or not, before
  // those a step uses.
  void keep_slots(std::vector<const Adapter*> adapters) { kept_slots_ = std::move(adapters); }

  // Steps go there instead of to the model (empty: to the model): another executor of the
  // same weights, which has block ids below total_blocks() in a cache of its own.
  using Forward = std::function<Status(const ModelBatch&)>;
  void set_forward(Forward forward) { forward_ = std::move(forward); }
  const KvView& kv() const { return kv_; }
  int32_t total_blocks() const { return total_blocks_; }
  Status forward_on_host(const ModelBatch& batch) { return model_->forward(batch, kv_); }

  // Greedy continuation of a prompt, one step a token.
  Result<std::vector<TokenId>> greedy(const std::vector<TokenId>& prompt, const std::vector<AdapterRef>& adapters,
                                      int count);

  const ModelConfig& config() const { return model_->config(); }
  const BaseModelFile& file() const { return file_; }
  const Model& model() const { return *model_; }
  const WeightStore& weights() const { return *weights_; }
  // Another model on the same weights and threads, within the harness's life.
  Result<std::unique_ptr<Model>> make_model(const ModelLimits& limits);
  // Fills the whole KV area with NaN: a read of an unwritten slot shows.
  void poison_kv();
  // What a sequence keeps of layers of linear attention becomes what another one does; of
  // models without such layers nothing. A span at position 0 begins with zeros.
  void copy_state(int from, int to);
  // Its numbers.
  std::span<float> state(int sequence) const;
  // The block table a sequence has of its own.
  const std::vector<int32_t>& blocks(int sequence) const { return blocks_[static_cast<size_t>(sequence)]; }
  // The bytes of K and V of positions [0, count) behind a block table, in every
  // layer and head.
  std::vector<std::byte> kv_bytes(const std::vector<int32_t>& blocks, int count) const;

 private:
  ModelHarness() = default;
  HarnessOptions options_;
  BaseModelFile file_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<WeightStore> weights_;
  std::unique_ptr<Model> model_;
  HostBuffer kv_bytes_;
  KvView kv_;
  std::vector<std::vector<int32_t>> blocks_;
  HostBuffer states_;  // of all sequences, one behind the other
  std::vector<std::shared_ptr<const Adapter>> adapters_;
  std::vector<const Adapter*> kept_slots_;
  int vocab_max_ = 0;
  Forward forward_;
  int32_t total_blocks_ = 0;
};

// Index of the highest value, ties to the lowest id.
TokenId arg_max(std::span<const float> logits);

}  // namespace loralei::test

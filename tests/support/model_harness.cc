// SPDX-License-Identifier: Apache-2.0
#include "support/model_harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/limits.h"
#include "model/layer_program.h"
#include "model/linear_state.h"
#include "weights/pack.h"

namespace loralei::test {

Result<const OpTable*> table_of(const HarnessOptions& options) {
  if (options.table != nullptr) return options.table;
  return select_op_table(options.ops, options.ops.empty() ? Bf16Inputs::kExact : Bf16Inputs::kRounded);
}

ModelLimits limits_of(const HarnessOptions& options) {
  ModelLimits limits;
  limits.rows_max = options.tokens_max * 2;
  limits.max_model_len = options.max_model_len;
  return limits;
}

TokenId arg_max(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Result<std::unique_ptr<ModelHarness>> ModelHarness::open(const std::string& path, const HarnessOptions& options) {
  std::unique_ptr<ModelHarness> harness(new ModelHarness());
  harness->options_ = options;
  TRY_ASSIGN(harness->file_, open_base_model(path));
  const ModelConfig& config = harness->file_.config;
  harness->ledger_ = std::make_unique<Ledger>(int64_t{8} * kGiB);
  harness->pool_ = std::make_unique<ThreadPool>(options.threads);
  WeightOptions weight_options;
  weight_options.quantise = options.quantise;
  weight_options.threads = options.threads;
  weight_options.shrink = options.stream_shrink;
  weight_options.quantised_layout = options.quantised_layout;
  if (options.stream_folder.empty()) {
    TRY_ASSIGN(harness->weights_, WeightStore::load(harness->file_, *harness->ledger_, weight_options));
  } else {
    StreamingOptions streaming = options.streaming;
    NullLogSink log;
    streaming.packed_path = options.stream_folder + "/model.pack";
    streaming.pool = harness->pool_.get();
    TRY(pack_model(harness->file_, weight_options, streaming.packed_path, log));
    TRY_ASSIGN(harness->weights_,
               WeightStore::stream(harness->file_, *harness->ledger_, weight_options, streaming, log));
  }
  TRY_ASSIGN(const OpTable* const ops, table_of(options));
  TRY_ASSIGN(harness->model_, Model::create(config, *harness->weights_, *ops, *harness->pool_, limits_of(options)));

  const int blocks_per_sequence = (options.tokens_max + kKvBlockTokens - 1) / kKvBlockTokens;
  KvView& kv = harness->kv_;
  kv.dtype = options.kv_dtype;
  kv.kv_heads = config.kv_heads;
  kv.head_dim = config.head_dim;
  kv.head_stride_bytes = kv_head_bytes(kv.dtype, config.head_dim);
  kv.kv_stride_bytes = kv.head_stride_bytes * config.kv_heads;
  kv.layer_stride_bytes = kv.kv_stride_bytes * 2;
  kv.block_stride_bytes = kv.layer_stride_bytes * kv_layers(config);
  harness->total_blocks_ = blocks_per_sequence * options.sequences_max;
  const int64_t bytes = kv.block_stride_bytes * blocks_per_sequence * options.sequences_max;
  TRY_ASSIGN(harness->kv_bytes_, HostBuffer::allocate(bytes));
  kv.base = harness->kv_bytes_.data();
  const int64_t state_bytes = state_floats(config) * static_cast<int64_t>(sizeof(float)) * options.sequences_max;
  if (state_bytes > 0) {
    TRY_ASSIGN(harness->states_, HostBuffer::allocate(state_bytes));
  }
  // Sequences take blocks in an interleaved order, so that a table that is ignored shows.
  harness->blocks_.resize(static_cast<size_t>(options.sequences_max));
  for (int block = 0; block < blocks_per_sequence; ++block) {
    for (int sequence = 0; sequence < options.sequences_max; ++sequence) {
      harness->blocks_[static_cast<size_t>(sequence)].push_back(block * options.sequences_max +
                                                                (sequence + block) % options.sequences_max);
    }
  }
  harness->vocab_max_ = config.vocab;
  harness->poison_kv();
  return harness;
}

Result<std::unique_ptr<Model>> ModelHarness::make_model(const ModelLimits& limits) {
  TRY_ASSIGN(const OpTable* const ops, table_of(options_));
  return Model::create(model_->config(), *weights_, *ops, *pool_, limits);
}

std::span<float> ModelHarness::state(int sequence) const {
  const int64_t floats = state_floats(model_->config());
  return {reinterpret_cast<float*>(states_.data()) + sequence * floats, static_cast<size_t>(floats)};
}

void ModelHarness::copy_state(int from, int to) { std::ranges::copy(state(from), state(to).begin()); }

void ModelHarness::poison_kv() { std::memset(kv_bytes_.data(), 0xff, static_cast<size_t>(kv_bytes_.size_bytes())); }

std::vector<std::byte> ModelHarness::kv_bytes(const std::vector<int32_t>& blocks, int count) const {
  std::vector<std::byte> bytes;
  const int64_t number = row_bytes(kv_.dtype, 1);
  const auto add = [&](const std::byte* from, int64_t count) { bytes.insert(bytes.end(), from, from + count); };
  for (int layer = 0; layer < kv_layers(model_->config()); ++layer) {
    for (int position = 0; position < count; ++position) {
      const int32_t block = blocks[static_cast<size_t>(position / kKvBlockTokens)];
      const int slot = position % kKvBlockTokens;
      for (int head = 0; head < kv_.kv_heads; ++head) {
        const std::byte* k = kv_.head(block, layer, 0, head);
        const std::byte* v = kv_.head(block, layer, 1, head);
        for (int d = 0; d < kv_.head_dim; ++d) add(k + (d * kKvBlockTokens + slot) * number, number);
        add(v + slot * kv_.head_dim * number, kv_.head_dim * number);
        if (!has_vector_scale(kv_.dtype)) continue;
        add(reinterpret_cast<const std::byte*>(kv_.scales(k) + slot), sizeof(float));
        add(reinterpret_cast<const std::byte*>(kv_.scales(v) + slot), sizeof(float));
      }
    }
  }
  return bytes;
}

Result<const Adapter*> ModelHarness::load(const std::string& path, bool strict, bool int8) {
  AdapterBase base;
  base.config = model_->config();
  base.bias_context = weights_.get();
  base.bias = [](const void* context, int layer, Module module) {
    return base_bias(*static_cast<const WeightStore*>(context), layer, module);
  };
  AdapterLoadOptions options;
  options.strict = strict;
  options.int8 = int8;
  TRY_ASSIGN(AdapterLoad loaded, load_adapter(path, base, options, AdapterVersionId{adapters_.size() + 1}));
  vocab_max_ = std::max(vocab_max_, loaded.adapter->vocab);
  adapters_.push_back(std::move(loaded.adapter));
  return adapters_.back().get();
}

Result<StepOutput> ModelHarness::run(const std::vector<Span>& spans) {
  const ModelConfig& config = model_->config();
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions, logits_rows, hidden_rows;
  std::vector<RowGroup> groups;
  std::vector<float*> states;
  std::vector<LoraSegment> segments;
  std::vector<RowOverride> overrides;
  std::vector<const Adapter*> slots = kept_slots_;
  for (const Span& span : spans) {
    const auto begin = static_cast<int32_t>(tokens.size());
    const auto count = static_cast<int32_t>(span.tokens.size());
    const std::vector<int32_t>& table = span.blocks.empty() ? blocks(span.sequence) : span.blocks;
    groups.push_back({begin, count, span.position, table.data()});
    if (has_linear(config)) {
      const std::span<float> kept = state(span.sequence);
      if (span.position == 0) std::ranges::fill(kept, 0.0f);
      states.push_back(kept.data());
    }
    for (int i = 0; i < count; ++i) {
      tokens.push_back(span.tokens[static_cast<size_t>(i)]);
      positions.push_back(span.position + i);
      if (span.hidden) hidden_rows.push_back(begin + i);
    }
    for (const int index : span.logits_at) logits_rows.push_back(begin + index);
    for (const AdapterRef& use : span.adapters) {
      const int skip = std::clamp(use.start - span.position, 0, count);
      if (skip == count) continue;
      auto slot = std::find(slots.begin(), slots.end(), use.adapter);
      if (slot == slots.end()) slot = slots.insert(slots.end(), use.adapter);
      segments.push_back({begin + skip, count - skip, static_cast<int32_t>(slot - slots.begin()), use.scale});
      if (use.adapter->saved.any())
        overrides.push_back({begin + skip, count - skip, &use.adapter->saved, use.adapter->version});
    }
  }
  const size_t modules = static_cast<size_t>(config.layers) * kLayerModules + 2;
  std::vector<LoraSource> sources(modules * slots.size());
  std::vector<AdapterVersionId> versions;
  for (const Adapter* adapter : slots) versions.push_back(adapter->version);
  for (size_t module = 0; module < modules; ++module) {
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      const LoraPair& pair = slots[slot]->pairs[module];
      const bool present = pair.rank > 0 || pair.bias_delta != nullptr;
      sources[module * slots.size() + slot].pair = present ? &pair : nullptr;
    }
  }
  std::vector<const ExpertPairs*> experts;
  for (const Adapter* adapter : slots) experts.push_back(adapter->experts.any() ? &adapter->experts : nullptr);
  std::vector<float> logits(logits_rows.size() * static_cast<size_t>(vocab_max_));
  std::vector<float> hidden(hidden_rows.size() * static_cast<size_t>(config.hidden));
  ModelBatch batch;
  batch.tokens = tokens;
  batch.positions = positions;
  batch.groups = groups;
  batch.states = states;
  batch.segments = segments;
  batch.sources = sources.data();
  batch.slots = static_cast<int32_t>(slots.size());
  batch.versions = versions;
  batch.experts = experts;
  batch.overrides = overrides;
  batch.logits_rows = logits_rows;
  batch.logits = logits.data();
  batch.logits_stride = vocab_max_;
  batch.hidden_rows = hidden_rows;
  batch.hidden = hidden.data();
  const uint64_t ops_before = model_->op_count();
  const std::vector<std::byte> states_before(states_.bytes().begin(), states_.bytes().end());
  if (Status done = forward_ ? forward_(batch) : model_->forward(batch, kv_); !done.ok()) {
    std::ranges::copy(states_before, states_.data());  // so that the step can be run again
    return done.error();
  }
  StepOutput output;
  output.ops = model_->op_count() - ops_before;
  for (size_t row = 0; row < logits_rows.size(); ++row) {
    const float* begin = logits.data() + row * static_cast<size_t>(vocab_max_);
    output.logits.emplace_back(begin, begin + vocab_max_);
  }
  for (size_t row = 0; row < hidden_rows.size(); ++row) {
    const float* begin = hidden.data() + row * static_cast<size_t>(config.hidden);
    output.hidden.emplace_back(begin, begin + config.hidden);
  }
  return output;
}

Result<std::vector<TokenId>> ModelHarness::greedy(const std::vector<TokenId>& prompt,
                                                  const std::vector<AdapterRef>& adapters, int count) {
  std::vector<TokenId> output;
  Span span;
  span.tokens = prompt;
  span.adapters = adapters;
  for (int step = 0; step < count; ++step) {
    span.logits_at = {static_cast<int>(span.tokens.size()) - 1};
    TRY_ASSIGN(const StepOutput result, run({span}));
    output.push_back(arg_max(result.logits[0]));
    span.position += static_cast<int>(span.tokens.size());
    span.tokens = {output.back()};
  }
  return output;
}

}  // namespace loralei::test

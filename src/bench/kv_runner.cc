// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loralei {

Result<std::unique_ptr<KvRunner>> KvRunner::create(Executor& executor, Ledger& ledger, const ModelConfig& config,
                                                   const KvShape& shape, int32_t blocks) {
  std::unique_ptr<KvRunner> runner(new KvRunner(executor, config));
  TRY_ASSIGN(runner->pool_, BlockPool::create(shape, blocks, ledger));
  runner->view_ = runner->pool_->view();
  runner->streams_ = runner->pool_->streams();
  executor.use_kv(runner->view_, runner->streams_);
  return runner;
}

KvRunner::~KvRunner() {
  for (const AdapterVersionId version : announced_) executor_.withdraw(version);
}

void KvRunner::forget(const Adapter& adapter) {
  if (std::erase(announced_, adapter.version) > 0) executor_.withdraw(adapter.version);
}

Status KvRunner::announce(const Adapter* adapter) {
  if (adapter != nullptr && std::find(announced_.begin(), announced_.end(), adapter->version) == announced_.end()) {
    TRY(executor_.accepts(*adapter));
    executor_.announce(*adapter);
    announced_.push_back(adapter->version);
  }
  return executor_.reserve_vocab(vocab(adapter));
}

Status KvRunner::check(std::span<const KvRows> sequences, const Adapter* adapter) const {
  const int32_t most = adapter != nullptr && !adapter->saved.embed.empty() ? adapter->vocab : config_.vocab;
  for (const KvRows& rows : sequences) {
    for (const TokenId token : rows.tokens) {
      if (token >= 0 && token < most) continue;
      return invalid_argument("token " + std::to_string(token) + " of the text is beyond the model's vocabulary of " +
                              std::to_string(most) + "; the tokenizer is another model's.");
    }
  }
  return {};
}

void KvRunner::keep_streams(int32_t base_layers) {
  base_layers_ = base_layers;
  if (base_layers == 0 || base_layers == streams_.shape.layers[0]) return;
  CHECK(streams_.shape.levels == 1);
  streams_.shape.layers[0] = base_layers;
  executor_.use_kv(view_, streams_);
}

void KvRunner::add(const KvRows& rows, size_t from, size_t count) {
  const auto position = static_cast<int32_t>(rows.position + static_cast<int64_t>(from));
  groups_.push_back({.row_begin = static_cast<int32_t>(tokens_.size()),
                     .row_count = static_cast<int32_t>(count),
                     .position = position,
                     .blocks_begin = static_cast<int32_t>(blocks_.size()),
                     .blocks_count = static_cast<int32_t>(rows.blocks.size()),
                     .stream = {.base_layers = base_layers_, .rows = static_cast<int32_t>(count)}});
  blocks_.insert(blocks_.end(), rows.blocks.begin(), rows.blocks.end());
  for (size_t i = 0; i < count; ++i) {
    if (from + i >= rows.logits_from) logits_rows_.push_back(static_cast<int32_t>(tokens_.size()));
    tokens_.push_back(rows.tokens[from + i]);
    positions_.push_back(position + static_cast<int32_t>(i));
  }
}

Status KvRunner::step(const Adapter* adapter) {
  const auto rows = static_cast<int32_t>(tokens_.size());
  std::vector<LoraSegment> segments;
  std::vector<AdapterVersionId> slots;
  std::vector<VersionRows> replaced;
  if (adapter != nullptr) {
    slots.push_back(adapter->version);
    for (const BatchGroup& group : groups_) segments.push_back({group.row_begin, group.row_count, 0, 1.0f});
    if (adapter->saved.any()) replaced.push_back({0, rows, adapter->version});
  }
  StepBatch batch;
  batch.step = ++steps_;
  batch.tokens = tokens_;
  batch.positions = positions_;
  batch.blocks = blocks_;
  batch.groups = groups_;
  batch.segments = segments;
  batch.adapters = slots;
  batch.replaced = replaced;
  batch.logits_rows = logits_rows_;
  Status ended;
  executor_.on_done([&ended](StepDone&& done) { ended = std::move(done.status); });
  executor_.start(batch);
  executor_.on_done({});
  tokens_.clear(), positions_.clear(), blocks_.clear(), groups_.clear(), logits_rows_.clear();
  return ended;
}

Status KvRunner::run(std::span<const KvRows> sequences, const Adapter* adapter, const KvLogits& logits,
                     int32_t base_layers) {
  TRY(announce(adapter));
  keep_streams(base_layers);
  TRY(check(sequences, adapter));
  const auto rows_max = static_cast<size_t>(executor_.limits().rows_max);
  const auto logits_max = static_cast<size_t>(executor_.limits().logits_rows_max);
  const auto compute = [&]() -> Status {
    TRY(step(adapter));
    const StepResult result = executor_.result();
    for (size_t i = 0; i < origins_.size(); ++i)
      logits(origins_[i].sequence, origins_[i].token, result.logits_of(i, vocab(adapter)));
    origins_.clear();
    return {};
  };
  for (size_t sequence = 0; sequence < sequences.size(); ++sequence) {
    const KvRows& rows = sequences[sequence];
    for (size_t from = 0; from < rows.tokens.size();) {
      size_t room = rows_max - tokens_.size();
      if (rows.logits_from < rows.tokens.size()) {
        const size_t without = rows.logits_from > from ? rows.logits_from - from : 0;
        room = std::min(room, without + logits_max - logits_rows_.size());
      }
      if (static_cast<int32_t>(groups_.size()) >= executor_.limits().segments_max) room = 0;
      if (room == 0) {
        TRY(compute());
        continue;
      }
      const size_t count = std::min(room, rows.tokens.size() - from);
      for (size_t at = std::max(from, rows.logits_from); at < from + count; ++at) origins_.push_back({sequence, at});
      add(rows, from, count);
      from += count;
    }
  }
  return tokens_.empty() ? Status() : compute();
}

Adapter adapter_from_layer(const Adapter& adapter, int32_t layer, AdapterVersionId version) {
  Adapter above = adapter;
  above.version = version;
  if (layer == 0) return above;
  const auto below = static_cast<size_t>(layer);
  std::fill_n(above.pairs.begin(), below * kLayerModules, LoraPair{});
  const auto clear = [below](std::vector<LoraPair>& pairs, size_t of_layer) {
    if (!pairs.empty()) std::fill_n(pairs.begin(), below * of_layer, LoraPair{});
  };
  clear(above.experts.router, 1);
  clear(above.experts.shared_gates, 1);
  clear(above.experts.matrices, static_cast<size_t>(above.experts.experts) * ExpertPairs::kParts);
  above.pairs.back() = {};  // kEmbed
  SavedTensors& saved = above.saved;
  for (auto& norms : saved.norms) std::fill_n(norms.begin(), std::min(below, norms.size()), nullptr);
  saved.embed = {};
  saved.embed_tokens.clear();
  saved.embed_rows = nullptr;
  return above;
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// KvRunner: rows of sequences through a model, with block tables that the caller chooses,
// so that what lies in the KV cache can be looked at and changed between two steps.
//
// Thread: one, the caller's; the executor computes within start().
// Ownership: owns its block pool; borrows executor, ledger and adapters, which outlive it
// or are forgotten (an adapter must not move, and has a version id of its own).
// Invariants: sequences that are run together are cut into steps within the executor's
// limits; what that changes is no result.
// Failure: create() says when memory has no room for the blocks; run() answers what the
// executor does, and refuses tokens that are beyond a vocabulary.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "engine/executor.h"
#include "formats/model_config.h"
#include "kv/block_pool.h"

namespace loralei {

// A run of tokens of one sequence, the first at `position`.
struct KvRows {
  std::span<const TokenId> tokens;
  int32_t position = 0;
  std::span<const int32_t> blocks;  // the sequence's table
  size_t logits_from = SIZE_MAX;    // of every token from this one on; none
};

// `logits` of token `token` of sequence `sequence`, valid during the call.
using KvLogits = std::function<void(size_t sequence, size_t token, std::span<const float> logits)>;

class KvRunner {
 public:
  // Room for so many blocks; with a level of streams, whichever, run() takes base_layers.
  static Result<std::unique_ptr<KvRunner>> create(Executor& executor, Ledger& ledger, const ModelConfig& config,
                                                  const KvShape& shape, int32_t blocks);
  ~KvRunner();
  KvRunner(const KvRunner&) = delete;
  KvRunner& operator=(const KvRunner&) = delete;

  const KvView& view() const { return view_; }
  int64_t block_bytes() const { return pool_->block_bytes(); }
  int32_t vocab(const Adapter* adapter) const { return adapter == nullptr ? config_.vocab : adapter->vocab; }
  // Before the adapter goes.
  void forget(const Adapter& adapter);
  // All with the same adapter; null: the base. Each token sees those before it. With an
  // adapter that changes nothing below layer `base_layers` (adapter_from_layer) rows go
  // on there with their stream as blocks keep it (ops/kv_streams.h), as they do in a
  // server that lends.
  Status run(std::span<const KvRows> sequences, const Adapter* adapter, const KvLogits& logits = {},
             int32_t base_layers = 0);

 private:
  KvRunner(Executor& executor, const ModelConfig& config) : executor_(executor), config_(config) {}
  Status announce(const Adapter* adapter);
  Status check(std::span<const KvRows> sequences, const Adapter* adapter) const;
  void keep_streams(int32_t base_layers);
  void add(const KvRows& rows, size_t from, size_t count);
  Status step(const Adapter* adapter);

  // Where a row of logits comes from.
  struct Origin {
    size_t sequence = 0, token = 0;
  };

  Executor& executor_;
  const ModelConfig config_;
  std::unique_ptr<BlockPool> pool_;
  KvView view_;
  KvStreams streams_;
  int32_t base_layers_ = 0;  // of the rows that are run
  std::vector<AdapterVersionId> announced_;
  // Of the step that is being filled.
  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_, blocks_, logits_rows_;
  std::vector<BatchGroup> groups_;
  std::vector<Origin> origins_;
  uint64_t steps_ = 0;
};

// A copy of `adapter` that changes nothing below layer `layer`, and with one above 0
// nothing of the embedding: K, V and the residual stream below are the base's. It borrows
// the bytes of `adapter`, and has the version it is given.
Adapter adapter_from_layer(const Adapter& adapter, int32_t layer, AdapterVersionId version);

}  // namespace loralei

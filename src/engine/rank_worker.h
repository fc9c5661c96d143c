// SPDX-License-Identifier: Apache-2.0
// RankWorker: a rank other than 0. It is told what an executor is told, and computes its
// part of every step; nobody asks for its results.
//
// Thread: run() by the rank's. Ownership: borrows group, model and ledger; owns its views
// of adapters.
// Failure: run() answers what the group ended of; whatever this rank cannot do ends it.
#pragma once

#include <unordered_map>

#include "adapters/adapter.h"
#include "engine/model_step.h"
#include "engine/rank_link.h"
#include "memory/ledger.h"
#include "model/model.h"
#include "parallel/collective.h"

namespace loralei {

class RankWorker {
 public:
  // `model` was created with `limits` and `group`. `link`: what has received so far; as
  // long as this. `kv`: of a rank that has a cache of its own.
  RankWorker(Collective& group, RankLink& link, Model& model, const ModelLimits& limits, Ledger& ledger,
             const KvView& kv = {});

  // Until rank 0 says so (ok), or the group has ended.
  Status run();

 private:
  Status obey(const RankLink::Received& received);
  Status compute(std::span<const std::byte> payload);
  Status receive_adapter(std::span<const std::byte> payload);
  void keep(Adapter part);

  Collective& group_;
  Model& model_;
  const Shard shard_;
  RankLink& link_;
  ModelStep step_;
  KvView kv_;
  Ledger& ledger_;
  std::unordered_map<AdapterVersionId, Adapter> adapters_;  // this rank's parts
  std::unordered_map<AdapterVersionId, Grant> grants_;      // of those that it received
};

}  // namespace loralei

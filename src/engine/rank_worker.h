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
  // `model` was created with `limits` and `group`.
  RankWorker(Collective& group, Model& model, const ModelLimits& limits, Ledger& ledger);

  // Until rank 0 says so (ok), or the group has ended.
  Status run();

 private:
  Status obey(const RankLink::Received& received);
  Status compute(std::span<const std::byte> payload);

  Collective& group_;
  Model& model_;
  const Shard shard_;
  RankLink link_;
  ModelStep step_;
  KvView kv_;
  std::unordered_map<AdapterVersionId, Adapter> adapters_;  // this rank's parts
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// What a step was, for whoever costs it: StepFeatures of a StepBatch, and the ranks of
// the adapters that it names.
//
// Thread: the engine's. Ownership: plain values. Invariant: a version that a batch names
// was announced and not yet withdrawn (CHECK), as with an Executor. No failure.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "adapters/adapter.h"
#include "base/ids.h"
#include "cost/step_features.h"
#include "engine/step_batch.h"

namespace loralei {

class AdapterRanks {
 public:
  void announce(const Adapter& adapter) { ranks_.insert_or_assign(adapter.version, adapter.rank_max); }
  void withdraw(AdapterVersionId version) { ranks_.erase(version); }
  int32_t rank(AdapterVersionId version) const;

 private:
  std::unordered_map<AdapterVersionId, int32_t> ranks_;
};

StepFeatures features_of(const StepBatch& batch, const AdapterRanks& ranks);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "kv/state_snapshots.h"

#include <utility>

#include "base/check.h"

namespace loralei {

void StateSnapshots::set_capacity(int32_t holdings) {
  if (static_cast<size_t>(holdings) > snapshots_.size()) snapshots_.resize(static_cast<size_t>(holdings));
}

void StateSnapshots::link(int32_t holding) {
  at(holding).older = std::exchange(newest_, holding);
  at(holding).newer = kNoHolding;
  (at(holding).older == kNoHolding ? oldest_ : at(at(holding).older).newer) = holding;
  ++size_;
}

void StateSnapshots::unlink(int32_t holding) {
  Snapshot& entry = at(holding);
  (entry.older == kNoHolding ? oldest_ : at(entry.older).newer) = entry.newer;
  (entry.newer == kNoHolding ? newest_ : at(entry.newer).older) = entry.older;
  entry.older = entry.newer = kNoHolding;
  --size_;
}

void StateSnapshots::add(int32_t holding, StateLease state) {
  CHECK(!has(holding) && state);
  at(holding).state = std::move(state);
  link(holding);
}

StateLease StateSnapshots::remove(int32_t holding) {
  CHECK(has(holding));
  unlink(holding);
  return std::move(at(holding).state);
}

void StateSnapshots::use(int32_t holding) {
  CHECK(has(holding));
  unlink(holding);
  link(holding);
}

void StateSnapshots::check() const {
  int32_t listed = 0, there = 0, older = kNoHolding;
  for (int32_t holding = oldest_; holding != kNoHolding; older = holding, holding = at(holding).newer) {
    CHECK(has(holding) && at(holding).older == older);
    ++listed;
  }
  CHECK(older == newest_ && listed == size_);
  for (const Snapshot& entry : snapshots_) there += entry.state ? 1 : 0;
  CHECK(there == size_);
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// ProcessShare: what the process itself takes of the memory budget (code, vocabulary, connections, what the heap
// keeps), as a grant that follows what is resident.
//
// Thread: one; the engine's, between steps, once it runs. Ownership: owns the grant, whose ledger outlives it.
// Invariants: it never shrinks; after follow() all grants together are no less than the process takes, unless a line in
// the log said so. Memory that others were granted and have not touched yet covers for it until they do.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/log.h"
#include "memory/ledger.h"

namespace loralei {

// Adapters that nobody uses go until all of them hold no more than `bytes`.
using ShrinkAdapters = std::function<void(int64_t bytes)>;

class ProcessShare {
 public:
  ProcessShare() = default;
  ProcessShare(Ledger& ledger, Grant grant) : ledger_(&ledger), grant_(std::move(grant)) {}

  // `process_bytes` are resident now. What the grants do not cover is taken of what is free, and of idle adapters.
  void follow(int64_t process_bytes, const ShrinkAdapters& shrink_adapters, LogSink& log);

 private:
  Ledger* ledger_ = nullptr;
  Grant grant_;
  bool told_ = false;  // that the budget has no room for it
};

}  // namespace loralei

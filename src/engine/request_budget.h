// SPDX-License-Identifier: Apache-2.0
// RequestBudget: what requests take of the memory budget before they are computed and
// after: bodies, prompts, answers on their way.
//
// A part is reserved for them. What they need beyond it the ledger lends, as far as it
// has room: who waits for memory counts it as coming back. Thread-safe.
// Ownership: shared with everybody who holds a share; the ledger must outlive it
// only until close(), after which it grants nothing.
// Invariant: the reserve and the loan together are no less than what
// is taken.
// Failure: scarcity is an answer.
#pragma once

#include <functional>
#include <mutex>

#include "base/byte_budget.h"
#include "memory/ledger.h"

namespace loralei {

class RequestBudget final : public ByteBudget {
 public:
  RequestBudget(Ledger& ledger, Grant reserve);

  bool try_take(int64_t bytes) override;
  void give_back(int64_t bytes) override;
  int64_t most_bytes() const override;

  // Called, on the thread that gave it back, when borrowed memory has gone back to the
  // ledger; empty: nobody.
  void on_returned(std::function<void()> callback);
  int64_t taken_bytes() const;
  int64_t returned_bytes() const;  // of all shares since the start: what the heap may be keeping
  void close();

 private:
  mutable std::mutex mutex_;
  Ledger* ledger_;
  Grant reserve_, loan_;
  int64_t taken_bytes_ = 0, returned_bytes_ = 0;
  std::function<void()> on_returned_;
};

}  // namespace loralei

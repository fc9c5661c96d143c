// SPDX-License-Identifier: Apache-2.0
// FixedByteBudget: a ByteBudget of so many bytes and no more, for who has no
// ledger behind it.
//
// Thread-safe. Invariant: taken_bytes() never exceeds most_bytes(). Failure: as
// ByteBudget.
#pragma once

#include <atomic>

#include "base/byte_budget.h"

namespace loralei {

class FixedByteBudget final : public ByteBudget {
 public:
  explicit FixedByteBudget(int64_t most_bytes) : most_bytes_(most_bytes) {}

  bool try_take(int64_t bytes) override {
    int64_t taken = taken_bytes_;
    do {
      if (bytes > most_bytes_ - taken) return false;
    } while (!taken_bytes_.compare_exchange_weak(taken, taken + bytes));
    return true;
  }
  void give_back(int64_t bytes) override { taken_bytes_ -= bytes; }
  int64_t most_bytes() const override { return most_bytes_; }
  int64_t taken_bytes() const { return taken_bytes_; }

 private:
  const int64_t most_bytes_;
  std::atomic<int64_t> taken_bytes_{0};
};

}  // namespace loralei

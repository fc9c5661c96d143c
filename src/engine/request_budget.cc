// SPDX-License-Identifier: Apache-2.0
#include "engine/request_budget.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace loralei {
namespace {

constexpr int64_t kLoanStep = kMiB;  // so that small shares do not go to the ledger one by one

int64_t loan_for(int64_t bytes) { return (std::max<int64_t>(0, bytes) + kLoanStep - 1) / kLoanStep * kLoanStep; }

}  // namespace

RequestBudget::RequestBudget(Ledger& ledger, Grant reserve)
    : ledger_(&ledger), reserve_(std::move(reserve)), loan_(*ledger.try_lend(MemoryUse::kRequests, 0)) {}

bool RequestBudget::try_take(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (ledger_ == nullptr || bytes > ledger_->budget_bytes()) return false;
  const int64_t beyond = taken_bytes_ + bytes - reserve_.bytes();
  if (beyond > loan_.bytes() && !loan_.grow_to(loan_for(beyond)) && !loan_.grow_to(beyond)) return false;
  taken_bytes_ += bytes;
  return true;
}

void RequestBudget::give_back(int64_t bytes) {
  std::function<void()> told;
  {
    const std::lock_guard lock(mutex_);
    CHECK(bytes >= 0 && bytes <= taken_bytes_);
    taken_bytes_ -= bytes;
    returned_bytes_ += bytes;
    const int64_t needed = loan_for(taken_bytes_ - reserve_.bytes());
    if (ledger_ == nullptr || needed >= loan_.bytes()) return;
    loan_.shrink_to(needed);
    told = on_returned_;
  }
  if (told) told();
}

int64_t RequestBudget::most_bytes() const {
  const std::lock_guard lock(mutex_);
  if (ledger_ == nullptr) return 0;
  return reserve_.bytes() + ledger_->available_after_loans_bytes(MemoryUse::kRequests);
}

void RequestBudget::on_returned(std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  on_returned_ = std::move(callback);
}

int64_t RequestBudget::taken_bytes() const {
  const std::lock_guard lock(mutex_);
  return taken_bytes_;
}

int64_t RequestBudget::returned_bytes() const {
  const std::lock_guard lock(mutex_);
  return returned_bytes_;
}

void RequestBudget::close() {
  const std::lock_guard lock(mutex_);
  on_returned_ = {};
  reserve_.release();
  loan_.release();
  ledger_ = nullptr;
}

}  // namespace loralei

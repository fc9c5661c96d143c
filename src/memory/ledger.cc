// SPDX-License-Identifier: Apache-2.0
#include "memory/ledger.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace loralei {

const char* memory_use_name(MemoryUse use) {
  switch (use) {
    case MemoryUse::kWeights:
      return "weights";
    case MemoryUse::kAdapters:
      return "adapters";
    case MemoryUse::kKv:
      return "kv";
    case MemoryUse::kScratch:
      return "scratch";
    case MemoryUse::kRequests:
      return "requests";
    case MemoryUse::kOther:
      return "other";
  }
  return "other";
}

Grant::Grant(Grant&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)),
      use_(other.use_),
      lent_(other.lent_),
      bytes_(std::exchange(other.bytes_, 0)) {}

Grant& Grant::operator=(Grant&& other) noexcept {
  if (this != &other) {
    release();
    ledger_ = std::exchange(other.ledger_, nullptr);
    use_ = other.use_;
    lent_ = other.lent_;
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Grant::~Grant() { release(); }

void Grant::release() {
  if (ledger_ == nullptr) return;
  shrink_to(0);
  Ledger* ledger = std::exchange(ledger_, nullptr);
  const std::lock_guard lock(ledger->mutex_);
  --ledger->live_grants_;
}

void Grant::shrink_to(int64_t bytes) {
  CHECK(bytes >= 0 && bytes <= bytes_);
  if (ledger_ != nullptr && bytes < bytes_) ledger_->give_back(use_, lent_, bytes_ - bytes);
  bytes_ = bytes;
}

bool Grant::grow_to(int64_t bytes) {
  CHECK(ledger_ != nullptr && bytes >= bytes_);
  const std::lock_guard lock(ledger_->mutex_);
  if (!ledger_->take(use_, lent_, bytes - bytes_)) return false;
  bytes_ = bytes;
  return true;
}

Ledger::Ledger(int64_t budget_bytes) : budget_bytes_(budget_bytes) {
  CHECK(budget_bytes >= 0);
  cap_.fill(INT64_MAX);
}

Ledger::~Ledger() { CHECK(live_grants_ == 0); }

void Ledger::set_cap(MemoryUse use, int64_t cap_bytes) {
  CHECK(cap_bytes >= 0);
  const std::lock_guard lock(mutex_);
  cap_[static_cast<size_t>(use)] = cap_bytes;
}

bool Ledger::set_budget(int64_t budget_bytes) {
  CHECK(budget_bytes >= 0);
  const std::lock_guard lock(mutex_);
  int64_t total = 0;
  for (const int64_t used : used_) total += used;
  if (total > budget_bytes) return false;
  budget_bytes_ = budget_bytes;
  return true;
}

int64_t Ledger::budget_bytes() const {
  const std::lock_guard lock(mutex_);
  return budget_bytes_;
}

bool Ledger::take(MemoryUse use, bool lent, int64_t bytes) {
  int64_t total = 0;
  for (const int64_t used : used_) total += used;
  int64_t& used = used_[static_cast<size_t>(use)];
  if (bytes > budget_bytes_ - total || bytes > cap_[static_cast<size_t>(use)] - used) return false;
  used += bytes;
  if (lent) lent_[static_cast<size_t>(use)] += bytes;
  return true;
}

std::optional<Grant> Ledger::try_grant(MemoryUse use, int64_t bytes) { return grant(use, false, bytes); }
std::optional<Grant> Ledger::try_lend(MemoryUse use, int64_t bytes) { return grant(use, true, bytes); }

std::optional<Grant> Ledger::grant(MemoryUse use, bool lent, int64_t bytes) {
  CHECK(bytes >= 0);
  const std::lock_guard lock(mutex_);
  if (!take(use, lent, bytes)) return std::nullopt;
  ++live_grants_;
  return Grant(this, use, lent, bytes);
}

int64_t Ledger::used_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t total = 0;
  for (const int64_t used : used_) total += used;
  return total;
}

int64_t Ledger::used_bytes(MemoryUse use) const {
  const std::lock_guard lock(mutex_);
  return used_[static_cast<size_t>(use)];
}

int64_t Ledger::cap_bytes(MemoryUse use) const {
  const std::lock_guard lock(mutex_);
  return cap_[static_cast<size_t>(use)];
}

int64_t Ledger::available_bytes(MemoryUse use, int64_t coming_bytes) const {
  const std::lock_guard lock(mutex_);
  int64_t total = 0;
  for (const int64_t used : used_) total += used;
  const size_t index = static_cast<size_t>(use);
  return std::max<int64_t>(0, std::min(budget_bytes_ - total + coming_bytes, cap_[index] - used_[index]));
}

int64_t Ledger::available_after_loans_bytes(MemoryUse use, int64_t coming_bytes) const {
  const std::lock_guard lock(mutex_);
  int64_t total = 0;
  for (size_t index = 0; index < kMemoryUses; ++index) total += used_[index] - lent_[index];
  const size_t index = static_cast<size_t>(use);
  return std::max<int64_t>(0,
                           std::min(budget_bytes_ - total + coming_bytes, cap_[index] - used_[index] + lent_[index]));
}

std::string Ledger::describe() const {
  std::string text;
  const std::lock_guard lock(mutex_);
  for (int use = 0; use < kMemoryUses; ++use) {
    const auto index = static_cast<size_t>(use);
    char line[128];
    std::snprintf(line, sizeof line, "  %-9s %10s", memory_use_name(static_cast<MemoryUse>(use)),
                  format_bytes(used_[index]).c_str());
    text += line;
    if (cap_[index] != INT64_MAX) text += " of " + format_bytes(cap_[index]);
    text += '\n';
  }
  return text;
}

void Ledger::give_back(MemoryUse use, bool lent, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  used_[static_cast<size_t>(use)] -= bytes;
  if (lent) lent_[static_cast<size_t>(use)] -= bytes;
  CHECK(used_[static_cast<size_t>(use)] >= 0);
}

void Ledger::check() const {
  const std::lock_guard lock(mutex_);
  int64_t total = 0;
  for (size_t use = 0; use < kMemoryUses; ++use) {
    CHECK(lent_[use] >= 0 && used_[use] >= lent_[use]);
    total += used_[use];
  }
  CHECK(total <= budget_bytes_);
  CHECK(live_grants_ > 0 || total == 0);
}

}  // namespace loralei

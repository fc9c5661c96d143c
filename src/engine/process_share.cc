// SPDX-License-Identifier: Apache-2.0
#include "engine/process_share.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace loralei {

ProcessShare::ProcessShare(Ledger& ledger, Grant grant)
    : ledger_(&ledger),
      own_(std::move(grant)),
      loan_(*ledger.try_lend(MemoryUse::kOther, 0)),
      least_bytes_(own_.bytes()) {}

bool ProcessShare::follow(int64_t process_bytes, int64_t now_ns, const GiveWay& give_way, LogSink& log) {
  const int64_t held = own_.bytes() + loan_.bytes();
  const int64_t others = ledger_->used_bytes() - held;
  const int64_t needed = std::max(least_bytes_, process_bytes - others);
  const int64_t missing = needed - held;
  const int64_t lacking = missing - ledger_->available_bytes(MemoryUse::kOther);
  if (lacking > 0) give_way(lacking);
  const int64_t had = std::min(needed, held + std::max<int64_t>(0, ledger_->available_bytes(MemoryUse::kOther)));
  const int64_t settled = std::min(had, settled_bytes(needed, now_ns));
  take(settled, had - settled);
  if (had == needed) {
    told_ = false;
  } else if (!std::exchange(told_, true)) {
    log.log(LogLevel::kWarning, "The process takes " + format_bytes(needed - had) + " more than its memory budget of " +
                                    format_bytes(ledger_->budget_bytes()) +
                                    "; lower the budget's shares (--kv-cache-memory, --adapter-memory) or raise it "
                                    "(--memory-budget), if the machine has the memory.");
  }
  return own_.bytes() + loan_.bytes() > least_bytes_;
}

// The least that was needed at any look since kSettleNs before now; before that much has
// gone by, what it began with.
int64_t ProcessShare::settled_bytes(int64_t needed_bytes, int64_t now_ns) {
  if (looks_.empty()) looks_.push_back({now_ns, least_bytes_});
  while (!looks_.empty() && looks_.back().bytes >= needed_bytes) looks_.pop_back();
  looks_.push_back({now_ns, needed_bytes});
  while (looks_.size() > 1 && looks_.front().at_ns <= now_ns - kSettleNs) looks_.pop_front();
  return looks_.front().bytes;
}

void ProcessShare::take(int64_t own_bytes, int64_t lent_bytes) {
  // What shrinks comes first. Another may take what is free meanwhile: then this is made
  // good at the next look.
  if (own_bytes < own_.bytes()) own_.shrink_to(own_bytes);
  if (lent_bytes < loan_.bytes()) loan_.shrink_to(lent_bytes);
  if (own_bytes > own_.bytes()) (void)own_.grow_to(own_bytes);
  if (lent_bytes > loan_.bytes()) (void)loan_.grow_to(lent_bytes);
}

}  // namespace loralei

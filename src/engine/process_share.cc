// SPDX-License-Identifier: Apache-2.0
#include "engine/process_share.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace loralei {

void ProcessShare::follow(int64_t process_bytes, const ShrinkAdapters& shrink_adapters, LogSink& log) {
  const int64_t missing = process_bytes - ledger_->used_bytes();
  if (missing <= 0) return;
  const int64_t lacking = missing - ledger_->available_bytes(MemoryUse::kOther);
  if (lacking > 0) shrink_adapters(std::max<int64_t>(0, ledger_->used_bytes(MemoryUse::kAdapters) - lacking));
  const int64_t more = std::min(missing, ledger_->available_bytes(MemoryUse::kOther));
  if (more > 0 && !grant_.grow_to(grant_.bytes() + more)) return;  // another took it meanwhile: the next time
  if (more == missing) {
    told_ = false;
  } else if (!std::exchange(told_, true)) {
    log.log(LogLevel::kWarning, "The process takes " + format_bytes(missing - std::max<int64_t>(0, more)) +
                                    " more than its memory budget of " + format_bytes(ledger_->budget_bytes()) +
                                    "; lower the budget's shares (--kv-cache-memory, --adapter-memory) or raise it "
                                    "(--memory-budget), if the machine has the memory.");
  }
}

}  // namespace loralei

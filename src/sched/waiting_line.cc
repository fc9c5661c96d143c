// SPDX-License-Identifier: Apache-2.0
#include "sched/waiting_line.h"

#include <algorithm>

#include "base/check.h"

namespace loralei {

void WaitingLine::put(const Waiting& waiting) {
  CHECK(first_.insert(waiting).second && shortest_.insert(waiting).second);
  CHECK(waiting.deadline_ns == kNoDeadline || earliest_.insert(waiting).second);
  until_ns_.insert(waiting.until_ns);
}

void WaitingLine::take_out(const Waiting& waiting) {
  CHECK(first_.erase(waiting) == 1 && shortest_.erase(waiting) == 1);
  CHECK(waiting.deadline_ns == kNoDeadline || earliest_.erase(waiting) == 1);
  until_ns_.erase(until_ns_.find(waiting.until_ns));
}

const Waiting* WaitingLine::urgent(int64_t now_ns, int64_t gap_ns) const {
  if (earliest_.empty() || *until_ns_.begin() <= now_ns) return nullptr;
  Waiting due_now;
  due_now.deadline_ns = now_ns;
  const auto found = earliest_.lower_bound(due_now);
  if (found == earliest_.end()) return nullptr;
  const int64_t turn_ns = std::max(now_ns, found->since_ns + (now_ns - first_.begin()->since_ns));
  return turn_ns + gap_ns >= found->latest_ns ? &*found : nullptr;
}

void WaitingLine::check() const {
  CHECK(first_.size() == shortest_.size() && first_.size() == until_ns_.size());
  size_t deadlines = 0;
  for (const Waiting& waiting : shortest_) {
    CHECK(waiting.rows > 0 && first_.count(waiting) == 1 && until_ns_.count(waiting.until_ns) > 0);
    deadlines += earliest_.count(waiting);
    CHECK((waiting.deadline_ns == kNoDeadline) == (earliest_.count(waiting) == 0));
  }
  CHECK(deadlines == earliest_.size());
}

}  // namespace loralei

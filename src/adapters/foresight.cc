// SPDX-License-Identifier: Apache-2.0
#include "adapters/foresight.h"

#include <utility>

#include "base/check.h"

namespace loralei {

void AdapterForesight::cancel_due(AdapterSourceId source, const Known& known) {
  if (known.window) due_.erase({known.rests_since_ns + known.window->from_ns, source});
}

void AdapterForesight::asked(AdapterSourceId source, int64_t now_ns) {
  Known& known = known_[source];
  known.gone = false;
  if (known.uses++ > 0) return;
  cancel_due(source, known);
  known.window.reset();
  if (known.rested) known.times.add(now_ns - known.rests_since_ns);
}

void AdapterForesight::ended(AdapterSourceId source, int64_t now_ns) {
  const auto found = known_.find(source);
  CHECK(found != known_.end() && found->second.uses > 0);
  Known& known = found->second;
  if (--known.uses > 0) return;
  if (known.gone) {
    known_.erase(found);
    return;
  }
  known.rests_since_ns = now_ns;
  known.rested = true;
  known.window = known.times.window();
  if (known.window) due_.emplace(now_ns + known.window->from_ns, source);
}

void AdapterForesight::forget(AdapterSourceId source) {
  const auto found = known_.find(source);
  if (found == known_.end()) return;
  cancel_due(source, found->second);
  Known gone;
  gone.uses = found->second.uses;
  gone.gone = true;
  found->second = gone;
  if (gone.uses == 0) known_.erase(found);
}

void AdapterForesight::hand_over(AdapterSourceId from, AdapterSourceId to, int64_t now_ns) {
  const auto found = known_.find(from);
  if (found == known_.end() || found->second.gone || known_.contains(to)) return;
  cancel_due(from, found->second);
  Known left;
  left.uses = found->second.uses;
  Known next = std::exchange(found->second, left);
  if (left.uses == 0) {
    known_.erase(found);
  } else {  // they end with `from`
    next.uses = 0;
    next.rests_since_ns = now_ns;
    next.rested = true;
  }
  const int64_t due_ns = next.window ? next.rests_since_ns + next.window->from_ns : kNever;
  if (due_ns > now_ns && due_ns != kNever) due_.emplace(due_ns, to);
  known_[to] = std::move(next);
}

Foreseen AdapterForesight::foreseen(AdapterSourceId source, int64_t now_ns) const {
  const auto found = known_.find(source);
  if (found == known_.end() || !found->second.window) return Foreseen::kUnknown;
  const Known& known = found->second;
  const int64_t idle_ns = now_ns - known.rests_since_ns;
  if (idle_ns < 0 || idle_ns > known.window->until_ns) return Foreseen::kUnknown;
  return idle_ns < known.window->from_ns ? Foreseen::kLater : Foreseen::kSoon;
}

bool AdapterForesight::in_use(AdapterSourceId source) const {
  const auto found = known_.find(source);
  return found != known_.end() && found->second.uses > 0;
}

int64_t AdapterForesight::last_use_ns(AdapterSourceId source) const {
  const auto found = known_.find(source);
  return found == known_.end() ? 0 : found->second.rests_since_ns;
}

// What has come too late for its time is passed over.
std::optional<AdapterSourceId> AdapterForesight::take_due(int64_t now_ns) {
  while (next_due_ns() <= now_ns) {
    const AdapterSourceId source = due_.begin()->second;
    due_.erase(due_.begin());
    if (foreseen(source, now_ns) == Foreseen::kSoon) return source;
  }
  return std::nullopt;
}

void AdapterForesight::check() const {
  for (const auto& [source, known] : known_) {
    CHECK(known.uses >= 0 && (known.uses > 0 || known.rested));
    CHECK(known.uses == 0 || !known.window);
  }
  for (const auto& [due_ns, source] : due_) {
    const Known& known = known_.at(source);
    CHECK(known.window && due_ns == known.rests_since_ns + known.window->from_ns);
  }
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "route/replica_health.h"

#include <algorithm>

namespace loralei {

const char* health_state_name(HealthState state) {
  switch (state) {
    case HealthState::kUnknown:
      return "unknown";
    case HealthState::kUp:
      return "up";
    case HealthState::kReturning:
      return "returning";
    case HealthState::kNotReady:
      return "not_ready";
    case HealthState::kOut:
      return "out";
    case HealthState::kLeft:
      return "left";
  }
  return "unknown";
}

void ReplicaHealth::heard(bool ready, int64_t now_ns, bool anew) {
  heard_ = true;
  ready_ = ready;
  if (anew) in_row_ = 0;
  if (!out_ || (now_ns < out_until_ns_ && !anew)) return;
  out_ = false;
  returns_ = true;
  back_ns_ = now_ns;
}

void ReplicaHealth::failed(int64_t now_ns) {
  ++failures_;
  if (!heard_) return;                         // it was not started yet
  if (out_ && now_ns < out_until_ns_) return;  // requests that were there break off together
  if (now_ns - failed_ns_ > options_.forget_ns) in_row_ = 0;
  int64_t out_ns = options_.out_first_ns;
  for (int32_t i = 0; i < in_row_ && out_ns < options_.out_most_ns; ++i) out_ns *= 2;
  ++in_row_;
  out_ = true;
  failed_ns_ = now_ns;
  out_until_ns_ = now_ns + std::min(out_ns, options_.out_most_ns);
}

HealthState ReplicaHealth::state(int64_t now_ns) const {
  if (out_) return HealthState::kOut;
  if (!heard_) return HealthState::kUnknown;
  if (!ready_) return HealthState::kNotReady;
  return returns_ && now_ns - back_ns_ < options_.return_ns ? HealthState::kReturning : HealthState::kUp;
}

bool ReplicaHealth::usable(int64_t now_ns) const {
  const HealthState now = state(now_ns);
  return now == HealthState::kUp || now == HealthState::kReturning;
}

int32_t ReplicaHealth::allowed(int32_t most, int64_t now_ns) const {
  if (state(now_ns) != HealthState::kReturning) return most;
  const double share = static_cast<double>(now_ns - back_ns_) / static_cast<double>(options_.return_ns);
  return std::clamp(static_cast<int32_t>(share * most), std::min(most, 1), most);
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// What a fleet shows of itself.
#include <algorithm>

#include "router/fleet.h"

namespace loralei {

std::vector<ReplicaState> Fleet::states() const {
  const std::lock_guard lock(mutex_);
  const int64_t now_ns = clock_.now_ns();
  std::vector<ReplicaState> states;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = replicas_[i];
    if (replica.left && replica.load.all().requests() == 0) continue;
    const size_t* counts = replica.counts;
    states.push_back({.replica = i,
                      .address = replica.address,
                      .name = address_text(replica.address),
                      .health = replica.left ? HealthState::kLeft : replica.health.state(now_ns),
                      .why = replica.why,
                      .sent = replica.load.all().requests(),
                      .waiting = replica.load.waiting().requests(),
                      .reported_running = replica.reported_running,
                      .reported_waiting = replica.reported_waiting,
                      .sequences_max = replica.sequences_max,
                      .adapters = counts[0] + counts[1] + counts[2],
                      .adapters_in_memory = counts[1] + counts[2],
                      .adapters_on_device = counts[2],
                      .picks = replica.picks,
                      .failures = replica.health.failures(),
                      .reports = replica.reports,
                      .store = replica.store,
                      .own_cost = replica.profile.has_value()});
  }
  return states;
}

std::vector<std::string> Fleet::base_names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Replica& replica : replicas_) {
    for (const std::string& name : replica.models) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> Fleet::adapter_names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  names.reserve(names_.size());
  for (const auto& [name, place] : names_) {
    if (adapters_[place].replicas > 0) names.push_back(name);
  }
  return names;
}

std::vector<std::string> Fleet::first_adapter_names(size_t most, size_t& total) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  total = names_.size();
  for (auto known = names_.begin(); known != names_.end() && names.size() < most; ++known) {
    if (adapters_[known->second].replicas > 0) {
      names.push_back(known->first);
    } else {
      --total;  // requests name it, and nobody has it
    }
  }
  return names;
}

bool Fleet::knows(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return !name.empty() && (is_base(name) || names_.count(name) != 0);
}

uint64_t Fleet::shed() const {
  const std::lock_guard lock(mutex_);
  return shed_;
}

uint64_t Fleet::missed() const {
  const std::lock_guard lock(mutex_);
  return missed_;
}

int64_t Fleet::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  constexpr int64_t kNodeBytes = 96;  // of a name in the tree
  auto bytes = static_cast<int64_t>(adapters_.capacity() * sizeof(Adapter) + prefixes_.bytes()) + homes_.memory_bytes();
  for (const auto& [name, place] : names_) bytes += kNodeBytes + static_cast<int64_t>(name.capacity());
  for (const Replica& replica : replicas_) bytes += static_cast<int64_t>(replica.tiers.capacity());
  return bytes;
}

}  // namespace loralei

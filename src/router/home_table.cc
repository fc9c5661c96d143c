// SPDX-License-Identifier: Apache-2.0
#include "router/home_table.h"

#include <algorithm>

namespace loralei {

void HomeTable::add_replica(size_t replica, uint64_t number) {
  if (replicas_.size() <= replica) {
    replicas_.resize(replica + 1, {.up = false});
    uses_.resize(replica + 1);
  }
  replicas_[replica] = {.up = false, .number = number};
  uses_[replica] = {};
}

void HomeTable::forget_replica(size_t replica) {
  replicas_.at(replica).up = false;
  uses_.at(replica) = {};
  for (auto& [adapter, homes] : given_) std::erase(homes, replica);
}

void HomeTable::forget_adapter(uint32_t adapter) {
  given_.erase(adapter);
  demand_.erase(adapter);
  for (Uses& uses : uses_) uses.so_far.erase(adapter);
}

void HomeTable::homes_of(uint32_t adapter, uint64_t number, std::vector<size_t>& homes) const {
  homes.clear();
  if (const auto given = given_.find(adapter); given != given_.end()) {
    for (const size_t replica : given->second) {
      if (replicas_[replica].up) homes.push_back(replica);
    }
  }
  if (!homes.empty()) return;
  if (const auto home = home_by_lot(AdapterSourceId{number}, replicas_)) homes.push_back(*home);
}

void HomeTable::begin_uses(size_t replica) { uses_.at(replica) = {}; }

void HomeTable::count_uses(size_t replica, uint32_t adapter, int64_t so_far) {
  if (so_far == 0) return;
  Uses& uses = uses_.at(replica);
  const auto [known, is_new] = uses.so_far.try_emplace(adapter, so_far);
  const int64_t before = is_new ? (uses.begins ? so_far : 0) : known->second;
  known->second = so_far;
  // Fewer than before: it was loaded anew and counts from the beginning.
  const int64_t more = so_far >= before ? so_far - before : so_far;
  if (more > 0) demand_[adapter] += static_cast<double>(more);
}

int64_t HomeTable::memory_bytes() const {
  constexpr int64_t kNodeBytes = 48;
  auto entries = static_cast<int64_t>(given_.size() + demand_.size());
  for (const Uses& uses : uses_) entries += static_cast<int64_t>(uses.so_far.size());
  for (const auto& [adapter, homes] : given_) entries += static_cast<int64_t>(homes.size() / 4);
  return entries * kNodeBytes;
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "router/relay_board.h"

#include <utility>
#include <vector>

namespace loralei {

void RelayBoard::add(const std::shared_ptr<Entry>& entry) {
  const std::lock_guard lock(mutex_);
  entries_[entry.get()] = entry;
}

void RelayBoard::remove(const Entry* entry) {
  const std::lock_guard lock(mutex_);
  entries_.erase(entry);
}

void RelayBoard::lost(size_t replica) {
  std::vector<std::shared_ptr<Entry>> entries;
  {
    const std::lock_guard lock(mutex_);
    entries.reserve(entries_.size());
    for (const auto& [key, weak] : entries_) {
      if (auto entry = weak.lock()) entries.push_back(std::move(entry));
    }
  }
  for (const std::shared_ptr<Entry>& entry : entries) entry->replica_lost(replica);
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// AdapterBoard: what is shown of the adapters, one status a source.
//
// Thread-safe. The engine's thread writes what has changed, and never waits for a reader
// where it has a step to compute; readers take the statuses one by one out of what they
// were handed, so that a list of ten thousand costs the reader alone. Ownership: statuses
// are immutable and shared. Invariant: a list is one state of the board.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/api.h"

namespace loralei {

class AdapterBoard {
 public:
  // Of one source: its status, or null where it is gone.
  using Change = std::pair<AdapterSourceId, std::shared_ptr<const AdapterStatus>>;

  // Takes the changes in and clears them. False, and nothing has changed, where a reader
  // is at the board and `wait` is not set.
  bool put(std::vector<Change>& changes, bool wait) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (wait) lock.lock();
    if (!wait && !lock.try_lock()) return false;
    for (auto& [source, status] : changes) {
      if (status == nullptr) {
        statuses_.erase(source);
      } else {
        statuses_[source] = std::move(status);
      }
    }
    changes.clear();
    return true;
  }

  // By source.
  std::vector<std::shared_ptr<const AdapterStatus>> list() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<const AdapterStatus>> statuses;
    statuses.reserve(statuses_.size());
    for (const auto& [source, status] : statuses_) statuses.push_back(status);
    return statuses;
  }

 private:
  mutable std::mutex mutex_;
  std::map<AdapterSourceId, std::shared_ptr<const AdapterStatus>> statuses_;
};

}  // namespace loralei

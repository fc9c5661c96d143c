// SPDX-License-Identifier: Apache-2.0
// AdapterBoard: what is shown of the adapters, one status a source, as the engine's news
// left it. Belongs to whoever takes the engine's output.
//
// Thread-safe. The consumer of the output writes; readers take the statuses one by one
// out of what they were handed: a list of ten thousand costs the engine nothing.
// Ownership: statuses are immutable and shared. Invariant: a list is one state of the
// board.
#pragma once

#include <map>
#include <mutex>
#include <span>

#include "engine/api.h"

namespace loralei {

class AdapterBoard {
 public:
  void put(std::span<const AdapterNews> news) {
    if (news.empty()) return;
    const std::lock_guard lock(mutex_);
    for (const AdapterNews& one : news) {
      if (one.status == nullptr) {
        statuses_.erase(one.source);
      } else {
        statuses_[one.source] = one.status;
      }
    }
  }

  // By source.
  AdapterList list() const {
    const std::lock_guard lock(mutex_);
    AdapterList statuses;
    statuses.reserve(statuses_.size());
    for (const auto& [source, status] : statuses_) statuses.push_back(status);
    return statuses;
  }

 private:
  mutable std::mutex mutex_;
  std::map<AdapterSourceId, std::shared_ptr<const AdapterStatus>> statuses_;
};

}  // namespace loralei

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
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/api.h"

namespace loralei {

class AdapterBoard {
 public:
  // now_ns: by a clock of the caller's, for shown(); 0: he does not ask.
  void put(std::span<const AdapterNews> news, int64_t now_ns = 0) {
    if (news.empty()) return;
    const std::lock_guard lock(mutex_);
    for (const AdapterNews& one : news) {
      if (one.status == nullptr) {
        statuses_.erase(one.source);
        continue;
      }
      Shown& shown = statuses_[one.source];
      const bool asked_again = one.status->uses > (shown.status == nullptr ? 0 : shown.status->uses);
      const bool was_in_use = shown.status != nullptr && shown.status->users > 0;
      if (asked_again || was_in_use || one.status->users > 0) shown.used_ns = now_ns;
      shown.status = one.status;
    }
  }

  // By source.
  AdapterList list() const {
    const std::lock_guard lock(mutex_);
    AdapterList statuses;
    statuses.reserve(statuses_.size());
    for (const auto& [source, shown] : statuses_) statuses.push_back(shown.status);
    return statuses;
  }

  // And when the news last said that requests compute with it, or did until then; 0: they
  // never said so.
  struct Shown {
    std::shared_ptr<const AdapterStatus> status;
    int64_t used_ns = 0;
  };
  std::vector<Shown> shown() const {
    const std::lock_guard lock(mutex_);
    std::vector<Shown> all;
    all.reserve(statuses_.size());
    for (const auto& [source, shown] : statuses_) all.push_back(shown);
    return all;
  }

 private:
  mutable std::mutex mutex_;
  std::map<AdapterSourceId, Shown> statuses_;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// RelayBoard: who is at work on which replicas, to be told when one of these does not
// answer any more.
//
// Thread-safe; entries are told without its lock held.
// Ownership: shares entries weakly. Failure: none.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace loralei {

class RelayBoard {
 public:
  class Entry {
   public:
    virtual ~Entry() = default;
    virtual void replica_lost(size_t replica) = 0;
  };
  void add(const std::shared_ptr<Entry>& entry);
  void remove(const Entry* entry);
  // Those of which nothing has gone to their clients go elsewhere.
  void lost(size_t replica);

 private:
  std::mutex mutex_;
  std::unordered_map<const Entry*, std::weak_ptr<Entry>> entries_;
};

}  // namespace loralei

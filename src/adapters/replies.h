// SPDX-License-Identifier: Apache-2.0
// RegistryReplies: answers to the registry's commands, in the order in which they became
// due. Thread: the engine's alone.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "adapters/entries.h"
#include "base/result.h"

namespace loralei {

struct RegistryReply {
  uint64_t ticket = 0;
  Status status;
  int64_t bytes_freed = 0;
  std::string version;  // digest
};

class RegistryReplies {
 public:
  void put(uint64_t ticket, Status status, int64_t bytes_freed = 0, std::string version = {}) {
    replies_.push_back({ticket, std::move(status), bytes_freed, std::move(version)});
  }
  // To all commands that wait for this source; ok where it has a version.
  void put_all(AdapterEntry& entry, const Status& status) {
    const std::string version = status.ok() ? digest_hex(entry.version->adapter->digest) : std::string();
    for (const uint64_t ticket : entry.tickets) put(ticket, status, 0, version);
    entry.tickets.clear();
  }
  void take(std::vector<RegistryReply>& replies) {
    replies.insert(replies.end(), std::make_move_iterator(replies_.begin()), std::make_move_iterator(replies_.end()));
    replies_.clear();
  }

 private:
  std::vector<RegistryReply> replies_;
};

}  // namespace loralei

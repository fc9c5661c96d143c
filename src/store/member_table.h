// SPDX-License-Identifier: Apache-2.0
// MemberTable: who is of a fleet, as news of etcd's keys say, and who of it joined or
// left. store/membership tells routers of it, the simulator its own.
//
// Thread: one; no clock, no I/O. Ownership: values.
// Invariants: of each member it is told once that it joined and once that it left; one
// that is another process than before (Member::boot) leaves and joins. What cannot be
// read is no member and changes nothing.
// Failure: none; what is no member is told to `stray`.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "base/result.h"
#include "store/watch_state.h"

namespace loralei {

// `Ears` has joined(member), left(member), stray(key, error) and read(key value), which
// answers a Result<Member>.
template <class Member>
class MemberTable {
 public:
  template <class Ears>
  void take(const EtcdNews& news, Ears&& ears) {
    if (news.anew) {
      std::map<std::string, Member> before = std::exchange(members_, {});
      for (const EtcdEvent& event : news.events) put(event.kv, before, ears);
      for (const auto& [key, member] : before) ears.left(member);
      return;
    }
    for (const EtcdEvent& event : news.events) {
      if (!event.removed) {
        put(event.kv, members_, ears);
        continue;
      }
      const auto known = members_.find(event.kv.key);
      if (known == members_.end()) continue;
      ears.left(known->second);
      members_.erase(known);
    }
  }
  const std::map<std::string, Member>& members() const { return members_; }  // by key

 private:
  // `before`: where it is known from.
  template <class Ears>
  void put(const EtcdKeyValue& kv, std::map<std::string, Member>& before, Ears&& ears) {
    Result<Member> read = ears.read(kv);
    if (!read.ok()) return ears.stray(kv.key, read.error());
    const auto known = before.find(kv.key);
    const bool same = known != before.end() && known->second.boot == read->boot;
    if (known != before.end()) {
      if (!same) ears.left(known->second);
      before.erase(known);
    }
    if (!same) ears.joined(*read);
    members_[kv.key] = *std::move(read);
  }

  std::map<std::string, Member> members_;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// SimKeeper: a replica that keeps its key in etcd; SimWatch: a router that watches who is
// there. What they do and when, KeeperState, WatchState and MemberTable decide, as those
// of live servers; here their acts are calls to SimEtcd.
//
// Thread: one. Ownership: each owns its client; both borrow SimEtcd. One that is gone
// does nothing more: its lease ends by itself.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "sim/etcd.h"
#include "store/keeper_state.h"
#include "store/member_table.h"
#include "store/watch_state.h"

namespace loralei::sim {

inline constexpr const char* kMembersPrefix = "/loralei/default/members/";

// A process of a replica. Its key ends with its place, its value is the boot.
struct SimMember {
  size_t place = 0;
  std::string boot;  // another word each time it is started
};
std::string member_key(size_t place);
Result<SimMember> read_member(const EtcdKeyValue& kv);

class SimKeeper {
 public:
  // Leases are numbered as `next_lease` says.
  SimKeeper(SimEtcd& etcd, const SimMember& member, int64_t lease_s, std::function<int64_t()> next_lease)
      : etcd_(etcd),
        client_(etcd, {.deadline_ns = lease_s * 1'000'000'000 / 3}),
        state_(member_key(member.place), member.boot, lease_s),
        next_lease_(std::move(next_lease)) {}

  void start() { act(); }
  void cut(bool is) { client_.cut(is); }
  bool is_cut() const { return client_.is_cut(); }

 private:
  void act();

  SimEtcd& etcd_;
  SimEtcdClient client_;
  KeeperState state_;
  const std::function<int64_t()> next_lease_;
  const std::shared_ptr<bool> there_ = std::make_shared<bool>(true);  // rests look whether it is
};

class SimWatch {
 public:
  struct Listeners {
    std::function<void(const SimMember&)> joined, left;
    std::function<void(bool)> up;  // whether all is told
  };
  SimWatch(SimEtcd& etcd, Listeners listeners)
      : etcd_(etcd), client_(etcd, {}), state_(kMembersPrefix, {}, 0, 1), listeners_(std::move(listeners)) {}

  void start() { act(); }
  void cut(bool is) { client_.cut(is); }
  bool is_cut() const { return client_.is_cut(); }
  const std::map<std::string, SimMember>& members() const { return members_.members(); }
  uint64_t lists() const { return lists_; }

 private:
  void act();
  void open();
  void take(std::variant<EtcdWatchMessage, Error> came);
  void read();  // until something comes, or nothing for a while
  void rest();
  void tell(const WatchOutcome& outcome);

  SimEtcd& etcd_;
  SimEtcdClient client_;
  WatchState state_;
  const Listeners listeners_;
  MemberTable<SimMember> members_;
  std::shared_ptr<SimEtcd::Stream> stream_;
  std::deque<std::variant<EtcdWatchMessage, Error>> inbox_;
  uint64_t reads_ = 0;  // a silence is behind one of them
  uint64_t lists_ = 0;
  const std::shared_ptr<bool> there_ = std::make_shared<bool>(true);
};

}  // namespace loralei::sim

// SPDX-License-Identifier: Apache-2.0
// SimKeeper: a replica that keeps its key in etcd; SimWatch: who watches keys there;
// SimMembers: a router that watches who is of the fleet. What they do and when,
// KeeperState, WatchState and MemberTable decide, as those of live servers; here their
// acts are calls to SimEtcd.
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

// Of all keys that begin alike.
class SimWatch {
 public:
  using OnNews = std::function<void(const EtcdNews&)>;
  SimWatch(SimEtcd& etcd, const std::string& prefix, OnNews on_news)
      : etcd_(etcd), client_(etcd, {}), prefix_(prefix), state_(prefix, {}, 0, 1), on_news_(std::move(on_news)) {}

  void start() { act(); }
  void cut(bool is) { client_.cut(is); }
  bool is_cut() const { return client_.is_cut(); }
  bool is_up() const { return up_; }  // all is told
  bool was_up() const { return was_up_; }
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
  const std::string prefix_;
  WatchState state_;
  const OnNews on_news_;
  std::shared_ptr<SimEtcd::Stream> stream_;
  std::deque<std::variant<EtcdWatchMessage, Error>> inbox_;
  uint64_t reads_ = 0;  // a silence is behind one of them
  uint64_t lists_ = 0;
  bool up_ = false, was_up_ = false;
  const std::shared_ptr<bool> there_ = std::make_shared<bool>(true);
};

class SimMembers {
 public:
  using Listener = std::function<void(const SimMember&)>;
  SimMembers(SimEtcd& etcd, Listener joined, Listener left);

  SimWatch& watch() { return watch_; }
  const SimWatch& watch() const { return watch_; }
  const std::map<std::string, SimMember>& all() const { return table_.members(); }  // by key

 private:
  const Listener joined_, left_;
  MemberTable<SimMember> table_;
  SimWatch watch_;
};

}  // namespace loralei::sim

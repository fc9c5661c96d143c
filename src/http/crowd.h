// SPDX-License-Identifier: Apache-2.0
// Crowd: who waits for something or holds some of it, by address, so that scarcity takes
// from whoever has most.
//
// Thread: one at a time.
// Ownership: borrows its members, each of which leaves before it ends.
// Invariants: members of one address stand in the order in which they joined; of
// addresses that have as much, that whose first joined earliest comes first; join() and
// leave() cost the logarithm of the number of addresses.
// Failure: none.
#pragma once

#include <cstdint>
#include <list>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>

#include "base/check.h"

namespace loralei {

template <typename T>
class Crowd {
  struct Group;
  struct Member {
    T* who;
    Group* group;
    int64_t weight;
    int64_t number;
  };
  struct Group {
    std::string address;
    std::list<Member> members;
    int64_t weight = 0;
    // Of the set: the heaviest last, and of those the one that has waited longest.
    std::tuple<int64_t, int64_t, Group*> rank() { return {weight, -members.front().number, this}; }
  };

 public:
  using Seat = typename std::list<Member>::iterator;

  Seat join(const std::string& address, T* who, int64_t weight = 1) {
    Group& group = groups_[address];
    if (group.members.empty())
      group.address = address;
    else
      ranks_.erase(group.rank());
    group.weight += weight;
    const Seat seat = group.members.insert(group.members.end(), {who, &group, weight, ++joined_});
    ranks_.insert(group.rank());
    return seat;
  }

  void leave(Seat seat) {
    Group& group = *seat->group;
    ranks_.erase(group.rank());
    group.weight -= seat->weight;
    group.members.erase(seat);
    if (group.members.empty())
      groups_.erase(std::string(group.address));
    else
      ranks_.insert(group.rank());
  }

  bool empty() const { return ranks_.empty(); }
  // Of the address that has most, while there is one: how much, and who of
  // it joined first.
  int64_t most() const { return std::get<0>(*ranks_.rbegin()); }
  T* first_of_most() const { return std::get<2>(*ranks_.rbegin())->members.front().who; }

 private:
  std::unordered_map<std::string, Group> groups_;
  std::set<std::tuple<int64_t, int64_t, Group*>> ranks_;
  int64_t joined_ = 0;
};

}  // namespace loralei

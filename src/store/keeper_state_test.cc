// SPDX-License-Identifier: Apache-2.0
#include "store/keeper_state.h"

#include <gtest/gtest.h>

#include <string>

#include "store/member_table.h"

namespace loralei {
namespace {

using Act = KeeperState::Act;

const Error kAway{ErrorCode::kUnavailable, "away"};

EtcdKeyValue there(const std::string& value, int64_t lease) {
  return {.key = "k", .value = value, .create_revision = 1, .mod_revision = 1, .lease = lease};
}

void join(KeeperState& state, int64_t lease) {
  ASSERT_EQ(state.act(), Act::kGrant);
  state.granted(EtcdLease{lease, 9});
  ASSERT_EQ(state.act(), Act::kRead);
  state.read(EtcdKeyValue{.key = "k"});
  ASSERT_EQ(state.act(), Act::kPut);
  EXPECT_EQ(state.to_put().lease, lease);
  state.put({});
  ASSERT_EQ(state.act(), Act::kRest);
  EXPECT_TRUE(state.kept().ok());
  EXPECT_EQ(state.rest_ms(), 3'000) << "a third of the lease";
}

TEST(KeeperState, KeepsItsLeaseAndLooksAfterItsKey) {
  KeeperState state("k", "v", 9);
  join(state, 5);
  state.rested();
  ASSERT_EQ(state.act(), Act::kKeepAlive);
  state.kept_alive(EtcdLease{5, 9});
  ASSERT_EQ(state.act(), Act::kRead);
  state.read(there("v", 5));
  EXPECT_EQ(state.act(), Act::kRest) << "nothing is to be put";
  for (const EtcdKeyValue& other : {there("w", 5), there("v", 4), EtcdKeyValue{.key = "k"}}) {
    state.rested();
    state.kept_alive(EtcdLease{5, 9});
    state.read(other);
    ASSERT_EQ(state.act(), Act::kPut);
    state.put({});
  }
  state.leave();
  ASSERT_EQ(state.act(), Act::kRevoke);
  state.revoked({});
  EXPECT_EQ(state.act(), Act::kLeft);
  EXPECT_EQ(state.lease(), 0);
}

TEST(KeeperState, ALeaseThatIsOverIsTakenAnewInTheSameRound) {
  KeeperState state("k", "v", 9);
  join(state, 5);
  state.rested();
  state.kept_alive(EtcdLease{5, 0});
  join(state, 6);
}

TEST(KeeperState, WhatFailsEndsItsRoundAndIsTriedSoon) {
  KeeperState state("k", "v", 9);
  state.granted(kAway);
  EXPECT_EQ(state.act(), Act::kRest);
  EXPECT_EQ(state.rest_ms(), 900);
  state.rested();
  join(state, 5);
  state.rested();
  state.kept_alive(kAway);
  EXPECT_FALSE(state.kept().ok());
  EXPECT_EQ(state.lease(), 5) << "it may live";
  state.rested();
  ASSERT_EQ(state.act(), Act::kKeepAlive);
  state.kept_alive(EtcdLease{5, 9});
  state.read(there("w", 1));
  state.put(kAway);
  EXPECT_FALSE(state.kept().ok());
  state.leave();
  state.revoked(kAway);
  EXPECT_EQ(state.lease(), 5) << "it is there until it is over";
}

TEST(KeeperState, WhoHasNoLeaseLeavesAtOnce) {
  KeeperState state("k", "v", 9);
  state.leave();
  EXPECT_EQ(state.act(), Act::kLeft);
}

struct Booted {
  std::string name, boot;
};
struct Heard {
  std::string told;
  void joined(const Booted& member) { told += "+" + member.name + member.boot + " "; }
  void left(const Booted& member) { told += "-" + member.name + member.boot + " "; }
  void stray(const std::string& key, const Error&) { told += "?" + key + " "; }
  Result<Booted> read(const EtcdKeyValue& kv) {
    if (kv.value.empty()) return corrupt("empty");
    return Booted{kv.key, kv.value};
  }
};

EtcdEvent put(const std::string& key, const std::string& value) { return {false, {.key = key, .value = value}}; }
EtcdEvent removal(const std::string& key) { return {true, {.key = key}}; }

TEST(MemberTable, TellsOfEachThatItJoinedAndThatItLeftOnce) {
  MemberTable<Booted> table;
  Heard heard;
  table.take({.events = {put("a", "1"), put("b", "1"), put("c", "")}, .listed = true}, heard);
  table.take({.events = {put("a", "1"), removal("c"), removal("b"), put("b", "2")}}, heard);
  EXPECT_EQ(heard.told, "+a1 +b1 ?c -b1 +b2 ");
  heard.told.clear();
  table.take({.events = {put("a", "2")}}, heard);
  EXPECT_EQ(heard.told, "-a1 +a2 ") << "another process";
  heard.told.clear();
  table.take({.events = {put("a", "2"), put("d", "1")}, .listed = true, .anew = true}, heard);
  EXPECT_EQ(heard.told, "+d1 -b2 ");
  EXPECT_EQ(table.members().size(), 2u);
}

}  // namespace
}  // namespace loralei

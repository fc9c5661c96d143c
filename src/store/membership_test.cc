// SPDX-License-Identifier: Apache-2.0
#include "store/membership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "store/fake_etcd_test_util.h"
#include "store/patience_test_util.h"

namespace loralei {
namespace {

using namespace test;  // NOLINT

FleetMember member_at(int port, const std::string& boot = "b") {
  return {.address = {"10.0.0.1", port}, .boot = boot, .model = "m", .base = "digest", .sequences_max = 8};
}

class MembershipTest : public testing::Test {
 protected:
  MembershipOptions options() const {
    MembershipOptions made;
    made.etcd = etcd.options().endpoints;
    made.lease_s = 1;  // kept alive three times a second; the fake ends none by itself
    made.attempt_ms = 5'000;
    return made;
  }
  std::unique_ptr<MemberKeeper> keep(const FleetMember& member) {
    auto keeper = MemberKeeper::start(options(), member, log);
    EXPECT_TRUE(keeper.ok()) << keeper.error().message;
    return std::move(*keeper);
  }
  std::unique_ptr<MemberWatch> watch() {
    MemberListeners listeners;
    listeners.joined = [this](const FleetMember& member) { note("+", member); };
    listeners.left = [this](const FleetMember& member) { note("-", member); };
    auto watch = MemberWatch::start(options(), std::move(listeners), log);
    EXPECT_TRUE(watch.ok()) << watch.error().message;
    return std::move(*watch);
  }
  void note(const char* what, const FleetMember& member) {
    const std::lock_guard lock(mutex);
    told += what + std::to_string(member.address.port) + member.boot + " ";
  }
  std::string all_told() {
    const std::lock_guard lock(mutex);
    return told;
  }
  static std::string key(int port) { return "/loralei/default/members/10.0.0.1:" + std::to_string(port); }

  FakeEtcd etcd;
  CollectingLog log;
  std::mutex mutex;
  std::string told;
};

TEST_F(MembershipTest, WhoJoinsIsToldAndWhoLeaves) {
  const auto first = keep(member_at(1));
  until([&] { return first->is_member(); });
  const auto watching = watch();
  ASSERT_TRUE(watching->wait_for_first(60'000).ok());
  EXPECT_EQ(all_told(), "+1b ");
  const auto second = keep(member_at(2));
  until([&] { return all_told() == "+1b +2b "; });
  first->leave();
  EXPECT_TRUE(first->wait_left(60'000));
  EXPECT_FALSE(first->is_member());
  until([&] { return all_told() == "+1b +2b -1b "; });
  EXPECT_EQ(etcd.all().size(), 1u);
  EXPECT_EQ(etcd.leases().size(), 1u);
}

TEST_F(MembershipTest, AnotherProcessAtAnAddressIsAnotherMember) {
  auto first = keep(member_at(1, "x"));
  const auto watching = watch();
  until([&] { return all_told() == "+1x "; });
  const int64_t lease = etcd.leases().at(0);
  etcd.mute(0, true);  // it dies, and etcd does not hear of it
  std::thread dying([&] { first.reset(); });
  dying.join();
  etcd.mute(0, false);
  const auto second = keep(member_at(1, "y"));
  until([&] { return all_told().find("-1x +1y ") != std::string::npos; });
  etcd.expire(lease);
  until([&] { return second->is_member(); });
  EXPECT_EQ(etcd.all().size(), 1u) << "the key is the second one's";
}

TEST_F(MembershipTest, ALeaseOrAKeyThatIsLostIsTakenAgain) {
  const auto keeper = keep(member_at(1));
  const auto watching = watch();
  until([&] { return all_told() == "+1b "; });
  etcd.expire(etcd.leases().at(0));
  until([&] { return all_told() == "+1b -1b +1b "; });
  etcd.remove(key(1));
  until([&] { return all_told() == "+1b -1b +1b -1b +1b "; });
}

TEST_F(MembershipTest, WhileEtcdIsAwayNobodyLeaves) {
  const auto keeper = keep(member_at(1));
  const auto watching = watch();
  until([&] { return watching->up_to_date() && all_told() == "+1b "; });
  etcd.stop(0);
  until([&] { return !watching->up_to_date() && !keeper->is_member(); });
  EXPECT_EQ(all_told(), "+1b ");
  etcd.start(0);
  until([&] { return watching->up_to_date() && keeper->is_member(); });
  EXPECT_EQ(all_told(), "+1b ");
}

TEST_F(MembershipTest, MembersMayComeBeforeEtcdDoes) {
  etcd.stop(0);
  const auto keeper = keep(member_at(1));
  const auto watching = watch();
  EXPECT_FALSE(watching->wait_for_first(50).ok());
  etcd.start(0);
  until([&] { return all_told() == "+1b "; });
}

TEST_F(MembershipTest, AnEtcdThatBeganAnewIsFilledAgain) {
  const auto keeper = keep(member_at(1));
  const auto watching = watch();
  until([&] { return all_told() == "+1b "; });
  etcd.stop(0);
  etcd.begin_anew("5");
  etcd.put(key(7), fleet_member_text(member_at(7)));
  etcd.start(0);
  until([&] { return all_told().find("+7b ") != std::string::npos && etcd.all().size() == 2; });
  until([&] {
    const std::string all = all_told();
    return std::count(all.begin(), all.end(), '+') - std::count(all.begin(), all.end(), '-') == 2;
  });
}

TEST_F(MembershipTest, WhatIsNoMemberIsLeftOut) {
  etcd.put(key(1), "nonsense");
  etcd.put(key(2), fleet_member_text(member_at(3)));  // another address than its key's
  etcd.put(key(4), fleet_member_text(member_at(4)));
  const auto watching = watch();
  ASSERT_TRUE(watching->wait_for_first(60'000).ok());
  EXPECT_EQ(all_told(), "+4b ");
  EXPECT_NE(log.text().find("10.0.0.1:1' in etcd is no member"), std::string::npos) << log.text();
  EXPECT_NE(log.text().find("names another address"), std::string::npos) << log.text();
}

TEST(FleetMember, IsReadAsItWasWritten) {
  FleetMember member = member_at(80);
  member.address.host = "::1";
  const auto read = parse_fleet_member(fleet_member_text(member));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, member);
  for (const char* text :
       {"", "{}", R"({"format":1})", R"({"format":2,"host":"a","port":1})", R"({"format":1,"host":"a"})",
        R"({"format":1,"host":"a","port":0})", R"({"format":1,"host":"","port":1})",
        R"({"format":1,"host":"a/b","port":1})", R"({"format":1,"host":"a","port":1,"boot":5})",
        R"({"format":1,"host":"a","port":1,"boot":"\u0001"})",
        R"({"format":1,"host":"a","port":1,"capacity":{"sequences":-1}})"})
    EXPECT_FALSE(parse_fleet_member(text).ok()) << text;
}

}  // namespace
}  // namespace loralei

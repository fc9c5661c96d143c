// SPDX-License-Identifier: Apache-2.0
#include "store/fleet_leader.h"

#include <gtest/gtest.h>

#include "store/fake_etcd_test_util.h"
#include "store/patience_test_util.h"

namespace loralei {
namespace {

using namespace test;  // NOLINT

class FleetLeaderTest : public testing::Test {
 protected:
  std::unique_ptr<FleetLeader> stand(const std::string& name) {
    MembershipOptions made;
    made.etcd = etcd.options().endpoints;
    made.lease_s = 60;  // the fake ends none by itself
    made.attempt_ms = 5'000;
    auto leader = FleetLeader::start(made, name, clock, log);
    EXPECT_TRUE(leader.ok()) << leader.error().message;
    return std::move(*leader);
  }
  static std::string next_of(FleetLeader& one) {
    std::optional<std::string> text;
    until([&] { return (text = one.news()).has_value(); });
    return text.value_or("");
  }

  FakeEtcd etcd;
  CollectingLog log;
  SteadyClock clock;
};

TEST_F(FleetLeaderTest, OneLeadsAndTheOthersAreTold) {
  const auto first = stand("first");
  until([&] { return first->leads(); });
  const auto second = stand("second");
  until([&] { return etcd.all().size() == 2; });
  second->decide("not its word");
  EXPECT_FALSE(second->leads());
  first->decide("one");
  EXPECT_EQ(next_of(*second), "one");
  EXPECT_EQ(next_of(*first), "one");
  EXPECT_FALSE(second->news()) << "told once";
  EXPECT_FALSE(second->leads());
  first->decide("two");
  EXPECT_EQ(next_of(*second), "two");
  EXPECT_EQ(etcd.all().at("/loralei/default/decided"), "two");
}

TEST_F(FleetLeaderTest, WhoEndsGivesTheLeadAway) {
  auto first = stand("first");
  until([&] { return first->leads(); });
  first->decide("one");
  EXPECT_EQ(next_of(*first), "one");
  first.reset();
  EXPECT_EQ(etcd.all().size(), 1u) << "what was decided stays";
  const auto second = stand("second");
  EXPECT_EQ(next_of(*second), "one") << "who comes later is told, too";
  until([&] { return second->leads(); });
  second->decide("two");
  EXPECT_EQ(next_of(*second), "two");
}

// Its lease is over, another one leads, and it has not heard of either.
TEST_F(FleetLeaderTest, WhoLeadsNoMoreWritesNothing) {
  const auto first = stand("first");
  until([&] { return first->leads(); });
  const int64_t lease = etcd.leases().at(0);
  const auto second = stand("second");
  until([&] { return etcd.all().size() == 2; });
  // Before the write, behind the question who leads.
  int txns = 0;
  std::function<void()> end_at_write = [&] {
    if (++txns < 2) return etcd.before_txn(end_at_write);
    etcd.expire(lease);
  };
  etcd.before_txn(end_at_write);
  first->decide("stale");
  until([&] { return !first->leads(); });
  EXPECT_EQ(etcd.all().count("/loralei/default/decided"), 0u);
}

TEST_F(FleetLeaderTest, WhatAStrangerWroteIsToldAsItIs) {
  etcd.put("/loralei/default/decided", "nonsense");
  etcd.put("/loralei/default/decided/other", "of another key");
  const auto one = stand("one");
  EXPECT_EQ(next_of(*one), "nonsense");
  etcd.remove("/loralei/default/decided");
  EXPECT_EQ(next_of(*one), "");
}

TEST_F(FleetLeaderTest, EtcdMayComeLater) {
  etcd.stop(0);
  auto one = stand("one");
  EXPECT_FALSE(one->leads());
  etcd.start(0);
  until([&] { return one->leads(); });
  one->decide("x");
  EXPECT_EQ(next_of(*one), "x");
}

// It need not hear that its lease is over.
TEST(FleetLeaderClockTest, ALeadEndsByItsOwnClock) {
  FakeEtcd etcd;
  CollectingLog log;
  ManualClock clock;
  MembershipOptions made;
  made.etcd = etcd.options().endpoints;
  made.lease_s = 60;
  auto one = FleetLeader::start(made, "one", clock, log);
  ASSERT_TRUE(one.ok());
  until([&] { return (*one)->leads(); });
  clock.advance_ns(53'900'000'000);
  EXPECT_TRUE((*one)->leads());
  clock.advance_ns(200'000'000);
  EXPECT_FALSE((*one)->leads());
}

}  // namespace
}  // namespace loralei

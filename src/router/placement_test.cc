// SPDX-License-Identifier: Apache-2.0
#include "router/placement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "router/router_test_util.h"
#include "store/fake_etcd_test_util.h"
#include "store/patience_test_util.h"

namespace loralei {
namespace {

using test::FakeEtcd;
using test::until;

constexpr int64_t kS = 1'000'000'000;

// What a test says that a router leads, and hears.
class FakeLeader final : public FleetLeader {
 public:
  bool leads() const override { return is; }
  void decide(std::string text) override { decided = std::move(text); }
  std::optional<std::string> news() override { return std::exchange(next, std::nullopt); }
  bool is = true;
  std::string decided;
  std::optional<std::string> next;
};

// Two replicas that bring what they are asked to, behind one router's placement.
class PlacementTest : public testing::Test {
 protected:
  PlacementTest() {
    for (int i = 0; i < 2; ++i) {
      replicas_.push_back(std::make_unique<FakeReplica>([this, i](HttpRequest request, auto writer) {
        const std::lock_guard lock(mutex_);
        asked_.push_back(std::to_string(i) + " " + request.method + " " + request.path + " " +
                         std::string(request.header("authorization")));
        writer->respond(status_, kJson, "{}");
      }));
    }
    FleetOptions fleet;
    fleet.homes = true;
    fleet.profile.step.linear = {{1, 0.01}};
    fleet_ = std::make_unique<Fleet>(fleet, clock_, log_);
    for (const auto& replica : replicas_) fleet_->add(replica->address());
    upstream_ = *Upstream::start({}, log_);
    clock_.advance_ns(100 * kS);
  }
  ~PlacementTest() override { upstream_->stop(); }

  std::unique_ptr<PlacementController> placement(FleetLeader* leader, bool asks = true) {
    PlacementOptions options;
    options.homes.hot_requests = 10;
    options.asks = asks;
    options.admin_key = "secret";
    return std::make_unique<PlacementController>(options, PlacementWorld{*fleet_, *upstream_, leader, clock_, log_});
  }
  // Every replica has them, and says that they were used so often so far.
  void report(int64_t uses, const std::vector<std::string>& names, ReplicaTier tier = ReplicaTier::kDisk) {
    for (size_t i = 0; i < replicas_.size(); ++i) {
      ReplicaReport report;
      report.boot = boot_, report.models = {"base"}, report.since = cursor_, report.cursor = cursor_ + 1;
      for (const std::string& name : names)
        report.adapters.push_back({.name = name, .tier = tier, .rank = 8, .bytes = 1 << 20, .uses = uses});
      fleet_->take(i, report);
    }
    ++cursor_;
  }
  std::vector<std::string> asked() {
    const std::lock_guard lock(mutex_);
    std::sort(asked_.begin(), asked_.end());
    return asked_;
  }
  std::string name(size_t i) const { return address_text(replicas_[i]->address()); }

  ManualClock clock_;
  CollectingLog log_;
  std::mutex mutex_;
  std::vector<std::string> asked_;
  int status_ = 200;
  std::string boot_ = "boot";
  uint64_t cursor_ = 0;
  std::vector<std::unique_ptr<FakeReplica>> replicas_;
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<Upstream> upstream_;
};

TEST_F(PlacementTest, WhatIsAskedForMuchIsBroughtToItsHomes) {
  FakeLeader leader;
  const auto placed = placement(&leader);
  report(0, {"a/b", "c"});
  placed->turn();
  EXPECT_EQ(placed->figures().adapters, 0u);
  report(50, {"a/b"});
  report(1, {"c"});
  placed->turn();
  until([&] { return placed->figures().brought == 2; });
  EXPECT_EQ(asked(), (std::vector<std::string>{"0 POST /v1/adapters/a%2Fb/prefetch Bearer secret",
                                               "1 POST /v1/adapters/a%2Fb/prefetch Bearer secret"}));
  EXPECT_EQ(placed->figures().adapters, 1u);
  EXPECT_TRUE(placed->figures().leads);
  const auto told = parse_fleet_homes(leader.decided);
  ASSERT_TRUE(told.ok());
  ASSERT_EQ(told->size(), 1u);
  EXPECT_EQ(told->front().adapter, "a/b");
  EXPECT_EQ(told->front().replicas.size(), 2u) << "it is all that is asked for";
  placed->turn();
  EXPECT_EQ(asked().size(), 2u) << "not again at once";
  clock_.advance_ns(61 * kS);
  report(100, {"a/b"});
  placed->turn();
  until([&] { return placed->figures().brought == 4; });
  // Another process, which has nothing yet.
  boot_ = "another", cursor_ = 0;
  report(100, {"a/b"});
  placed->turn();
  until([&] { return placed->figures().brought == 6; });
  report(150, {"a/b"}, ReplicaTier::kMemory);
  clock_.advance_ns(61 * kS);
  placed->turn();
  EXPECT_EQ(placed->figures().adapters, 1u);
  upstream_->stop();
  EXPECT_EQ(asked().size(), 6u) << "it is there";
}

TEST_F(PlacementTest, WithoutAskingAdaptersHaveHomesAllTheSame) {
  const auto placed = placement(nullptr, false);
  report(0, {"a"});
  report(50, {"a"});
  placed->turn();
  EXPECT_EQ(placed->figures().adapters, 1u);
  EXPECT_TRUE(placed->figures().leads) << "nobody else is there";
  upstream_->stop();
  EXPECT_TRUE(asked().empty());
}

TEST_F(PlacementTest, WhoDoesNotLeadTakesWhatWasDecided) {
  FakeLeader leader;
  leader.is = false;
  const auto placed = placement(&leader);
  const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f"};
  report(0, names, ReplicaTier::kMemory);
  std::vector<NamedHomes> homes;
  for (size_t i = 0; i < names.size(); ++i) homes.push_back({names[i], {name(i % 2)}});
  leader.next = fleet_homes_text(homes);
  placed->turn();
  EXPECT_FALSE(placed->figures().leads);
  EXPECT_EQ(placed->figures().adapters, 6u);
  EXPECT_EQ(leader.decided, "");
  // It leads now, and saw no demand: homes stay.
  leader.is = true;
  placed->turn();
  EXPECT_EQ(*parse_fleet_homes(leader.decided), homes);
  // And one that is told of them in the moment in which it leads.
  const auto other = placement(&leader);
  leader.next = std::exchange(leader.decided, "");
  other->turn();
  EXPECT_EQ(*parse_fleet_homes(leader.decided), homes);
  upstream_->stop();
  EXPECT_TRUE(asked().empty()) << "all is there";
}

TEST_F(PlacementTest, WhatAStrangerWroteChangesNothing) {
  FakeLeader leader;
  leader.is = false;
  const auto placed = placement(&leader);
  report(0, {"a"});
  leader.next = fleet_homes_text({{"a", {name(1)}}});
  placed->turn();
  for (const char* text : {"nonsense", R"({"format": 1, "homes": {"a": [7]}})", R"({"format": 9})"}) {
    leader.next = text;
    placed->turn();
    EXPECT_EQ(placed->figures().adapters, 1u) << text;
  }
  EXPECT_NE(log_.text().find("They stay as they are."), std::string::npos);
}

TEST_F(PlacementTest, WhoRefusesIsToldOfOnceAndAskedAgainLater) {
  status_ = 403;
  const auto placed = placement(nullptr);
  report(0, {"a", "b"});
  report(50, {"a", "b"});
  placed->turn();
  // Both replicas are asked for both.
  until([&] { return placed->figures().refused == 4; });
  const std::string log = log_.text(), told = "lets nobody without its admin key bring adapters";
  const size_t first = log.find(told), second = log.find(told, first + 1);
  ASSERT_NE(first, std::string::npos);
  ASSERT_NE(second, std::string::npos);
  EXPECT_EQ(log.find(told, second + 1), std::string::npos) << "once of each replica";
  placed->turn();
  status_ = 200;
  clock_.advance_ns(61 * kS);
  report(100, {"a", "b"});
  placed->turn();
  until([&] { return placed->figures().brought == 4; });
  EXPECT_EQ(asked().size(), 8u) << "nobody was asked again before";
}

// One that fails for a moment keeps its homes; one that is gone does not.
TEST_F(PlacementTest, AReplicaIsMissedForAWhileBeforeItsHomesMove) {
  FakeLeader leader;
  const auto placed = placement(&leader, false);
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i) names.push_back("a" + std::to_string(i));
  report(0, names);
  report(50, names);
  placed->turn();
  const std::string before = leader.decided;
  EXPECT_NE(before.find(name(1)), std::string::npos);
  fleet_->failed(1, "for a moment");
  placed->turn();
  EXPECT_EQ(leader.decided, before);
  clock_.advance_ns(31 * kS);
  report(100, names);
  placed->turn();
  fleet_->failed(1, "for long");
  clock_.advance_ns(29 * kS);
  placed->turn();
  EXPECT_EQ(leader.decided, before);
  clock_.advance_ns(31 * kS);
  placed->turn();
  EXPECT_EQ(leader.decided.find(name(1)), std::string::npos) << leader.decided;
}

TEST(PlacementOfRouters, TheFirstOneDecidesForBoth) {
  FakeEtcd etcd;
  FakeReplica replica([](HttpRequest, auto writer) { writer->respond(200, kJson, "{}"); });
  replica.report.adapters = {{.name = "x", .tier = ReplicaTier::kMemory}};
  etcd.put("/loralei/default/decided", fleet_homes_text({{"x", {address_text(replica.address())}}}));
  const std::string placed = "loralei_router_adapters_placed 1";
  RouterServerOptions options;
  options.members.etcd = etcd.options().endpoints;
  options.members.lease_s = 60;
  options.fleet.homes = true;
  options.placement.emplace();
  options.placement->homes.interval_s = 0.02;
  RouterWorld first({replica.address()}, options);
  until([&] { return first.metrics().find("loralei_router_leads 1") != std::string::npos; });
  auto second = std::make_unique<RouterWorld>(std::vector{replica.address()}, options);
  until([&] { return etcd.all().size() >= 2; });
  EXPECT_NE(second->metrics().find("loralei_router_leads 0"), std::string::npos);
  until([&] { return first.metrics().find(placed) != std::string::npos; });
  until([&] { return second->metrics().find(placed) != std::string::npos; });
  first.server->shutdown(0);
  until([&] { return second->metrics().find("loralei_router_leads 1") != std::string::npos; });
  EXPECT_NE(second->metrics().find(placed), std::string::npos);
}

}  // namespace
}  // namespace loralei

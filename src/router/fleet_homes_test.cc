// SPDX-License-Identifier: Apache-2.0
// A fleet whose adapters have homes.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/log_test_util.h"
#include "router/fleet.h"

namespace loralei {
namespace {

constexpr int64_t kS = 1'000'000'000;
constexpr auto kMemory = ReplicaTier::kMemory;

FleetOptions with_homes() {
  FleetOptions options;
  options.homes = true;
  options.profile.step.linear = {{1, 0.01}, {256, 0.02}};
  options.profile.model.adapter_bytes_per_rank = 1 << 20;
  options.profile.disk = TransferCost{.seconds = 0, .bytes_per_second = 1e9};
  return options;
}

std::string adapter_name(int number) { return "a" + std::to_string(number); }

// `uses`: of each adapter.
ReplicaReport report_of(int adapters, ReplicaTier tier, int64_t uses = 0) {
  ReplicaReport report;
  report.boot = "boot", report.cursor = 1, report.models = {"base"};
  report.sequences_max = 64, report.kv_tokens = 1 << 20, report.adapter_bytes = 1 << 30;
  for (int i = 0; i < adapters; ++i)
    report.adapters.push_back({.name = adapter_name(i), .tier = tier, .rank = 16, .bytes = 16 << 20, .uses = uses});
  return report;
}

class FleetHomesTest : public testing::Test {
 protected:
  // Addresses of hosts, in the order in which this router comes to know them.
  void begin(const std::vector<int>& hosts) {
    clock_.advance_ns(kS);
    fleet_ = std::make_unique<Fleet>(with_homes(), clock_, log_);
    for (const int host : hosts) fleet_->add(address(host));
  }
  static UpstreamAddress address(int host) { return {"10.0.0." + std::to_string(host), 80}; }
  static std::string name(int host) { return address_text(address(host)); }
  // The host that a request is sent to; it has ended then.
  std::string host_of(const std::string& model) {
    const RouteFacts facts = read_route_facts(R"({"model": ")" + model + "\"}");
    const auto placed = fleet_->place({.facts = &facts});
    EXPECT_TRUE(placed.ok());
    if (!placed.ok()) return "";
    fleet_->ended(*placed, std::nullopt);
    return address_text(placed->address);
  }
  ManualClock clock_;
  CollectingLog log_;
  std::unique_ptr<Fleet> fleet_;
};

TEST_F(FleetHomesTest, EveryRouterSendsAnAdapterHome) {
  begin({1, 2, 3});
  for (size_t i = 0; i < 3; ++i) fleet_->take(i, report_of(60, kMemory));
  std::vector<std::string> hosts;
  std::map<std::string, int> of_each;
  for (int i = 0; i < 60; ++i) {
    hosts.push_back(host_of(adapter_name(i)));
    ++of_each[hosts.back()];
    EXPECT_EQ(host_of(adapter_name(i)), hosts.back());
  }
  for (const int host : {1, 2, 3}) EXPECT_GE(of_each[name(host)], 8) << name(host);
  // Another one, that knows others and in another order.
  begin({3, 2, 1});
  for (size_t i = 0; i < 3; ++i) fleet_->take(i, report_of(60, kMemory));
  for (int i = 59; i >= 0; --i) EXPECT_EQ(host_of(adapter_name(i)), hosts[static_cast<size_t>(i)]);
  // One goes: only what was at home there goes elsewhere.
  fleet_->failed(0, "gone");
  for (int i = 0; i < 60; ++i) {
    const std::string& before = hosts[static_cast<size_t>(i)];
    const std::string now = host_of(adapter_name(i));
    EXPECT_NE(now, name(3));
    EXPECT_TRUE(before == name(3) || now == before);
  }
}

TEST_F(FleetHomesTest, AHomeIsWorthNoMoreThanItSaves) {
  begin({1, 2});
  for (size_t i = 0; i < 2; ++i) fleet_->take(i, report_of(1, kMemory));
  const std::string home = host_of("a0");
  const RouteFacts facts = read_route_facts(R"({"model": "base"})");
  std::vector<Placed> busy;
  while (busy.size() < 30) {
    auto placed = fleet_->place({.facts = &facts, .tried = {}});
    ASSERT_TRUE(placed.ok());
    if (address_text(placed->address) == home) {
      busy.push_back(*placed);
    } else {
      fleet_->ended(*placed, std::nullopt);
      const size_t other = placed->replica;
      placed = fleet_->place({.facts = &facts, .tried = std::span(&other, 1)});
      ASSERT_TRUE(placed.ok());
      busy.push_back(*placed);
    }
  }
  EXPECT_NE(host_of("a0"), home);
  for (const Placed& placed : busy) fleet_->ended(placed, std::nullopt);
  EXPECT_EQ(host_of("a0"), home);
}

TEST_F(FleetHomesTest, WhatWasGivenGoesBeforeTheLot) {
  begin({1, 2, 3});
  for (size_t i = 0; i < 3; ++i) fleet_->take(i, report_of(12, kMemory));
  for (int i = 0; i < 12; ++i) {
    fleet_->take_homes({{adapter_name(i), {name(2)}}, {"unknown", {name(1)}}, {"a0", {"10.9.9.9:80"}}});
    if (i > 0) EXPECT_EQ(host_of(adapter_name(i)), name(2));
  }
  fleet_->take_homes({{"a1", {name(1), name(3)}}});
  EXPECT_NE(host_of("a1"), name(2));
  fleet_->take_homes({});
  EXPECT_EQ(host_of("a1"), host_of("a1"));
}

// The place of a replica that left may be another's.
TEST_F(FleetHomesTest, WhoTakesThePlaceOfOneThatLeftIsNoHome) {
  begin({1, 2});
  for (size_t i = 0; i < 2; ++i) fleet_->take(i, report_of(20, kMemory));
  std::vector<NamedHomes> all;
  for (int i = 0; i < 20; ++i) all.push_back({adapter_name(i), {name(1)}});
  fleet_->take_homes(all);
  EXPECT_EQ(host_of("a3"), name(1));
  fleet_->leave(0);
  fleet_->add(address(9), 0);
  fleet_->take(0, report_of(20, kMemory));
  int there = 0;
  for (int i = 0; i < 20; ++i) there += host_of(adapter_name(i)) == name(9) ? 1 : 0;
  EXPECT_LT(there, 18) << "by lot about a half";
  EXPECT_GT(there, 2);
}

TEST_F(FleetHomesTest, DemandIsThatOfAllRouters) {
  begin({1, 2});
  fleet_->take(0, report_of(2, kMemory, 100));
  fleet_->take(1, report_of(2, ReplicaTier::kDisk));
  EXPECT_TRUE(fleet_->take_demand().empty()) << "before this router was there";
  ReplicaReport more = report_of(1, kMemory, 107);
  more.since = 1, more.cursor = 2;
  fleet_->take(0, more);
  const auto demand = fleet_->take_demand();
  ASSERT_EQ(demand.size(), 1u);
  EXPECT_EQ(demand[0].name, "a0");
  EXPECT_EQ(demand[0].requests, 7);
  EXPECT_EQ(demand[0].rank, 16);
  EXPECT_EQ(demand[0].bytes, 16 << 20);
  EXPECT_TRUE(fleet_->take_demand().empty());
}

// Of a server of another make a router knows what it sent itself.
TEST_F(FleetHomesTest, WhereNobodyCountsUsesThisRouterDoes) {
  begin({1});
  fleet_->take(0, ModelNames{.base = {"base"}, .adapters = {"x"}});
  host_of("x");
  host_of("x");
  host_of("base");
  const auto demand = fleet_->take_demand();
  ASSERT_EQ(demand.size(), 1u);
  EXPECT_EQ(demand[0].name, "x");
  EXPECT_EQ(demand[0].requests, 2);
}

TEST_F(FleetHomesTest, SaysWhereAdaptersAre) {
  begin({1, 2, 3});
  fleet_->take(0, report_of(1, kMemory));
  fleet_->take(1, report_of(1, ReplicaTier::kDisk));
  fleet_->take(2, report_of(0, kMemory));
  using P = AdapterPlace;
  EXPECT_EQ(fleet_->where("a0"), (std::vector<P>{P::kInMemory, P::kToBring, P::kNowhere}));
  EXPECT_EQ(fleet_->where("zz"), (std::vector<P>(3, P::kNowhere)));
  fleet_->failed(1, "gone");
  const auto replicas = fleet_->home_replicas();
  ASSERT_EQ(replicas.size(), 3u);
  EXPECT_TRUE(replicas[0].usable);
  EXPECT_FALSE(replicas[1].usable);
  EXPECT_EQ(replicas[0].adapter_bytes, 1 << 30);
  EXPECT_NE(replicas[0].number, replicas[1].number);
}

}  // namespace
}  // namespace loralei

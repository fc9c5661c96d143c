// SPDX-License-Identifier: Apache-2.0
#include "sim/etcd.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/leader.h"
#include "sim/members.h"

namespace loralei::sim {
namespace {

constexpr int64_t kS = 1'000'000'000;

class SimEtcdTest : public testing::Test {
 protected:
  void run_until(int64_t ns) {
    bool there = false;
    kernel.at(ns, EventOrder::kDecision, [&] { there = true; });
    while (!there) ASSERT_TRUE(kernel.step());
  }
  int64_t revision_of(const std::string& key) { return etcd.store().range({.key = key})->keys.at(0).mod_revision; }

  Kernel kernel;
  SimEtcd etcd{kernel};
};

TEST_F(SimEtcdTest, ALeaseEndsWhenNobodyKeepsItAlive) {
  SimEtcdClient client(etcd, {});
  client.grant(7, 10, [&](const Result<EtcdLease>& lease) {
    ASSERT_TRUE(lease.ok());
    client.put({"a", "1", 7}, [](const Status& done) { EXPECT_TRUE(done.ok()); });
  });
  run_until(9 * kS);
  client.keep_alive(7, [](const Result<EtcdLease>& alive) { EXPECT_EQ(alive->ttl_s, 10); });
  run_until(18 * kS);
  EXPECT_EQ(etcd.store().range({.key = "a"})->keys.size(), 1u);
  run_until(20 * kS);
  EXPECT_EQ(etcd.store().range({.key = "a"})->keys.size(), 0u);
  int64_t ttl_s = -1;
  client.keep_alive(7, [&](const Result<EtcdLease>& alive) { ttl_s = alive->ttl_s; });
  run_until(21 * kS);
  EXPECT_EQ(ttl_s, 0);
}

TEST_F(SimEtcdTest, WithoutALeaderNoLeaseEndsAndBehindItEachHasAllOfItsTime) {
  SimEtcdClient client(etcd, {});
  client.grant(7, 10, [](const Result<EtcdLease>&) {});
  run_until(9 * kS);
  etcd.away(true);
  run_until(60 * kS);
  etcd.away(false);
  run_until(69 * kS);
  EXPECT_EQ(etcd.store().leases(), 1u);
  etcd.lose_leader(kS);
  run_until(79 * kS);
  EXPECT_EQ(etcd.store().leases(), 1u);
  run_until(81 * kS);
  EXPECT_EQ(etcd.store().leases(), 0u);
  EXPECT_EQ(etcd.leaders(), 2u);
}

// Until its deadline, where twice is as good as once; a put is asked once.
TEST_F(SimEtcdTest, ACallWaitsForItsTimeAndMayHaveBeenDone) {
  SimEtcdClient client(etcd, {.attempt_ns = kS, .deadline_ns = 3 * kS});
  int64_t read_ns = 0, put_ns = 0;
  etcd.away(true);
  client.get("a", [&](const Result<EtcdKeyValue>& found) {
    EXPECT_EQ(found.error().code, ErrorCode::kUnavailable);
    read_ns = kernel.now_ns();
  });
  client.put({"a", "1"}, [&](const Status& done) {
    EXPECT_FALSE(done.ok());
    put_ns = kernel.now_ns();
  });
  run_until(10 * kS);
  EXPECT_EQ(put_ns, kS);
  EXPECT_GT(read_ns, 2 * kS);
  EXPECT_LE(read_ns, 3 * kS);
  etcd.away(false);
  etcd.latency(100'000'000);
  bool failed = false;
  client.put({"a", "2"}, [&](const Status& done) { failed = !done.ok(); });
  run_until(kernel.now_ns() + 150'000'000);
  client.cut(true);  // on the way back
  run_until(kernel.now_ns() + 3 * kS);
  EXPECT_TRUE(failed);
  EXPECT_EQ(etcd.store().range({.key = "a"})->keys.at(0).value, "2") << "it was done";
}

TEST_F(SimEtcdTest, AWatchGetsEachRevisionOnceAndInOrder) {
  SimEtcdClient client(etcd, {}), writer(etcd, {});
  std::vector<std::string> told;
  bool ended = false;
  auto stream = client.watch(
      "k/", 2,
      [&](const EtcdWatchMessage& message) {
        if (message.created) told.push_back("created");
        for (const EtcdEvent& event : message.events) told.push_back((event.removed ? "-" : "+") + event.kv.key);
      },
      [&](const Error&) { ended = true; });
  run_until(kS);
  writer.put({"k/1", "a"}, [](const Status&) {});
  writer.put({"other", "a"}, [](const Status&) {});
  run_until(2 * kS);
  EXPECT_EQ(told, (std::vector<std::string>{"created", "+k/1"}));
  client.cut(true);
  writer.put({"k/2", "a"}, [](const Status&) {});
  run_until(3 * kS);
  writer.put({"k/3", "a"}, [](const Status&) {});
  run_until(4 * kS);
  EXPECT_EQ(told.size(), 2u);
  client.cut(false);
  run_until(5 * kS);
  EXPECT_EQ(told, (std::vector<std::string>{"created", "+k/1", "+k/2", "+k/3"}));
  EXPECT_FALSE(ended);
  etcd.lose_leader(kS);
  run_until(6 * kS);
  EXPECT_TRUE(ended);
}

TEST_F(SimEtcdTest, AWatchBehindACompactionIsToldSo) {
  SimEtcdClient client(etcd, {});
  for (const char* value : {"1", "2", "3"}) {
    client.put({"k/1", value}, [](const Status&) {});
    run_until(kernel.now_ns() + kS);
  }
  const int64_t last = revision_of("k/1");
  etcd.compact();
  int64_t compacted = 0, told = 0;
  const auto note = [&](const EtcdWatchMessage& message) {
    compacted = std::max(compacted, message.compact_revision);
    told += static_cast<int64_t>(message.events.size());
  };
  const auto behind = client.watch("k/", last - 1, note, [](const Error&) {});
  run_until(kernel.now_ns() + kS);
  EXPECT_EQ(compacted, last);
  EXPECT_EQ(told, 0);
  const auto there = client.watch("k/", last, note, [](const Error&) {});
  run_until(kernel.now_ns() + kS);
  EXPECT_EQ(told, 1);
}

// Keepers and a watch, as routers have them.
class MembersTest : public SimEtcdTest {
 protected:
  std::unique_ptr<SimKeeper> keep(size_t place, const std::string& boot) {
    auto keeper = std::make_unique<SimKeeper>(etcd, SimMember{place, boot}, 10, [this] { return ++leases; });
    keeper->start();
    return keeper;
  }
  std::unique_ptr<SimMembers> watch() {
    auto watching = std::make_unique<SimMembers>(
        etcd, [this](const SimMember& member) { told += "+" + std::to_string(member.place) + member.boot + " "; },
        [this](const SimMember& member) { told += "-" + std::to_string(member.place) + member.boot + " "; });
    watching->watch().start();
    return watching;
  }
  int64_t leases = 0;
  std::string told;
};

TEST_F(MembersTest, WhoDiesLeavesWithItsLeaseAndComesBackAsAnother) {
  const auto first = keep(1, "a");
  auto second = keep(2, "a");
  const auto watching = watch();
  run_until(kS);
  EXPECT_EQ(told, "+1a +2a ");
  run_until(100 * kS);
  EXPECT_EQ(told, "+1a +2a ");
  EXPECT_TRUE(watching->watch().is_up());
  second.reset();
  run_until(106 * kS);
  EXPECT_EQ(told, "+1a +2a ") << "a lease of ten seconds, kept alive a third of it ago at most";
  run_until(111 * kS);
  EXPECT_EQ(told, "+1a +2a -2a ");
  second = keep(2, "b");
  run_until(112 * kS);
  EXPECT_EQ(told, "+1a +2a -2a +2b ");
  second = keep(2, "c");  // within its lease
  run_until(140 * kS);
  EXPECT_EQ(told, "+1a +2a -2a +2b -2b +2c ");
  EXPECT_EQ(watching->watch().lists(), 1u);
}

TEST_F(MembersTest, WhileEtcdIsAwayNobodyLeavesAndWhoDiedDoesBehindIt) {
  auto first = keep(1, "a");
  auto second = keep(2, "a");
  const auto watching = watch();
  run_until(20 * kS);
  etcd.away(true);
  run_until(21 * kS);
  second.reset();
  run_until(80 * kS);
  EXPECT_EQ(told, "+1a +2a ");
  EXPECT_FALSE(watching->watch().is_up());
  etcd.away(false);
  run_until(120 * kS);
  EXPECT_EQ(told, "+1a +2a -2a ");
  EXPECT_TRUE(watching->watch().is_up());
}

TEST_F(MembersTest, AReplicaThatIsCutOffLeavesAndTakesAnotherLease) {
  const auto first = keep(1, "a");
  const auto watching = watch();
  run_until(20 * kS);
  first->cut(true);
  run_until(40 * kS);
  EXPECT_EQ(told, "+1a -1a ");
  first->cut(false);
  run_until(50 * kS);
  EXPECT_EQ(told, "+1a -1a +1a ");
}

TEST_F(MembersTest, ARouterThatIsCutOffListsAnewBehindACompaction) {
  const auto first = keep(1, "a");
  auto second = keep(2, "a");
  const auto watching = watch();
  run_until(20 * kS);
  watching->watch().cut(true);
  second.reset();
  const auto third = keep(3, "a");
  run_until(60 * kS);
  etcd.compact();
  EXPECT_EQ(told, "+1a +2a ");
  watching->watch().cut(false);
  run_until(70 * kS);
  EXPECT_EQ(told, "+1a +2a +3a -2a ");
  EXPECT_EQ(watching->watch().lists(), 2u);
}

class LeadersTest : public MembersTest {
 protected:
  std::unique_ptr<SimLeader> stand(size_t router) {
    auto leader = std::make_unique<SimLeader>(etcd, router, 10, [this] { return ++leases; });
    leader->start();
    return leader;
  }
};

TEST_F(LeadersTest, OneLeadsAndTheNextGoesOnFromWhatItDecided) {
  const auto first = stand(0);
  run_until(kS);
  const auto second = stand(1);
  run_until(2 * kS);
  EXPECT_TRUE(first->leads());
  EXPECT_FALSE(second->leads());
  second->decide("not its word");
  first->decide("one");
  run_until(3 * kS);
  EXPECT_EQ(second->news(), "one");
  EXPECT_EQ(second->news(), std::nullopt) << "told once";
  first->cut(true);
  first->decide("from where nobody hears");
  int64_t until_ns = 3 * kS;
  while (first->leads()) {
    EXPECT_FALSE(second->leads()) << "one at a time";
    run_until(until_ns += kS / 10);
  }
  EXPECT_LT(until_ns, 14 * kS);
  run_until(20 * kS);
  EXPECT_TRUE(second->leads());
  second->decide("two");
  run_until(21 * kS);
  first->cut(false);
  run_until(40 * kS);
  EXPECT_FALSE(first->leads());
  EXPECT_TRUE(second->leads());
  EXPECT_EQ(first->news(), "two");
  EXPECT_EQ(etcd.store().range({.key = kDecidedKey})->keys.at(0).value, "two");
}

TEST(DecidedHomes, AreReadAsTheyWereWritten) {
  const DecidedHomes homes{7, {{AdapterSourceId{3}, {0, 2}}, {AdapterSourceId{4}, {}}, {AdapterSourceId{9}, {1}}}};
  const auto read = parse_decided(decided_text(homes));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->router, 7u);
  EXPECT_EQ(read->given, homes.given);
  for (const char* text : {"", "x", "1\n", "1\n2", "1\n2:x", "1\n2:3,4 ", "1 "})
    EXPECT_FALSE(parse_decided(text).ok()) << text;
}

}  // namespace
}  // namespace loralei::sim

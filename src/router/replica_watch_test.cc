// SPDX-License-Identifier: Apache-2.0
// Replicas that join and leave while a router runs.
#include "router/replica_watch.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "router/router_test_util.h"

namespace loralei {
namespace {

const Answering kGood = [](HttpRequest, std::shared_ptr<ResponseWriter> writer) { writer->respond(200, kJson, "{}"); };

struct WatchWorld {
  explicit WatchWorld(int64_t interval_ms = 10) {
    FleetOptions fleet_options;
    fleet_options.policy = RoutePolicy::kFirstFit;
    fleet_options.profile.step.linear = {{1, 0.01}};
    fleet_options.health.out_first_ns = 50'000'000;
    fleet = std::make_unique<Fleet>(fleet_options, clock, log);
    upstream = Upstream::start({}, log).value();
    WatchOptions options;
    options.interval_ms = interval_ms;
    options.timeout_ms = 10'000;
    watch = std::make_unique<ReplicaWatch>(options, *fleet, *upstream, clock);
  }
  ~WatchWorld() {
    watch->stop();
    upstream->stop();
  }
  std::vector<std::string> up() const {
    std::vector<std::string> names;
    for (const ReplicaState& state : fleet->states())
      if (state.health == HealthState::kUp || state.health == HealthState::kReturning) names.push_back(state.name);
    return names;
  }
  Result<Placed> place() {
    const RouteFacts facts = read_route_facts("{}");
    return fleet->place({.facts = &facts});
  }

  SteadyClock clock;
  CollectingLog log;
  std::unique_ptr<Fleet> fleet;
  std::unique_ptr<Upstream> upstream;
  std::unique_ptr<ReplicaWatch> watch;
};

TEST(ReplicaWatch, WhoJoinsIsLookedAtAndWhoLeavesIsNot) {
  FakeReplica a(kGood), b(kGood);
  WatchWorld world;
  world.watch->wait_for_first(60'000);
  EXPECT_EQ(world.place().error().code, ErrorCode::kUnavailable) << "nobody is there";
  world.watch->join(a.address());
  world.watch->join(a.address());  // said twice
  wait_until([&] { return world.up().size() == 1; });
  world.watch->join(b.address());
  wait_until([&] { return world.up().size() == 2; });
  world.watch->leave(a.address());
  EXPECT_EQ(world.up(), std::vector<std::string>{address_text(b.address())});
  EXPECT_EQ(world.place()->address, b.address());
  world.watch->leave(a.address());  // it is gone
  EXPECT_EQ(world.fleet->size(), 1u);
}

TEST(ReplicaWatch, LooksSoonAtWhoIsSuspected) {
  auto replica = std::make_unique<FakeReplica>(kGood);
  WatchWorld world(24 * 3'600'000);
  world.watch->join(replica->address());
  wait_until([&] { return world.up().size() == 1; });
  const int64_t looks = replica->stats().requests_total;
  world.watch->look_soon(0);
  wait_until([&] { return replica->stats().requests_total == looks + 1; });
  replica.reset();
  EXPECT_EQ(world.up().size(), 1u) << "nobody has looked";
  world.watch->look_soon(0);
  world.watch->look_soon(7);  // there is none
  wait_until([&] { return world.up().empty(); });
}

TEST(ReplicaWatch, OneThatLeftIsLookedAtAsLongAsItHasRequests) {
  FakeReplica a(kGood), b(kGood);
  WatchWorld world;
  world.watch->join(a.address());
  wait_until([&] { return world.up().size() == 1; });
  const Placed running = *world.place();
  world.watch->leave(a.address());
  EXPECT_FALSE(world.fleet->vacant(running.replica));
  // Its place is not another's meanwhile.
  world.watch->join(b.address());
  wait_until([&] { return world.up().size() == 1; });
  EXPECT_NE(world.place()->replica, running.replica);
  const int64_t looks = a.stats().requests_total;
  wait_until([&] { return a.stats().requests_total > looks + 1; });
  world.fleet->ended(running, std::nullopt);
  EXPECT_TRUE(world.fleet->vacant(running.replica));
}

TEST(ReplicaWatch, AnotherProcessAtTheSameAddressBeginsAnew) {
  WatchWorld world;
  auto first = std::make_unique<FakeReplica>(kGood);
  const UpstreamAddress address = first->address();
  first->report.adapters = {{.name = "old"}};
  world.watch->join(address);
  wait_until([&] { return world.fleet->knows("old"); });
  first.reset();
  wait_until([&] { return world.up().empty(); });
  FakeReplica second(kGood, address.port);
  world.watch->leave(address);
  world.watch->join(address);
  wait_until([&] { return world.up().size() == 1; });
  EXPECT_FALSE(world.fleet->knows("old"));
  EXPECT_EQ(world.fleet->size(), 1u);
}

TEST(ReplicaWatch, WhoIsNamedStays) {
  FakeReplica a(kGood);
  SteadyClock clock;
  CollectingLog log;
  Fleet fleet({}, clock, log);
  fleet.add(a.address());
  const auto upstream = Upstream::start({}, log).value();
  ReplicaWatch watch({}, fleet, *upstream, clock);
  watch.join(a.address());
  watch.leave(a.address());
  EXPECT_EQ(fleet.size(), 1u);
  watch.stop();
  upstream->stop();
}

// Places are used again, so that a fleet whose replicas come and go does not grow.
TEST(ReplicaWatch, RandomComingAndGoingIsAsASetWouldHaveIt) {
  const uint64_t seed = 51;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  std::vector<std::unique_ptr<FakeReplica>> replicas;
  for (int i = 0; i < 4; ++i) replicas.push_back(std::make_unique<FakeReplica>(kGood));
  WatchWorld world;
  std::vector<bool> there(4);
  std::vector<Placed> running;
  for (int i = 0; i < 300; ++i) {
    const size_t one = prng.below(4);
    switch (prng.below(4)) {
      case 0:
        world.watch->join(replicas[one]->address());
        there[one] = true;
        break;
      case 1:
        world.watch->leave(replicas[one]->address());
        there[one] = false;
        break;
      case 2:
        if (const auto place = world.place(); place.ok()) {
          const auto is_it = [&](const auto& replica) { return replica->address() == place->address; };
          const auto found = std::find_if(replicas.begin(), replicas.end(), is_it);
          EXPECT_TRUE(there[static_cast<size_t>(found - replicas.begin())]);
          running.push_back(*place);
        }
        break;
      default:
        if (running.empty()) break;
        world.fleet->ended(running.back(), std::nullopt);
        running.pop_back();
    }
    ASSERT_EQ(world.fleet->size(), static_cast<size_t>(std::count(there.begin(), there.end(), true)));
  }
  for (const Placed& one : running) world.fleet->ended(one, std::nullopt);
  wait_until([&] { return world.up().size() == world.fleet->size(); });
  const std::vector<ReplicaState> states = world.fleet->states();
  EXPECT_EQ(states.size(), world.fleet->size());
  for (const ReplicaState& state : states) EXPECT_EQ(state.sent, 0);
}

}  // namespace
}  // namespace loralei

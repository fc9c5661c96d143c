// SPDX-License-Identifier: Apache-2.0
#include "router/fleet.h"

#include <gtest/gtest.h>

#include <set>

#include "base/log_test_util.h"
#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kS = 1'000'000'000;

Profile some_profile() {
  Profile profile;
  profile.step.linear = {{1, 0.01}, {256, 0.02}};
  profile.step.seconds[static_cast<size_t>(CostTerm::kLoraRowRank)] = 1e-4;
  profile.model.adapter_bytes_per_rank = 1 << 20;
  profile.disk = TransferCost{.seconds = 0, .bytes_per_second = 1e9};
  profile.link = TransferCost{.seconds = 0, .bytes_per_second = 1e10};
  return profile;
}

ReplicaReport report_of(std::vector<ReplicaAdapter> adapters) {
  ReplicaReport report;
  report.boot = "boot", report.cursor = 1, report.models = {"base"};
  report.sequences_max = 8, report.kv_tokens = 1 << 20;
  report.adapters = std::move(adapters);
  return report;
}

struct World {
  explicit World(size_t replicas, FleetOptions options = {}) : fleet(with_profile(std::move(options)), clock, log) {
    clock.advance_ns(kS);
    for (size_t i = 0; i < replicas; ++i) fleet.add({"10.0.0." + std::to_string(i + 1), 8080});
  }
  static FleetOptions with_profile(FleetOptions options) {
    options.profile = some_profile();
    return options;
  }
  Result<Placed> place(const std::string& body, std::vector<size_t> tried = {}, RouteObjectives objectives = {}) {
    facts = read_route_facts(body);
    EXPECT_TRUE(facts.readable) << body;
    return fleet.place({.facts = &facts, .objectives = objectives, .tried = tried});
  }
  size_t replica_of(const std::string& body) {
    const auto place = this->place(body);
    EXPECT_TRUE(place.ok());
    return place.ok() ? place->replica : SIZE_MAX;
  }

  ManualClock clock;
  CollectingLog log;
  Fleet fleet;
  RouteFacts facts;
};

TEST(Fleet, AsksNobodyOfWhomNothingWasHeard) {
  World world(2);
  EXPECT_EQ(world.place("{}").error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(world.fleet.any_usable());
  world.fleet.take(1, report_of({}));
  EXPECT_EQ(world.replica_of("{}"), 1u);
  ReplicaReport busy = report_of({});
  busy.ready = false;
  world.fleet.take(1, busy);
  EXPECT_FALSE(world.place("{}").ok());
}

TEST(Fleet, SendsARequestWhereItMayGo) {
  World world(3);
  for (size_t i = 0; i < 3; ++i) world.fleet.take(i, report_of({}));
  world.facts = read_route_facts("{}");
  RouteQuery query{.facts = &world.facts};
  query.may = [](const UpstreamAddress& address) { return address.host == "10.0.0.3"; };
  EXPECT_EQ(world.fleet.place(query)->replica, 2u);
  EXPECT_EQ(world.fleet.place(query)->replica, 2u);
  query.may = [](const UpstreamAddress&) { return false; };
  EXPECT_EQ(world.fleet.place(query).error().code, ErrorCode::kUnavailable);
}

TEST(Fleet, NamesOthersAndCountsWhereItWent) {
  World world(4);
  for (size_t i = 0; i < 3; ++i) world.fleet.take(i, report_of({}));
  world.facts = read_route_facts("{}");
  RouteQuery query{.facts = &world.facts};
  EXPECT_TRUE(world.fleet.place(query)->others.empty());
  query.others = 1;
  EXPECT_EQ(world.fleet.place(query)->others.size(), 1u);
  query.others = 8;
  const Placed place = *world.fleet.place(query);
  ASSERT_EQ(place.others.size(), 2u) << "nothing is heard of the fourth";
  std::set<std::string> hosts = {place.address.host, place.others[0].host, place.others[1].host};
  EXPECT_EQ(hosts, (std::set<std::string>{"10.0.0.1", "10.0.0.2", "10.0.0.3"}));
  const auto sent = [&](size_t replica) { return world.fleet.states()[replica].sent; };
  const int32_t before = sent(place.replica);
  EXPECT_FALSE(world.fleet.moved(place, place.address));
  EXPECT_FALSE(world.fleet.moved(place, {"10.0.0.9", 8080}));
  const auto moved = world.fleet.moved(place, place.others[1]);
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->address, place.others[1]);
  EXPECT_EQ(sent(place.replica), before - 1);
  const int32_t there = sent(moved->replica);
  world.fleet.answers(*moved);
  world.fleet.ended(*moved, AnswerCounts{.prompt_tokens = 1, .output_tokens = 1});
  EXPECT_EQ(sent(moved->replica), there - 1);
}

TEST(Fleet, SendsNothingToOneThatLeft) {
  World world(2);
  for (size_t i = 0; i < 2; ++i) world.fleet.take(i, report_of({{.name = "sql", .tier = ReplicaTier::kDevice}}));
  world.fleet.leave(0);
  EXPECT_EQ(world.fleet.size(), 1u);
  EXPECT_TRUE(world.fleet.vacant(0));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(world.replica_of("{}"), 1u);
    EXPECT_EQ(world.replica_of(R"({"model": "sql"})"), 1u);
  }
  world.fleet.take(0, report_of({}));  // of a look that was under way
  world.fleet.failed(0, "late");
  world.fleet.not_ready(0, "late");
  EXPECT_FALSE(world.place("{}", {1}).ok());
  EXPECT_EQ(world.fleet.states().size(), 1u);
  world.fleet.leave(1);
  EXPECT_FALSE(world.fleet.any_usable());
  EXPECT_TRUE(world.fleet.base_names().empty());
  EXPECT_TRUE(world.fleet.adapter_names().empty());
}

TEST(Fleet, AnothersPlaceIsFreeWhenNothingRunsThere) {
  World world(1);
  world.fleet.take(0, report_of({}));
  const auto running = world.place(R"({"model": "base"})");
  ASSERT_TRUE(running.ok());
  EXPECT_EQ(running->address, (UpstreamAddress{"10.0.0.1", 8080}));
  world.fleet.leave(0);
  EXPECT_FALSE(world.fleet.vacant(0));
  ASSERT_EQ(world.fleet.states().size(), 1u);
  EXPECT_EQ(world.fleet.states()[0].health, HealthState::kLeft);
  EXPECT_EQ(world.fleet.states()[0].sent, 1);
  world.fleet.answers(*running);
  world.fleet.ended(*running, std::nullopt);
  ASSERT_TRUE(world.fleet.vacant(0));
  EXPECT_EQ(world.fleet.add({"10.0.0.9", 8080}, 0), 0u);
  EXPECT_EQ(world.fleet.states()[0].health, HealthState::kUnknown) << "nothing was heard of it";
  EXPECT_EQ(world.fleet.states()[0].picks, 0u);
  EXPECT_EQ(world.fleet.report_query(0), "") << "all is asked for";
  world.fleet.take(0, report_of({{.name = "new", .tier = ReplicaTier::kDisk}}));
  EXPECT_EQ(world.place(R"({"model": "new"})")->address.host, "10.0.0.9");
}

// A fleet whose replicas left is of no base model any more.
TEST(Fleet, TheBaseIsThatOfThoseWhoAreThere) {
  World world(2);
  ReplicaReport one = report_of({}), two = report_of({});
  one.base = "aaaa", two.base = "bbbb";
  world.fleet.take(0, one);
  world.fleet.leave(0);
  world.fleet.take(1, two);
  EXPECT_EQ(world.replica_of("{}"), 1u);
}

TEST(Fleet, SendsWhereTheAdapterIs) {
  World world(3);
  for (size_t i = 0; i < 3; ++i) world.fleet.take(i, report_of({}));
  world.fleet.take(2, report_of({{.name = "sql", .tier = ReplicaTier::kDevice, .rank = 8}}));
  const auto place = world.place(R"({"model": "sql"})");
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->replica, 2u);
  EXPECT_TRUE(place->known);
  EXPECT_EQ(world.replica_of(R"({"lora_path": "sql"})"), 2u);
  EXPECT_EQ(world.replica_of(R"({"adapters": [{"name": "sql"}]})"), 2u);
}

TEST(Fleet, PrefersWhoNeedNotLoadIt) {
  World world(2);
  world.fleet.take(0, report_of({{.name = "sql", .tier = ReplicaTier::kDisk, .rank = 64}}));
  world.fleet.take(1, report_of({{.name = "sql", .tier = ReplicaTier::kMemory, .rank = 64}}));
  EXPECT_EQ(world.replica_of(R"({"model": "sql"})"), 1u);
}

TEST(Fleet, SendsAnUnknownNameToAnybodyWhoMayKnowIt) {
  World world(2);
  world.fleet.take(0, report_of({}));
  world.fleet.take(1, report_of({}));
  const auto first = world.place(R"({"model": "new"})");
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(first->known);
  const auto second = world.place(R"({"model": "new"})", {first->replica});
  ASSERT_TRUE(second.ok());
  EXPECT_NE(second->replica, first->replica);
  EXPECT_FALSE(world.place(R"({"model": "new"})", {0, 1}).ok());
}

// The same name means another adapter there, or the same one on other weights.
TEST(Fleet, SendsNothingToAReplicaOfAnotherBase) {
  World world(3);
  ReplicaReport ours = report_of({{.name = "sql", .tier = ReplicaTier::kDisk}}),
                other = report_of({{.name = "sql", .tier = ReplicaTier::kDevice}});
  ours.base = "aaaa", other.base = "bbbb";
  world.fleet.take(0, ours);
  world.fleet.take(1, other);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(world.replica_of(R"({"model": "sql"})"), 0u);
    EXPECT_EQ(world.replica_of("{}"), 0u);
  }
  EXPECT_EQ(world.fleet.states()[1].health, HealthState::kNotReady);
  EXPECT_NE(world.fleet.states()[1].why.find("another base model (bbbb)"), std::string::npos);
  EXPECT_FALSE(world.place("{}", {0}).ok());
  // A fleet that is started again one by one goes over when none of the old is up.
  world.fleet.take(2, other);
  EXPECT_FALSE(world.place("{}", {0}).ok());
  world.fleet.failed(0, "it is started again");
  world.fleet.take(2, other);
  EXPECT_EQ(world.replica_of("{}"), 2u);
  world.clock.advance_ns(5 * kS);
  world.fleet.take(0, ours);
  EXPECT_EQ(world.fleet.states()[0].health, HealthState::kNotReady);
}

TEST(Fleet, SpreadsRequestsAndTakesThemBack) {
  World world(4);
  for (size_t i = 0; i < 4; ++i) world.fleet.take(i, report_of({}));
  std::vector<Placed> places;
  for (int i = 0; i < 8; ++i) {
    auto place = world.place(R"({"model": "base", "prompt": "a b c d"})");
    ASSERT_TRUE(place.ok());
    places.push_back(*place);
  }
  for (const ReplicaState& state : world.fleet.states()) EXPECT_EQ(state.sent, 2) << state.name;
  for (const Placed& place : places) world.fleet.ended(place, AnswerCounts{4, 10});
  for (const ReplicaState& state : world.fleet.states()) EXPECT_EQ(state.sent, 0);
}

TEST(Fleet, LeavesWhoFailedOutAndTakesItBackSlowly) {
  World world(2);
  world.fleet.take(0, report_of({}));
  world.fleet.take(1, report_of({}));
  world.fleet.failed(0, "it is gone");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(world.replica_of("{}"), 1u);
  EXPECT_EQ(world.fleet.states()[0].why, "it is gone");
  world.clock.advance_ns(2 * kS);
  world.fleet.take(0, report_of({}));
  // It has room for one request now; the other one for eight, of which five are there.
  std::multiset<size_t> replicas;
  for (int i = 0; i < 4; ++i) replicas.insert(world.replica_of("{}"));
  EXPECT_EQ(replicas.count(0), 1u);
}

TEST(Fleet, RefusesWhatNobodyCanServeInTimeOnlyWhenItSheds) {
  const RouteObjectives hopeless{.first_token_s = 1e-6};
  World patient(1);
  patient.fleet.take(0, report_of({}));
  const auto missed = patient.place("{}", {}, hopeless);
  ASSERT_TRUE(missed.ok());
  EXPECT_FALSE(missed->meets_objectives);
  EXPECT_EQ(patient.fleet.missed(), 1u);

  FleetOptions options;
  options.shed = true;
  World strict(1, options);
  strict.fleet.take(0, report_of({}));
  EXPECT_TRUE(strict.place("{}").ok());
  const auto refused = strict.place("{}", {}, hopeless);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
  EXPECT_EQ(strict.fleet.shed(), 1u);
}

TEST(Fleet, CountsAnAnswerAsBegunWhenItIsExpectedWhereItComesAsAWhole) {
  World world(1);
  world.fleet.take(0, report_of({}));
  ASSERT_TRUE(world.place(R"({"prompt": "a"})").ok());
  EXPECT_EQ(world.fleet.states()[0].waiting, 1);
  world.clock.advance_ns(10 * kS);
  ASSERT_TRUE(world.place(R"({"prompt": "a", "stream": true})").ok());
  EXPECT_EQ(world.fleet.states()[0].waiting, 1);  // the second one
}

TEST(Fleet, UsesTheCostsThatAReplicaTells) {
  World world(2);
  ReplicaReport slow = report_of({});
  Profile profile = *device_profile("a10-llama2-7b");
  profile.step.linear = {{1, 1.0}};
  slow.cost = profile_text(profile);
  world.fleet.take(0, slow);
  world.fleet.take(1, report_of({}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(world.replica_of("{}"), 1u);
  EXPECT_TRUE(world.fleet.states()[0].own_cost) << world.log.text();
  slow.cost = R"({"format": "nonsense"})";
  slow.since = 0;
  world.fleet.take(0, slow);
  EXPECT_FALSE(world.fleet.states()[0].own_cost);
}

TEST(Fleet, AsksForAllWhenPagesDoNotFit) {
  World world(1);
  EXPECT_EQ(world.fleet.report_query(0), "");
  world.fleet.take(0, report_of({{.name = "a"}}));
  EXPECT_EQ(world.fleet.report_query(0), "?boot=boot&since=1");
  ReplicaReport next = report_of({{.name = "b"}});
  next.since = 1, next.cursor = 2;
  next.gone = {"a"};
  world.fleet.take(0, next);
  EXPECT_EQ(world.fleet.adapter_names(), std::vector<std::string>{"b"});
  next.since = 9, next.cursor = 10;  // of another question
  next.adapters = {{.name = "c"}};
  world.fleet.take(0, next);
  EXPECT_EQ(world.fleet.report_query(0), "");
  EXPECT_EQ(world.fleet.adapter_names(), std::vector<std::string>{"b"});
}

// Against a map, by random reports; requests come and go meanwhile.
TEST(Fleet, KnowsWhatReportsAddUpTo) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    constexpr size_t kReplicas = 3;
    World world(kReplicas);
    std::map<std::string, uint8_t> have[kReplicas];
    uint64_t cursors[kReplicas] = {};
    std::vector<Placed> running;
    for (int step = 0; step < 600; ++step) {
      const size_t at = random.below(kReplicas);
      ReplicaReport report = report_of({});
      const bool all = random.below(20) == 0 || cursors[at] == 0;
      report.since = all ? 0 : cursors[at];
      report.cursor = cursors[at] = cursors[at] + 1;
      if (all) have[at].clear();
      std::set<std::string> told;
      for (uint64_t left = random.below(5); left > 0; --left) {
        const std::string name = "a" + std::to_string(random.below(12));
        if (!told.insert(name).second) continue;
        if (!all && random.below(2) == 0) {
          report.gone.push_back(name);
          have[at].erase(name);
        } else {
          const auto tier = static_cast<ReplicaTier>(random.below(3));
          report.adapters.push_back({.name = name, .tier = tier});
          have[at][name] = static_cast<uint8_t>(tier);
        }
      }
      world.fleet.take(at, report);
      if (random.below(2) == 0) {
        const std::string name = "a" + std::to_string(random.below(12));
        const auto place = world.place(R"({"model": ")" + name + "\"}");
        if (place.ok()) {
          running.push_back(*place);
          bool anybody = false;
          for (const auto& adapters : have) anybody |= adapters.count(name) != 0;
          if (anybody) EXPECT_TRUE(have[place->replica].count(name)) << name;
          EXPECT_EQ(place->known, anybody) << name;
        }
      }
      if (!running.empty() && random.below(3) == 0) {
        const size_t one = random.below(running.size());
        world.fleet.ended(running[one], std::nullopt);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(one));
      }
      std::set<std::string> names;
      for (size_t i = 0; i < kReplicas; ++i) {
        for (const auto& [name, tier] : have[i]) names.insert(name);
        const ReplicaState state = world.fleet.states()[i];
        EXPECT_EQ(state.adapters, have[i].size());
      }
      EXPECT_EQ(world.fleet.adapter_names(), std::vector<std::string>(names.begin(), names.end()));
    }
  }
}

std::string long_chat(const std::string& model, const std::string& question) {
  return R"({"model": ")" + model + R"(", "stream": true, "messages": [{"role": "system", "content": ")" +
         std::string(4000, 's') + R"("}, {"role": "user", "content": ")" + question + "\"}]}";
}

TEST(Fleet, SendsATextWhereItsBeginningWasSent) {
  for (const RoutePolicy policy : {RoutePolicy::kRankAware, RoutePolicy::kPrefixAffinity}) {
    FleetOptions options;
    options.policy = policy;
    World world(4, options);
    for (size_t i = 0; i < 4; ++i) world.fleet.take(i, report_of({}));
    const auto first = world.place(long_chat("base", "one"));
    ASSERT_TRUE(first.ok());
    world.fleet.ended(*first, std::nullopt);
    for (int i = 0; i < 3; ++i) {
      const auto next = world.place(long_chat("base", "another " + std::to_string(i)));
      ASSERT_TRUE(next.ok());
      EXPECT_EQ(next->replica, first->replica);
      world.fleet.ended(*next, std::nullopt);
    }
    // Not when others would pay more for that than it saves.
    if (policy == RoutePolicy::kRankAware) {
      for (int i = 0; i < 12; ++i) (void)world.place(long_chat("base", "more"));
      std::set<size_t> used;
      for (const ReplicaState& state : world.fleet.states())
        if (state.sent > 0) used.insert(static_cast<size_t>(state.sent));
      EXPECT_GT(std::count_if(used.begin(), used.end(), [](size_t sent) { return sent < 12; }), 0);
    }
  }
}

TEST(Fleet, KnowsNothingOfTextsInAnotherProcess) {
  FleetOptions options;
  options.policy = RoutePolicy::kPrefixAffinity;
  World world(2, options);
  for (size_t i = 0; i < 2; ++i) world.fleet.take(i, report_of({}));
  const auto first = world.place(long_chat("base", "one"));
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(world.place(long_chat("base", "two"))->replica, first->replica);
  ReplicaReport again = report_of({});
  again.boot = "another";
  world.fleet.take(first->replica, again);
  EXPECT_NE(world.place(long_chat("base", "three"))->replica, first->replica) << "the other one is idle";
}

// 10,000 adapters on each of 60 replicas.
TEST(Fleet, TakesLittleMemoryForManyAdapters) {
  World world(60);
  constexpr size_t kAdapters = 10'000;
  for (size_t replica = 0; replica < 60; ++replica) {
    for (size_t begin = 0; begin < kAdapters; begin += kReportAdaptersMost) {
      ReplicaReport report = report_of({});
      report.since = begin, report.cursor = begin + kReportAdaptersMost;
      for (size_t i = begin; i < std::min(kAdapters, begin + kReportAdaptersMost); ++i)
        report.adapters.push_back({.name = "tenants/customer-" + std::to_string(i) + "/adapter", .rank = 16});
      world.fleet.take(replica, report);
    }
  }
  EXPECT_EQ(world.fleet.states()[59].adapters, kAdapters);
  EXPECT_EQ(world.fleet.adapter_names().size(), kAdapters);
  EXPECT_LT(world.fleet.memory_bytes(), 16 << 20);
}

TEST(Fleet, KnowsTheModelsOfServersOfAnotherMake) {
  World world(2);
  world.fleet.take(0, ModelNames{{"base"}, {"sql", "old"}});
  world.fleet.take(1, ModelNames{{"base"}, {}});
  EXPECT_EQ(world.replica_of(R"({"model": "sql"})"), 0u);
  world.fleet.take(0, ModelNames{{"base"}, {"sql"}});
  EXPECT_EQ(world.fleet.adapter_names(), std::vector<std::string>{"sql"});
  EXPECT_FALSE(world.fleet.states()[0].reports);
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "sim/router.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/prng.h"
#include "sim/simulate.h"

namespace loralei::sim {
namespace {

// Kernels that pad to the largest rank of a step.
Profile padded_profile() {
  Profile profile;
  profile.name = "padded";
  profile.model = {.name = "made", .max_tokens = 2048, .kv_bytes_per_token = 1000, .adapter_bytes_per_rank = 1'000'000};
  profile.memory = {.kv_bytes = 64'000'000, .adapter_bytes = 4'000'000'000};
  profile.step.linear = {{1, 0.010}, {101, 0.030}};
  profile.step.seconds[static_cast<size_t>(CostTerm::kRankMaxRow)] = 20e-6;
  profile.disk = TransferCost{.seconds = 0.005, .bytes_per_second = 1e9, .at_once = 2};
  return profile;
}

// Nine of ten adapters are small.
Workload mixed_workload(uint64_t seed, int count, double per_s) {
  Prng random(seed);
  Workload workload;
  double at_s = 0;
  for (int i = 0; i < count; ++i) {
    at_s += -std::log(1 - random.uniform()) / per_s;
    const uint64_t adapter = random.below(50);
    workload.push_back({.at_ns = static_cast<int64_t>(at_s * 1e9),
                        .adapter = "a" + std::to_string(adapter),
                        .rank = adapter % 10 == 0 ? 128 : 8,
                        .prompt_tokens = static_cast<int32_t>(1 + random.below(100)),
                        .output_tokens = static_cast<int32_t>(1 + random.below(100))});
  }
  return workload;
}

Result<SimulatedRun> run(RoutePolicy policy, const Workload& workload, RouteObjectives objectives = {}) {
  SimulationOptions options{.replicas = 6, .check = false};
  options.router = {.policy = policy, .objectives = objectives};
  options.replica.adapters_in_memory = true;
  options.replica.engine.max_sequences = 32;
  return simulate(workload, padded_profile(), options);
}

double mean_token_s(const Workload& workload, const SimulatedRun& run) {
  return summarise(workload, run.requests, run.gaps, {}).classes.front().mean_token_s;
}

// What a fleet is for: where a rank slows others, whoever knows ranks serves all of them
// faster.
TEST(Router, WhoKnowsRanksServesAllFaster) {
  const Workload workload = mixed_workload(3, 1500, 60);
  const auto aware = run(RoutePolicy::kRankAware, workload);
  ASSERT_TRUE(aware.ok()) << aware.error().message;
  for (const RoutePolicy policy :
       {RoutePolicy::kMostIdle, RoutePolicy::kRandom, RoutePolicy::kFirstFit, RoutePolicy::kRoundRobin}) {
    const auto other = run(policy, workload);
    ASSERT_TRUE(other.ok()) << other.error().message;
    EXPECT_LT(mean_token_s(workload, *aware), 0.9 * mean_token_s(workload, *other))
        << kRoutePolicyNames[static_cast<size_t>(policy)];
  }
}

TEST(Router, WhatNobodyCanKeepIsCounted) {
  const Workload workload = mixed_workload(4, 100, 20);
  const auto loose = run(RoutePolicy::kRankAware, workload, {.token_s = 10});
  const auto tight = run(RoutePolicy::kRankAware, workload, {.token_s = 0.001});
  ASSERT_TRUE(loose.ok() && tight.ok());
  EXPECT_EQ(loose->routed_beyond, 0u);
  EXPECT_EQ(tight->routed_beyond, workload.size());
}

// Four hundred adapters, of which a replica has room for about sixty, and other ones
// popular in each third.
TEST(Router, WithHomesFewerAdaptersAreLoadedAndAllWaitLess) {
  Profile profile = padded_profile();
  profile.memory.adapter_bytes = profile.memory.host_adapter_bytes = 60 * 32 * profile.model.adapter_bytes_per_rank;
  Prng random(5);
  Workload workload;
  for (int i = 0; i < 6000; ++i) {
    const double place = 400 * std::pow(random.uniform(), 3);  // the first ones by far the most
    const uint64_t adapter = (static_cast<uint64_t>(place) + static_cast<uint64_t>(i / 2000) * 130) % 400;
    workload.push_back({.at_ns = i * int64_t{15'000'000},
                        .adapter = "a" + std::to_string(adapter),
                        .rank = adapter % 4 == 0 ? 64 : 16,
                        .prompt_tokens = 20,
                        .output_tokens = 20});
  }
  SimulationOptions options{.replicas = 8, .check = false};
  options.replica.engine.max_sequences = 32;
  const auto without = simulate(workload, profile, options);
  options.router.placement.emplace();
  const auto with = simulate(workload, profile, options), again = simulate(workload, profile, options);
  ASSERT_TRUE(without.ok() && with.ok() && again.ok());
  EXPECT_EQ(without->placed, 0u);
  EXPECT_GT(with->placed, 0u);
  EXPECT_EQ(with->placed, again->placed);
  EXPECT_EQ(with->end_ns, again->end_ns);
  const auto loads = [](const SimulatedRun& run) {
    uint64_t all = 0;
    for (const EngineStats& replica : run.replicas) all += replica.adapter_loads;
    return all;
  };
  const auto waited = [&](const SimulatedRun& run) {
    double seconds = 0;
    for (size_t i = 0; i < workload.size(); ++i)
      seconds += static_cast<double>(run.requests[i].first_ns - workload[i].at_ns) * 1e-9;
    return seconds;
  };
  EXPECT_LT(loads(*with), loads(*without));
  EXPECT_LT(waited(*with), waited(*without));
}

EngineOutput news_of(uint64_t source, AdapterTier tier) {
  auto status = std::make_shared<AdapterStatus>();
  status->tier = tier;
  EngineOutput output;
  output.adapters.push_back({AdapterSourceId{source}, std::move(status)});
  return output;
}

TEST(Router, GoesWhereTheAdapterIs) {
  Profile profile = padded_profile();
  profile.disk->bytes_per_second = 1e7;  // it takes six seconds
  Router router({}, profile);
  for (int i = 0; i < 3; ++i) router.add_replica(8, 10'000);
  const RoutedRequest request{.adapter = AdapterSourceId{7}, .rank = 64, .prompt_tokens = 10};
  router.take(2, news_of(7, AdapterTier::kResident));
  EXPECT_EQ(router.route(RequestId{1}, request), 2u);
  router.take(2, news_of(7, AdapterTier::kSource));
  EXPECT_EQ(router.route(RequestId{2}, request), 2u) << "it is on its way there for the one before";
  EngineOutput ends;
  for (const uint64_t id : {1u, 2u}) {
    TokenEvent event;
    event.id = RequestId{id};
    event.has_token = true;
    event.end = EndReason::kStop;
    ends.tokens.push_back(event);
  }
  router.take(2, ends);
  EXPECT_EQ(router.route(RequestId{3}, request), 0u) << "all are alike now";
}

}  // namespace
}  // namespace loralei::sim

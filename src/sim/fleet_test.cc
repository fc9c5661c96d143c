// SPDX-License-Identifier: Apache-2.0
#include "sim/fleet.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "base/prng.h"
#include "sim/simulate.h"

namespace loralei::sim {
namespace {

// A millisecond a row, ten for a step.
Profile some_profile() {
  Profile profile;
  profile.name = "made";
  profile.model = {.name = "made", .max_tokens = 2048, .kv_bytes_per_token = 1000, .adapter_bytes_per_rank = 1'000'000};
  profile.memory = {.kv_bytes = 16'000'000, .adapter_bytes = 200'000'000, .host_adapter_bytes = 400'000'000};
  profile.step.linear = {{1, 0.011}, {101, 0.111}};
  profile.disk = TransferCost{.seconds = 0.005, .bytes_per_second = 1e9, .at_once = 2};
  return profile;
}

Workload some_workload(Prng& random, int count, int adapters, double per_s) {
  Workload workload;
  double at_s = 0;
  for (int i = 0; i < count; ++i) {
    at_s += -std::log(1 - random.uniform()) / per_s;
    WorkloadRequest request;
    request.at_ns = static_cast<int64_t>(at_s * 1e9);
    const auto adapter = random.below(static_cast<uint64_t>(adapters) + 1);
    if (adapter > 0) {
      request.adapter = "a" + std::to_string(adapter);
      request.rank = 8 << (adapter % 4);
    }
    request.prompt_tokens = static_cast<int32_t>(1 + random.below(300));
    request.output_tokens = static_cast<int32_t>(1 + random.below(60));
    workload.push_back(request);
  }
  return workload;
}

std::string bytes_of(const SimulatedRun& run) {
  std::string text;
  for (const ServedRequest& served : run.requests)
    text += std::to_string(served.first_ns) + " " + std::to_string(served.end_ns) + " " +
            std::to_string(served.tokens) + "\n";
  const FleetCounts& counts = run.fleet->counts;
  return text + std::to_string(run.events) + " " + std::to_string(run.end_ns) + " " + std::to_string(counts.joined) +
         " " + std::to_string(counts.left) + " " + std::to_string(counts.deaths) + " " +
         std::to_string(run.fleet->retries) + " " + std::to_string(run.fleet->errors);
}

// S1 to S14, looked at by simulate(). Another seed each time.
TEST(Fleet, WhateverGoesWrongWhatMustHoldHolds) {
  const char* const given = std::getenv("LORALEI_SEED");  // to repeat a run
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("seeds %llu and the 199 behind it\n", static_cast<unsigned long long>(first));
  FleetCounts all;
  uint64_t retries = 0, errors = 0, served = 0, routers = 0, placed = 0;
  for (uint64_t seed = first; seed < first + 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    const Workload workload = some_workload(random, 60, static_cast<int>(random.below(8)), 0.5 + 3 * random.uniform());
    SimulationOptions options{.replicas = static_cast<int32_t>(1 + random.below(5)),
                              .routers = static_cast<int32_t>(1 + random.below(3)),
                              .etcd = true,
                              .faults = seed};
    options.fault_kinds.engine = random.below(2) == 0;
    options.router.policy = static_cast<RoutePolicy>(random.below(kRoutePolicyNames.size()));
    options.check = seed % 20 == 0;
    if (random.below(2) == 0) options.router.placement = HomesOptions{.interval_s = 2, .hot_requests = 2};
    const auto run = simulate(workload, some_profile(), options);
    ASSERT_TRUE(run.ok()) << run.error().message;
    const FleetCounts& counts = run->fleet->counts;
    routers += static_cast<uint64_t>(options.routers);
    all.joined += counts.joined, all.left += counts.left, all.deaths += counts.deaths, all.lists += counts.lists;
    all.etcd_leaders += counts.etcd_leaders, all.compactions += counts.compactions, all.cuts += counts.cuts;
    all.planners += counts.planners, placed += run->placed;
    retries += run->fleet->retries, errors += run->fleet->errors;
    for (const ServedRequest& request : run->requests) served += request.failed ? 0 : 1;
    if (seed % 10 != 0) continue;
    const auto again = simulate(workload, some_profile(), options);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(bytes_of(*run), bytes_of(*again));
  }
  // Of everything there was some.
  EXPECT_GT(all.deaths, 200u);
  EXPECT_GT(all.left, 200u);
  EXPECT_GT(all.etcd_leaders, 200u);
  EXPECT_GT(all.compactions, 50u);
  EXPECT_GT(all.cuts, 200u);
  EXPECT_GT(all.lists, routers) << "behind a compaction";
  EXPECT_GT(all.planners, 100u) << "some led behind another";
  EXPECT_GT(placed, 10u);
  EXPECT_GT(retries, 20u);
  EXPECT_GT(errors, 100u);
  EXPECT_GT(served, 8000u);
}

// Who is always there need not be looked for.
TEST(Fleet, WithoutFaultsAllIsServedAsWithoutEtcd) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    const Workload workload = some_workload(random, 100, 6, 4);
    SimulationOptions options{.replicas = 3, .routers = static_cast<int32_t>(1 + seed % 2), .check = true};
    options.router.policy = static_cast<RoutePolicy>(seed % kRoutePolicyNames.size());
    const auto without = simulate(workload, some_profile(), options);
    options.etcd = true;
    const auto with = simulate(workload, some_profile(), options);
    ASSERT_TRUE(without.ok() && with.ok()) << with.error().message;
    EXPECT_FALSE(without->fleet);
    for (size_t i = 0; i < workload.size(); ++i) EXPECT_EQ(with->requests[i].end_ns, without->requests[i].end_ns) << i;
    EXPECT_EQ(with->fleet->counts.joined, 3u * static_cast<uint64_t>(options.routers));
    EXPECT_EQ(with->fleet->counts.left, 0u);
    EXPECT_EQ(with->fleet->errors, 0u);
  }
}

TEST(Fleet, WhoeverDiesItsRequestsGoElsewhereOrEndWithAnError) {
  Prng random(5);
  const Workload workload = some_workload(random, 300, 0, 5);
  SimulationOptions options{.replicas = 4, .etcd = true, .faults = 3};
  options.fault_kinds = {.engine = false, .replicas = true, .etcd = false, .cuts = false};
  const auto run = simulate(workload, some_profile(), options);
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_GT(run->fleet->counts.deaths, 3u);
  EXPECT_GT(run->fleet->retries, 0u);
  uint64_t failed = 0, begun = 0;
  for (const ServedRequest& served : run->requests) {
    failed += served.failed ? 1 : 0;
    begun += served.failed && served.tokens > 0 ? 1 : 0;
  }
  EXPECT_EQ(failed, run->fleet->errors);
  EXPECT_GT(begun, 0u) << "what had begun is not repeated";
  EXPECT_LT(failed, workload.size() / 10);
}

TEST(Fleet, WithSeveralRoutersPlacementNeedsAnElection) {
  SimulationOptions options{.routers = 2};
  options.router.placement.emplace();
  const auto run = simulate({}, some_profile(), options);
  ASSERT_FALSE(run.ok());
  EXPECT_NE(run.error().message.find("need --etcd"), std::string::npos) << run.error().message;
  options.routers = 0;
  EXPECT_FALSE(simulate({}, some_profile(), options).ok());
}

}  // namespace
}  // namespace loralei::sim

// SPDX-License-Identifier: Apache-2.0
#include "sim/simulate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/prng.h"

namespace loralei::sim {
namespace {

// A millisecond a row, ten for a step, and an adapter's bytes at a gigabyte a second.
Profile some_profile(bool with_link) {
  Profile profile;
  profile.name = "made";
  profile.model = {.name = "made", .max_tokens = 2048, .kv_bytes_per_token = 1000, .adapter_bytes_per_rank = 1'000'000};
  profile.memory = {.kv_bytes = 16'000'000, .adapter_bytes = 200'000'000, .host_adapter_bytes = 400'000'000};
  profile.step.linear = {{1, 0.011}, {101, 0.111}};
  profile.disk = TransferCost{.seconds = 0.005, .bytes_per_second = 1e9, .at_once = 2};
  if (with_link) profile.link = TransferCost{.seconds = 0, .bytes_per_second = 10e9};
  return profile;
}

Workload some_workload(uint64_t seed, int count, int adapters, double per_s) {
  Prng random(seed);
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
    request.output_tokens = static_cast<int32_t>(1 + random.below(40));
    if (random.below(3) == 0) {
      request.prefixes.push_back({"doc" + std::to_string(random.below(4)), std::min(64, request.prompt_tokens)});
    }
    workload.push_back(request);
  }
  return workload;
}

TEST(Simulate, ALoneRequestTakesWhatTheProfileSays) {
  const Workload workload = {{.at_ns = 5'000'000'000, .prompt_tokens = 100, .output_tokens = 3}};
  SimulationOptions options{.check = true};
  options.replica.engine.step_time_ns = kStepTimeUnbounded;
  const auto run = simulate(workload, some_profile(false), options);
  ASSERT_TRUE(run.ok()) << run.error().message;
  const ServedRequest& served = run->requests[0];
  EXPECT_EQ(served.tokens, 3);
  EXPECT_EQ(served.first_ns, 5'000'000'000 + 110'000'000);
  EXPECT_EQ(served.end_ns, 5'000'000'000 + 110'000'000 + 2 * 11'000'000);
  EXPECT_EQ(run->gaps.count(), 2);
}

TEST(Simulate, AnAdapterIsLoadedFromTheDiskAndOverTheLink) {
  Workload workload = {{.at_ns = 0, .adapter = "a", .rank = 16, .prompt_tokens = 100, .output_tokens = 1}};
  workload.push_back(workload[0]);
  workload[1].at_ns = 10'000'000'000;
  SimulationOptions options{.check = true};
  options.replica.engine.step_time_ns = kStepTimeUnbounded;
  options.replica.engine.prefix_cache = false;
  for (const bool with_link : {false, true}) {
    SCOPED_TRACE(with_link);
    const auto run = simulate(workload, some_profile(with_link), options);
    ASSERT_TRUE(run.ok()) << run.error().message;
    const int64_t load_ns = 5'000'000 + 16'000'000, upload_ns = with_link ? 1'600'000 : 0;
    EXPECT_EQ(run->requests[0].first_ns, load_ns + upload_ns + 110'000'000);
    EXPECT_EQ(run->requests[1].first_ns - workload[1].at_ns, 110'000'000) << "it is there";
    EXPECT_EQ(run->replicas[0].adapter_load_bytes, 16'000'000);
  }
}

// Adapters of rank 16 come in 16 layers within 80 ms, the last 5 ms behind them, and a
// prompt of 100 tokens computes for 110 ms.
Profile layered_profile() {
  Profile profile = some_profile(true);
  profile.model.layers = 15;
  profile.link = TransferCost{.bytes_per_second = 16e6 / 0.080};
  profile.assist = AssistCost{.message_seconds = 1e-4, .row_seconds_per_rank = 1e-6};
  return profile;
}

Result<SimulatedRun> run_cold(const Profile& profile, ColdStart way, int32_t helpers) {
  Workload workload;
  for (int i = 0; i < 20; ++i)
    workload.push_back({.at_ns = (i + 1) * 10'000'000'000,
                        .adapter = "a" + std::to_string(i),
                        .rank = 16,
                        .prompt_tokens = 100,
                        .output_tokens = 2});
  SimulationOptions options{.check = true};
  options.replica.engine.step_time_ns = kStepTimeUnbounded;
  options.replica.engine.cold_start = way;
  options.replica.adapters_in_memory = true;
  options.replica.engine.assist_helpers = helpers;
  return simulate(workload, profile, options);
}

uint64_t began(const SimulatedRun& run, ColdStart way) {
  return run.replicas[0].cold_starts.requests[static_cast<size_t>(way)];
}

// Of the last request, when steps and uploads are known: alone it takes 110 ms with its
// adapter there, and 190 if it waits for all of it.
int64_t last_first_ns(const SimulatedRun& run) { return run.requests.back().first_ns - 200'000'000'000; }

TEST(Simulate, EachWayToStartTakesWhatItsLayersTake) {
  const auto cached = run_cold(layered_profile(), ColdStart::kCached, 2);
  const auto ondemand = run_cold(layered_profile(), ColdStart::kOndemand, 2);
  const auto layered = run_cold(layered_profile(), ColdStart::kLayered, 2);
  const auto assisted = run_cold(layered_profile(), ColdStart::kAssisted, 2);
  for (const auto* run : {&cached, &ondemand, &layered, &assisted}) ASSERT_TRUE(run->ok()) << run->error().message;
  EXPECT_NEAR(static_cast<double>(last_first_ns(*cached)), 110e6, 1e3);
  for (const ColdStart way : {ColdStart::kLayered, ColdStart::kAssisted, ColdStart::kOndemand})
    EXPECT_EQ(began(*cached, way), 0u);
  EXPECT_EQ(cached->replicas[0].adapter_uploads, 20u) << "before anybody asked";
  EXPECT_NEAR(static_cast<double>(last_first_ns(*ondemand)), 190e6, 1e4);
  EXPECT_EQ(began(*ondemand, ColdStart::kOndemand), 20u);
  // The first layer takes 5 ms to come, and every one after it comes before it is read.
  EXPECT_NEAR(static_cast<double>(last_first_ns(*layered)), 115e6, 2e6);
  EXPECT_GT(began(*layered, ColdStart::kLayered), 15u);
  EXPECT_EQ(began(*layered, ColdStart::kAssisted), 0u);
  EXPECT_EQ(layered->replicas[0].cold_starts.helpers, 0);
  // Helpers take 0.9 ms for a layer that the device computes in 7.3.
  EXPECT_NEAR(static_cast<double>(last_first_ns(*assisted)), 110e6, 1e3);
  EXPECT_GT(began(*assisted, ColdStart::kAssisted), 15u);
  EXPECT_GT(assisted->replicas[0].cold_starts.assisted_layers, 15u);
  EXPECT_EQ(assisted->replicas[0].cold_starts.helpers, 2);
}

TEST(Simulate, ALinkThatIsTooSlowForLayersIsWaitedFor) {
  Profile slow = layered_profile();
  slow.link->bytes_per_second = 16e6 / 0.800;
  const auto ondemand = run_cold(slow, ColdStart::kOndemand, 0);
  const auto layered = run_cold(slow, ColdStart::kLayered, 0);
  ASSERT_TRUE(ondemand.ok() && layered.ok());
  EXPECT_NEAR(static_cast<double>(last_first_ns(*ondemand)), 910e6, 1e5);
  // All but the end of it is waited for; its prompt is computed while the rest comes.
  EXPECT_LT(last_first_ns(*layered), 850'000'000);
  EXPECT_GE(last_first_ns(*layered), 800'000'000);
}

// Every policy of scheduling with every way to predict lengths.
SchedulingOptions scheduling_of(uint64_t seed) {
  return {.policy = static_cast<SchedulePolicy>(seed % kSchedulePolicies),
          .prediction = static_cast<LengthPrediction>(seed / 4 % kLengthPredictions),
          .first_fit = 10,
          .fairness = seed / 4 % 2 == 0 ? Fairness::kVtc : Fairness::kNone};
}

std::string bytes_of(const SimulatedRun& run) {
  std::string text;
  for (const ServedRequest& served : run.requests)
    text += std::to_string(served.first_ns) + " " + std::to_string(served.end_ns) + " " +
            std::to_string(served.cached_tokens) + "\n";
  return text + std::to_string(run.events) + " " + std::to_string(run.end_ns);
}

TEST(Simulate, WhatMustHoldHoldsAndARunIsRepeated) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const Workload workload = some_workload(seed, 100, static_cast<int>(random.below(40)), 2 + 8 * random.uniform());
    const Profile profile = some_profile(seed % 2 == 0);
    SimulationOptions options{.replicas = static_cast<int32_t>(1 + random.below(3)), .check = true};
    options.router.policy = static_cast<RoutePolicy>(seed % kRoutePolicyNames.size());
    options.replica.engine.max_sequences = static_cast<int32_t>(2 + random.below(16));
    options.replica.engine.scheduling = scheduling_of(seed);
    const auto first = simulate(workload, profile, options);
    ASSERT_TRUE(first.ok()) << first.error().message;
    const auto second = simulate(workload, profile, options);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(bytes_of(*first), bytes_of(*second));
    EXPECT_EQ(first->replicas.size(), static_cast<size_t>(options.replicas));
    options.samples = 50;
    const auto sampled = simulate(workload, profile, options);
    ASSERT_TRUE(sampled.ok());
    EXPECT_GE(sampled->samples.size(), 50u);
    for (size_t i = 0; i < workload.size(); ++i)
      EXPECT_EQ(sampled->requests[i].end_ns, first->requests[i].end_ns) << "looking changes nothing";
    int64_t used = 0;
    for (const LoadSample& sample : sampled->samples) used += sample.kv_used_bytes + sample.adapters_used_bytes;
    EXPECT_GT(used, 0);
    EXPECT_EQ(sampled->samples.back().kv_used_bytes + sampled->samples.back().adapters_used_bytes, 0);
  }
}

// How long an answer will be is known when it has ended, and not before.
TEST(Simulate, NobodyReadsTheFuture) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Workload workload = some_workload(seed, 120, 10, 6);
    const Profile profile = some_profile(seed % 2 == 0);
    const auto steps_of = [&](const Workload& one, std::vector<StepRecord>& steps) {
      SimulationOptions options;
      options.replica.engine.max_sequences = 6;
      options.replica.engine.scheduling = scheduling_of(seed);
      options.replica.on_step = [&](const StepRecord& record) { steps.push_back(record); };
      return simulate(one, profile, options);
    };
    std::vector<StepRecord> before, after;
    const auto run = steps_of(workload, before);
    ASSERT_TRUE(run.ok()) << run.error().message;
    const size_t changed = seed * 5;
    Workload other = workload;
    other[changed].output_tokens += 50;
    ASSERT_TRUE(steps_of(other, after).ok());
    size_t same = 0;
    while (same < before.size() && before[same].begin_ns < run->requests[changed].end_ns) {
      ASSERT_EQ(before[same], after.at(same)) << "step " << same;
      ++same;
    }
    EXPECT_GT(same, 0u);
    EXPECT_NE(before, after);
  }
}

TEST(Simulate, WhatCanNeverBeServedFailsAlone) {
  Workload workload = some_workload(1, 5, 0, 1);
  workload[2].prompt_tokens = 5000;  // longer than any text
  workload[3].adapter = "huge";
  workload[3].rank = 300;  // more than there is room for
  const auto run = simulate(workload, some_profile(false), {.check = true});
  ASSERT_TRUE(run.ok()) << run.error().message;
  for (size_t i = 0; i < workload.size(); ++i) EXPECT_EQ(run->requests[i].failed, i == 2 || i == 3) << i;
  Profile tiny = some_profile(false);
  tiny.memory.kv_bytes = 100;
  EXPECT_FALSE(simulate(workload, tiny, {}).ok());
  EXPECT_FALSE(simulate(workload, some_profile(false), {.replicas = 0}).ok());
}

TEST(Simulate, AProfileThatDoesNotKnowAdaptersServesTheBaseAlone) {
  Profile bare = some_profile(false);
  bare.disk.reset();
  EXPECT_TRUE(simulate(some_workload(1, 5, 0, 1), bare, {.check = true}).ok());
  const auto run = simulate(some_workload(1, 20, 3, 1), bare, {});
  ASSERT_FALSE(run.ok());
  EXPECT_NE(run.error().message.find("does not say what they take"), std::string::npos) << run.error().message;
}

TEST(Simulate, UploadsThatGoAtOnceDoNotWaitForEachOther) {
  Workload workload = {{.at_ns = 0, .adapter = "a", .rank = 16, .prompt_tokens = 10, .output_tokens = 1},
                       {.at_ns = 0, .adapter = "b", .rank = 16, .prompt_tokens = 10, .output_tokens = 1}};
  const auto last_first_ns = [&](int32_t at_once) {
    Profile profile = some_profile(true);
    profile.link = TransferCost{.seconds = 1, .bytes_per_second = 1e12, .at_once = at_once};
    const auto run = simulate(workload, profile, {.check = true});
    EXPECT_TRUE(run.ok());
    return std::max(run->requests[0].first_ns, run->requests[1].first_ns);
  };
  EXPECT_GT(last_first_ns(1), 2'000'000'000);
  EXPECT_LT(last_first_ns(2), 1'500'000'000);
}

// Numbers that no machine has end in figures or a sentence.
TEST(Simulate, ProfilesOfAnyNumbersAreAnswered) {
  const Workload workload = some_workload(3, 30, 4, 5);
  Profile slow = some_profile(true);
  slow.step.linear = {{1, 1e300}};
  slow.disk = TransferCost{.seconds = 1e300, .bytes_per_second = 1};
  slow.link = TransferCost{.seconds = 1e300, .bytes_per_second = 1};
  EXPECT_TRUE(simulate(workload, slow, {}).ok());
  Profile wide = some_profile(false);
  wide.model.kv_bytes_per_token = 1;
  wide.memory.kv_bytes = int64_t{1} << 50;
  const auto run = simulate(workload, wide, {});
  ASSERT_FALSE(run.ok());
  EXPECT_NE(run.error().message.find("smaller --kv-cache-memory"), std::string::npos) << run.error().message;
}

// One adapter is asked for every ten minutes, and sixty others in turn, of which three or
// six have room.
TEST(Simulate, WhatIsExpectedIsInMemoryWhenItsRequestComes) {
  Workload workload;
  for (int64_t at_s = 0; at_s < 3 * 3600; at_s += 40) {
    const bool often = at_s % 600 == 0;
    workload.push_back({.at_ns = at_s * 1'000'000'000,
                        .adapter = often ? "often" : "other" + std::to_string(at_s / 40 % 60),
                        .rank = 64,
                        .prompt_tokens = 10,
                        .output_tokens = 5});
  }
  for (const bool with_link : {false, true}) {
    for (const AdapterPrefetch prefetch : {AdapterPrefetch::kQueue, AdapterPrefetch::kHistogram}) {
      SimulationOptions options{.check = true};
      options.replica.engine.adapter_keeping.prefetch = prefetch;
      const auto run = simulate(workload, some_profile(with_link), options);
      ASSERT_TRUE(run.ok()) << run.error().message;
      const bool foresees = prefetch == AdapterPrefetch::kHistogram;
      const int64_t load_ns = 69'000'000;  // of 64 MB
      for (size_t i = workload.size() / 2; i < workload.size(); ++i) {
        if (workload[i].adapter != "often") continue;
        EXPECT_EQ(run->requests[i].first_ns - workload[i].at_ns < load_ns, foresees) << "at " << workload[i].at_ns;
      }
      EXPECT_EQ(run->replicas[0].adapter_loads_ahead_used > 7, foresees);
      EXPECT_EQ(run->replicas[0].adapter_loads_ahead > 0, foresees);
    }
  }
}

// Loads that fail or take long, clients that leave, other budgets, adapters that come and
// go: every request ends, nothing is held at the end (S1 to S5, looked at by simulate()).
TEST(Simulate, WhateverGoesWrongEveryRequestEnds) {
  int64_t failed = 0, served = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << "; loralei simulate --faults " << seed
                                    << " runs a workload with the same faults");
    Prng random(seed);
    Workload workload = some_workload(seed, 40, static_cast<int>(1 + random.below(12)), 3 + 5 * random.uniform());
    for (WorkloadRequest& request : workload) request.app = "app" + std::to_string(request.prompt_tokens % 3);
    SimulationOptions options{.replicas = static_cast<int32_t>(1 + random.below(2)), .faults = seed};
    options.check = seed % 25 == 0;
    if (seed % 3 == 0) options.replica.engine.adapter_keeping = AdapterKeeping::none();
    if (seed % 2 == 0) options.replica.engine.adapter_keeping.prefetch = AdapterPrefetch::kHistogram;
    if (seed % 4 == 1) options.replica.engine.memory_sharing = MemorySharing::kJoint;
    constexpr KvEviction kEvictions[] = {KvEviction::kDensity, KvEviction::kUtility, KvEviction::kLru};
    options.replica.engine.kv_eviction = kEvictions[seed % 8 < 4 ? 0 : 1 + seed % 2];
    options.replica.engine.scheduling = scheduling_of(seed);
    options.replica.engine.max_model_len = 1024;
    options.replica.engine.max_sequences = static_cast<int32_t>(2 + random.below(8));
    options.replica.engine.kv_cache_bytes = 1000 * 16 * static_cast<int64_t>(64 + random.below(200));
    options.replica.engine.adapter_bytes = 130'000'000 + static_cast<int64_t>(random.below(100'000'000));
    Profile profile = some_profile(seed % 2 == 0);
    if (seed % 4 == 2) {  // over a link that is slow enough for every way to differ
      profile.model.layers = static_cast<int32_t>(1 + seed % 9);
      profile.link->bytes_per_second = 5e8;
      profile.assist = AssistCost{.message_seconds = 1e-4, .row_seconds_per_rank = seed % 8 == 2 ? 1e-6 : 1e-4};
      options.replica.engine.cold_start = static_cast<ColdStart>(seed / 4 % kColdStartNames.size());
      options.replica.engine.assist_helpers = static_cast<int32_t>(seed / 4 % 3);
    }
    const auto run = simulate(workload, profile, options);
    ASSERT_TRUE(run.ok()) << run.error().message;
    for (const ServedRequest& request : run->requests) (request.failed ? failed : served) += 1;
  }
  EXPECT_GT(failed, 1000);
  EXPECT_GT(served, 10000);
}

}  // namespace
}  // namespace loralei::sim

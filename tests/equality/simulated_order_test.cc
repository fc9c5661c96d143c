// SPDX-License-Identifier: Apache-2.0
// The simulator decides as a live server does: given the times of the live steps, and
// each request before the same step, it admits the same requests in the same steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>

#include "base/prng.h"
#include "sim/simulate.h"
#include "support/engine_driver.h"
#include "workload/prompts.h"

namespace loralei::test {
namespace {

const std::string kDemo = std::string(LORALEI_SOURCE_DIR) + "/demo/";
const std::vector<std::string> kAdapters = {"acronym", "cipher", "count", "json", "reverse", "shout"};
constexpr int kRequests = 200, kPromptMost = 250, kOutputMost = 24, kVocab = 1792;
constexpr int64_t kKvTokenBytes = 4 * 2 * 2 * 64 * 2;  // layers, K and V, heads, head_dim, f16
constexpr int64_t kBlocks = 64;                        // less than eight of the longer texts need

EngineOptions engine_options() {
  EngineOptions options;
  options.max_sequences = 8;
  options.step_tokens = 96;
  options.max_model_len = kPromptMost + kOutputMost;
  options.kv_cache_bytes = kBlocks * kKvBlockTokens * kKvTokenBytes;
  options.speculate = Speculation::kOff;
  // Of what goes first when blocks run out the order of uses decides alone: a clock that
  // goes on within a step tells other ages than one that stands still there.
  options.kv_eviction = KvEviction::kLru;
  return options;
}

Workload some_workload(Prng& random) {
  Workload workload;
  while (workload.size() < kRequests) {
    WorkloadRequest request;
    const uint64_t adapter = random.below(kAdapters.size() + 1);
    if (adapter < kAdapters.size()) request.adapter = kAdapters[adapter];
    request.prompt_tokens = static_cast<int32_t>(1 + random.below(random.below(2) == 0 ? 40 : kPromptMost));
    request.output_tokens = static_cast<int32_t>(1 + random.below(kOutputMost));
    if (random.below(3) == 0)
      request.prefixes.push_back({"text" + std::to_string(random.below(4)), std::min(64, request.prompt_tokens)});
    workload.push_back(request);
  }
  return workload;
}

Submit submit_of(const WorkloadRequest& request, size_t index) {
  Submit submit;
  for_each_prompt_number(request, index, [&](uint64_t number) {
    submit.prompt.push_back(static_cast<TokenId>(3 + number % (kVocab - 3)));
  });
  submit.max_tokens = request.output_tokens;
  submit.ignore_eos = true;
  submit.sampling.temperature = 0;
  if (!request.adapter.empty()) submit.adapters.push_back({source_of(request.adapter), 1.0f});
  return submit;
}

// Serves the workload; its arrivals are bursts. The adapters' ranks are filled in. All
// are in memory before: what is waited for beside steps the times of steps do not say.
std::vector<StepRecord> serve(Workload& workload, Prng& random) {
  std::vector<StepRecord> steps;
  std::mutex mutex;
  EngineHostOptions options;
  options.model_path = kDemo + "model";
  options.threads = 2;
  options.engine = engine_options();
  options.engine.memory_budget_bytes = int64_t{1} << 30;
  options.on_step = [&](const StepRecord& record) {
    const std::lock_guard lock(mutex);
    steps.push_back(record);
  };
  EngineDriver driver(options);
  if (!driver.running()) return {};
  EXPECT_EQ(driver.stats().kv_blocks_total, kBlocks);
  // In the order in which the simulator numbers them, one behind the other: a step sorts
  // its rows by versions, which are numbered as their loads end, and from that follows
  // whose blocks of KV cache leave first.
  std::set<std::string> loaded;
  for (const WorkloadRequest& request : workload) {
    if (request.adapter.empty() || !loaded.insert(request.adapter).second) continue;
    driver.command(AdapterAction::kLoad, request.adapter, kDemo + "adapters/" + request.adapter);
    driver.collect();
  }
  for (size_t index = 0; index < workload.size(); ++index) {
    EXPECT_NE(driver.submit(submit_of(workload[index], index)), 0u);
    if (random.below(4) == 0) driver.take(static_cast<int64_t>(random.below(60'000'000)));
  }
  driver.collect();
  for (const auto& adapter : driver.adapters()) {
    for (WorkloadRequest& request : workload)
      if (request.adapter == adapter->source.label) request.rank = adapter->rank;
  }
  const std::lock_guard lock(mutex);
  return steps;
}

// When each request must arrive so that the step that saw it first sees it first again,
// where every step begins when the one before has ended. (What a step waited for layers
// of adapters nothing is learned from.)
void set_arrivals(const std::vector<StepRecord>& steps, Workload& workload) {
  std::set<RequestId> admitted;
  size_t arrived = 0;
  int64_t begin_ns = 1'000'000'000;  // all adapters have been loaded by then
  int64_t at_ns = begin_ns;          // in the middle of the step before
  for (const StepRecord& step : steps) {
    admitted.insert(step.admitted.begin(), step.admitted.end());
    const size_t seen = admitted.size() + static_cast<size_t>(step.waiting);
    for (; arrived < seen; ++arrived) workload.at(arrived).at_ns = at_ns;
    at_ns = begin_ns + step.own_ns() / 2;
    begin_ns += step.own_ns();
  }
  ASSERT_EQ(arrived, workload.size());
}

// A machine of which only the memory is known.
Profile profile_of_memory() {
  Profile profile;
  profile.name = "live steps";
  profile.model = {.name = "demo", .kv_bytes_per_token = kKvTokenBytes, .adapter_bytes_per_rank = 1};
  profile.memory.adapter_bytes = 1 << 20;
  profile.step.linear = {{1, 1.0}};
  profile.disk = TransferCost{.seconds = 0, .bytes_per_second = 1e18};
  return profile;
}

TEST(SimulatedOrder, IsThatOfTheLiveServerGivenItsStepTimes) {
  const auto seed = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Prng random(seed);
  Workload workload = some_workload(random);
  const std::vector<StepRecord> live = serve(workload, random);
  ASSERT_FALSE(live.empty());
  ASSERT_NO_FATAL_FAILURE(set_arrivals(live, workload));

  sim::SimulationOptions options;
  options.replica.engine = engine_options();
  options.replica.adapters_in_memory = true;
  options.replica.step_seconds = [&](uint64_t step, const StepFeatures&) {
    return step < live.size() ? static_cast<double>(live[step].own_ns()) * 1e-9 : 1.0;
  };
  std::vector<StepRecord> simulated;
  options.replica.on_step = [&](const StepRecord& record) { simulated.push_back(record); };
  const auto run = sim::simulate(workload, profile_of_memory(), options);
  ASSERT_TRUE(run.ok()) << run.error().message;

  size_t waited = 0, together = 0;
  for (size_t i = 0; i < std::min(live.size(), simulated.size()); ++i) {
    ASSERT_EQ(simulated[i].admitted, live[i].admitted) << "step " << i << " of " << live.size();
    ASSERT_EQ(simulated[i].waiting, live[i].waiting) << "step " << i;
    ASSERT_EQ(simulated[i].features, live[i].features) << "step " << i;
    waited += live[i].waiting > 0 ? 1 : 0;
    together += live[i].features.adapters > 1 ? 1 : 0;
  }
  EXPECT_EQ(simulated.size(), live.size());
  // It was not for want of decisions.
  EXPECT_GT(waited, 20u);
  EXPECT_GT(together, 20u);
}

}  // namespace
}  // namespace loralei::test

// SPDX-License-Identifier: Apache-2.0
#include "route/policy.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace loralei {
namespace {

// A step takes 10 ms, a row of a prompt 0.1 ms, a row that decodes next to nothing; rows
// with adapters take 20 us for each of the largest rank there is.
StepModel padded() {
  StepModel step;
  step.linear = {{1, 0.010}, {1000, 0.110}};
  step.seconds[static_cast<size_t>(CostTerm::kRankMaxRow)] = 20e-6;
  return step;
}

class PolicyTest : public testing::Test {
 protected:
  void add(size_t replica, uint64_t adapter, int32_t rank, int count = 1, bool answers = true) {
    for (int i = 0; i < count; ++i) {
      const RequestId id{++last_};
      loads_[replica].sent(id, request(adapter, rank));
      if (answers) loads_[replica].answers(id);
    }
  }
  static RoutedRequest request(uint64_t adapter, int32_t rank, int32_t prompt = 100) {
    return {.adapter = AdapterSourceId{adapter}, .rank = rank, .prompt_tokens = prompt, .answer_tokens = 100};
  }
  std::vector<RouteCandidate> candidates() {
    std::vector<RouteCandidate> all;
    for (size_t i = 0; i < loads_.size(); ++i) {
      all.push_back({.load = &loads_[i],
                     .step = &steps_[i],
                     .requests_max = requests_max_,
                     .context_tokens_max = 1'000'000,
                     .adapter_s = adapter_s_[i],
                     .stray_s = stray_s_[i],
                     .cached_tokens = cached_[i]});
    }
    return all;
  }
  size_t pick(RoutePolicy policy, const RoutedRequest& one, const RouteObjectives& objectives = {}) {
    const auto choice = RoutePicker(policy).pick(one, objectives, candidates());
    EXPECT_TRUE(choice.has_value());
    met_ = choice->meets_objectives;
    return choice->index;
  }

  std::array<ReplicaLoad, 3> loads_;
  std::array<StepModel, 3> steps_{padded(), padded(), padded()};
  std::array<double, 3> adapter_s_{}, stray_s_{};
  std::array<int32_t, 3> cached_{};
  int32_t requests_max_ = 16;
  uint64_t last_ = 0;
  bool met_ = true;
};

// Kernels that pad to the largest rank: small ones beside small ones, though there are
// more of them.
TEST_F(PolicyTest, RankAwareKeepsRanksApartThatSlowEachOther) {
  add(0, 1, 64, 4);
  add(1, 2, 8, 6);
  add(2, 3, 64, 4);
  for (const RoutePolicy policy : {RoutePolicy::kRankAware, RoutePolicy::kRankAwarePaper}) {
    EXPECT_EQ(pick(policy, request(4, 8)), 1u);
    EXPECT_NE(pick(policy, request(5, 64)), 1u);
  }
  EXPECT_NE(pick(RoutePolicy::kMostIdle, request(4, 8)), 1u);
}

TEST_F(PolicyTest, AsPrintedAnIdleReplicaCostsNothingWhateverItsMachine) {
  steps_[0].linear = {{1, 0.5}, {1000, 5.0}};  // fifty times slower than the others
  add(1, 0, 0);
  add(2, 0, 0, 2);
  EXPECT_EQ(pick(RoutePolicy::kRankAwarePaper, request(0, 0)), 0u);
  EXPECT_EQ(pick(RoutePolicy::kRankAware, request(0, 0)), 1u);
  EXPECT_EQ(pick(RoutePolicy::kMostIdle, request(0, 0)), 0u);
}

// A home is worth what it saves others, and does not make a prediction worse.
TEST_F(PolicyTest, AStrayAdapterCostsSecondsAndNoObjective) {
  stray_s_ = {0.2, 0, 0.2};
  EXPECT_EQ(pick(RoutePolicy::kRankAware, request(1, 8)), 1u);
  EXPECT_EQ(pick(RoutePolicy::kRankAware, request(1, 8), {.first_token_s = 0.1}), 1u);
  add(1, 2, 64, 8);
  EXPECT_EQ(pick(RoutePolicy::kRankAware, request(1, 8)), 0u) << "that takes longer than the adapter";
  EXPECT_EQ(pick(RoutePolicy::kRankAware, request(1, 8), {.first_token_s = 0.1}), 0u);
  EXPECT_TRUE(met_);
  EXPECT_EQ(pick(RoutePolicy::kMostIdle, request(1, 8)), 0u);
}

TEST_F(PolicyTest, ObjectivesComeFirst) {
  add(0, 1, 8);       // a token takes 10 ms there, and 10.3 with the request
  add(1, 2, 64, 10);  // and 24 ms there
  add(2, 3, 64, 5);
  steps_[0].seconds[static_cast<size_t>(CostTerm::kRankMaxRow)] = 1e-3;
  const RouteObjectives objectives{.token_s = 0.020};
  EXPECT_EQ(pick(RoutePolicy::kRankAware, request(4, 16), objectives), 2u);
  EXPECT_TRUE(met_);
  EXPECT_EQ(pick(RoutePolicy::kRankAware, request(4, 16), {.token_s = 0.001}),
            pick(RoutePolicy::kRankAware, request(4, 16), {.token_s = 0.001}));
  EXPECT_FALSE(met_) << "the least bad one, and that is told";
  EXPECT_EQ(pick(RoutePolicy::kRandom, request(4, 16), {.first_token_s = 1e-6}) < 3u, true);
  EXPECT_FALSE(met_) << "whoever picks";
}

// A step costs the same up to many rows: beside one that waits a second prompt is free
// only if it takes a step of its own otherwise.
TEST_F(PolicyTest, APromptCostsWhatItAddsToAStep) {
  for (size_t i = 0; i < 3; ++i) add(i, 0, 0, 4);
  add(0, 0, 0, 1, false);  // waits
  EXPECT_EQ(pick(RoutePolicy::kRankAwarePaper, request(0, 0)), 0u);
  EXPECT_NE(pick(RoutePolicy::kRankAware, request(0, 0)), 0u);
}

// Seconds that an adapter takes to come count, beside those that others would lose.
TEST_F(PolicyTest, AffinityIsWorthWhatItSaves) {
  adapter_s_ = {0.5, 0.0, 0.5};
  EXPECT_EQ(pick(RoutePolicy::kRankAware, request(1, 8)), 1u);
  EXPECT_EQ(pick(RoutePolicy::kAdapterAffinity, request(1, 8)), 1u);
  add(1, 2, 64, 12);
  EXPECT_NE(pick(RoutePolicy::kRankAware, request(1, 8)), 1u) << "it is too dear there now";
  EXPECT_EQ(pick(RoutePolicy::kAdapterAffinity, request(1, 8)), 1u);
  adapter_s_ = {};
  cached_ = {0, 0, 900};
  add(0, 0, 0);
  add(2, 0, 0);
  EXPECT_EQ(pick(RoutePolicy::kRankAware, request(0, 0, 1000)), 2u);
  EXPECT_EQ(pick(RoutePolicy::kPrefixAffinity, request(0, 0, 1000)), 2u);
}

TEST_F(PolicyTest, WhoHasNoRoomIsTakenLast) {
  requests_max_ = 2;
  add(0, 0, 0, 2);
  add(1, 0, 0, 1, false);
  EXPECT_EQ(pick(RoutePolicy::kFirstFit, request(0, 0)), 1u);
  add(1, 0, 0);
  EXPECT_EQ(pick(RoutePolicy::kFirstFit, request(0, 0)), 2u);
  add(2, 0, 0, 3);
  for (const RoutePolicy policy : {RoutePolicy::kFirstFit, RoutePolicy::kMostIdle, RoutePolicy::kRankAware})
    EXPECT_NE(pick(policy, request(0, 0)), 2u) << "all are full, and that one is fuller";
}

TEST_F(PolicyTest, RandomAndTurnsReachAll) {
  for (const RoutePolicy policy : {RoutePolicy::kRandom, RoutePolicy::kRoundRobin}) {
    RoutePicker picker(policy, 7);
    std::array<int, 3> counts{};
    const auto all = candidates();
    for (int i = 0; i < 300; ++i) ++counts[picker.pick(request(0, 0), {}, all)->index];
    for (const int count : counts) EXPECT_GT(count, 60);
  }
  EXPECT_FALSE(RoutePicker(RoutePolicy::kRankAware).pick(request(0, 0), {}, {}).has_value());
}

}  // namespace
}  // namespace loralei

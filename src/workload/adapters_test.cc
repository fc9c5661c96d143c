// SPDX-License-Identifier: Apache-2.0
// Adapters' shares against their formulas; tolerances are five standard errors.
#include "workload/adapters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "workload/workload_test_util.h"

namespace loralei {
namespace {

class AdapterMixTest : public WorkloadFiles {
 protected:
  static AdapterMix opened(const std::string& spec, uint64_t seed = 1) {
    auto mix = AdapterMix::open(spec, seed);
    EXPECT_TRUE(mix.ok()) << (mix.ok() ? "" : mix.error().message);
    return std::move(mix).value();
  }
  static std::string refusal(const std::string& spec) {
    const auto mix = AdapterMix::open(spec, 1);
    return mix.ok() ? "" : mix.error().message;
  }
  static constexpr int kDraws = 100'000;
  static std::map<std::string, int> counts(const AdapterMix& mix) {
    Prng random(77);
    std::map<std::string, int> found;
    for (int i = 0; i < kDraws; ++i) ++found[mix.draw({}, random).name];
    return found;
  }
  static double error(double share) { return 5 * std::sqrt(share * (1 - share) * kDraws); }
};

TEST_F(AdapterMixTest, NoneIsTheBase) {
  const AdapterMix mix = opened("none");
  Prng random(1);
  EXPECT_EQ(mix.draw({}, random).name, "");
  EXPECT_EQ(mix.draw({}, random).rank, 0);
}

TEST_F(AdapterMixTest, UniformAdaptersAreEquallyLikely) {
  const auto found = counts(opened("uniform:4:16"));
  EXPECT_EQ(found.size(), 4u);
  for (const char* name : {"a000", "a001", "a002", "a003"})
    EXPECT_NEAR(found.at(name), kDraws / 4, error(0.25)) << name;
  Prng random(1);
  EXPECT_EQ(opened("uniform:4:16").draw({}, random).rank, 16);
}

TEST_F(AdapterMixTest, SmallRanksAreLikelierAndARanksAdaptersAlike) {
  for (const double alpha : {1.0, 2.0, 0.0}) {
    SCOPED_TRACE("alpha " + std::to_string(alpha));
    const AdapterMix mix = opened(alpha == 1 ? "powerlaw:100" : "powerlaw:100:" + std::to_string(alpha));
    double sum = 0;
    for (int i = 1; i <= 5; ++i) sum += std::pow(i, -alpha);
    Prng random(3);
    std::map<int, int> ranks;
    std::map<std::string, int> names, rank_of;
    for (int i = 0; i < kDraws; ++i) {
      const AdapterMix::Named drawn = mix.draw({}, random);
      ++ranks[drawn.rank];
      ++names[drawn.name];
      rank_of[drawn.name] = drawn.rank;
    }
    EXPECT_EQ(names.size(), 100u);
    std::map<int, int> of_each;
    for (const auto& [name, rank] : rank_of) ++of_each[rank];
    for (int i = 1; i <= 5; ++i) {
      const double share = std::pow(i, -alpha) / sum;
      EXPECT_NEAR(ranks[4 << i], share * kDraws, error(share)) << (4 << i);
      EXPECT_EQ(of_each[4 << i], 20) << (4 << i);
    }
    for (const auto& [name, count] : names) {
      const double share = std::pow(std::log2(rank_of[name]) - 2, -alpha) / sum / 20;
      EXPECT_NEAR(count, share * kDraws, error(share)) << name;
    }
    EXPECT_EQ(rank_of["a000"], 8);
    EXPECT_EQ(rank_of["a099"], 128);
  }
}

constexpr const char* kFunctions =
    "rank,function,invocations_per_day,share\n0,f,600,0.6\n1,g,200,0.2\n2,h,200,0.2\n3,i,0,0\n4,j,100,0.1\n";

TEST_F(AdapterMixTest, FunctionsAreAdaptersAsPopularAsTheyAre) {
  const auto found = counts(opened("functions:3:" + file("f.csv", kFunctions)));
  EXPECT_EQ(found.size(), 3u);
  EXPECT_NEAR(found.at("a000"), 0.6 * kDraws, error(0.6));
  EXPECT_NEAR(found.at("a001"), 0.2 * kDraws, error(0.2));
  EXPECT_NEAR(found.at("a002"), 0.2 * kDraws, error(0.2));
  const AdapterMix mix = opened("functions:3:" + path("f.csv"));
  Prng random(2);
  for (int i = 0; i < 50; ++i) {
    const AdapterMix::Named drawn = mix.draw({}, random);
    EXPECT_EQ(drawn.rank, 8 << (drawn.name[3] - '0')) << drawn.name;
  }
}

TEST_F(AdapterMixTest, ASampleOfFunctionsIsDrawnWithTheSeed) {
  const std::string spec = "functions:1:sample:" + file("f.csv", kFunctions);
  std::map<double, int> first_shares;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    const AdapterMix mix = opened("functions:2:sample:" + path("f.csv"), seed);
    ++first_shares[std::round(mix.share(0) * 1000) / 1000];
  }
  // Of the six pairs of four functions: f with g or h, f with j, g or h with j, g with h.
  EXPECT_EQ(first_shares.size(), 4u);
  EXPECT_NEAR(first_shares[0.75], 4000 / 3.0, 150);
  EXPECT_NEAR(first_shares[0.857], 4000 / 6.0, 120);
  EXPECT_NEAR(first_shares[0.667], 4000 / 3.0, 150);
  EXPECT_NEAR(first_shares[0.5], 4000 / 6.0, 120);
  EXPECT_DOUBLE_EQ(opened(spec, 3).share(0), 1);
}

// The same shares, of other adapters and ranks.
TEST_F(AdapterMixTest, PopularityShifts) {
  AdapterMix mix = opened("powerlaw:15:3");
  mix.shift_every(60);
  std::string popular[3];
  for (const int64_t period : {0, 1, 2}) {
    Prng random(1);
    std::map<std::string, int> counts;
    for (int i = 0; i < 1000; ++i)
      ++counts[mix.draw({.at_ns = period * 60'000'000'000 + int64_t{i} * 50'000'000}, random).name];
    const auto most = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    popular[period] = most->first;
  }
  // Any of three of the first rank, then of those six places on.
  EXPECT_LT(popular[0], "a003");
  EXPECT_TRUE(popular[1] >= "a006" && popular[1] < "a009") << popular[1];
  EXPECT_TRUE(popular[2] >= "a012") << popular[2];
}

TEST_F(AdapterMixTest, ServegenClientsAreAdapters) {
  const AdapterMix mix = opened("servegen");
  EXPECT_TRUE(mix.by_client());
  Prng random(1);
  EXPECT_EQ(mix.draw({.client = 17}, random).name, "a017");
  EXPECT_EQ(mix.draw({.client = 17}, random).rank, 32);
}

TEST_F(AdapterMixTest, WrongWordsHaveTheirSentence) {
  EXPECT_TRUE(holds(refusal("all"), "adapters 'all': write none, uniform:N:RANK"));
  EXPECT_TRUE(holds(refusal("uniform:4"), "the number RANK is missing"));
  EXPECT_TRUE(holds(refusal("uniform:0:8"), "N is 0; it must be from 1 to"));
  EXPECT_TRUE(holds(refusal("powerlaw:7"), "it must be a multiple of 5"));
  EXPECT_TRUE(holds(refusal("powerlaw:100:x"), "write powerlaw:N[:ALPHA]."));
  EXPECT_TRUE(holds(refusal("powerlaw:100:-1"), "ALPHA is -1"));
  EXPECT_TRUE(holds(refusal("functions:3"), "no file is named"));
  EXPECT_TRUE(holds(refusal("functions:3:sample:"), "no file is named"));
  EXPECT_TRUE(holds(refusal("functions:5:" + file("f.csv", kFunctions)), "the file has 4 functions with calls"));
  EXPECT_TRUE(holds(refusal("functions:1:" + file("g.csv", "function,calls\nf,1\n")),
                    "g.csv:1: there is no column invocations_per_day. The columns are function, calls."));
}

TEST_F(AdapterMixTest, TheRealFunctionsHaveTheirShares) {
  const std::string path = shared("popularity/maf2019_sample1250_popularity.csv");
  if (path.empty()) GTEST_SKIP() << "no shared data: neither LORALEI_SHARED_DATA nor ../shared/data";
  const AdapterMix mix = opened("functions:1250:" + path);
  EXPECT_EQ(mix.size(), 1250u);
  EXPECT_NEAR(mix.share(0), 0.081681613, 1e-8);
  EXPECT_NEAR(mix.share(1), 0.066136897, 1e-8);
}

}  // namespace
}  // namespace loralei

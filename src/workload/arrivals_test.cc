// SPDX-License-Identifier: Apache-2.0
// Random draws against their formulas, arrivals against their rates. Tolerances are four
// to five standard errors of what is estimated; seeds are fixed and printed.
#include "workload/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "workload/draws.h"
#include "workload/workload.h"
#include "workload/workload_test_util.h"

namespace loralei {
namespace {

struct Moments {
  double mean = 0, variance = 0;
};
Moments moments(int count, const std::function<double()>& draw) {
  double sum = 0, squares = 0;
  for (int i = 0; i < count; ++i) {
    const double one = draw();
    sum += one;
    squares += one * one;
  }
  const double mean = sum / count;
  return {mean, squares / count - mean * mean};
}

class ArrivalsTest : public WorkloadFiles {
 protected:
  static std::vector<WorkloadArrival> made(const ArrivalOptions& options) {
    auto arrivals = make_arrivals(options);
    EXPECT_TRUE(arrivals.ok()) << (arrivals.ok() ? "" : arrivals.error().message);
    return arrivals.ok() ? *arrivals : std::vector<WorkloadArrival>();
  }
  static std::string refusal(const ArrivalOptions& options) {
    const auto arrivals = make_arrivals(options);
    return arrivals.ok() ? "" : arrivals.error().message;
  }
  static double gap_cv(const std::vector<WorkloadArrival>& arrivals) {
    size_t i = 0;
    const int count = static_cast<int>(arrivals.size()) - 1;
    const Moments gaps = moments(count, [&] {
      ++i;
      return static_cast<double>(arrivals[i].at_ns - arrivals[i - 1].at_ns);
    });
    return std::sqrt(gaps.variance) / gaps.mean;
  }
};

TEST_F(ArrivalsTest, DrawsHaveTheMomentsOfTheirDistributions) {
  constexpr int kCount = 400'000;
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    const Moments normal = moments(kCount, [&] { return normal_draw(random); });
    EXPECT_NEAR(normal.mean, 0, 0.008);
    EXPECT_NEAR(normal.variance, 1, 0.012);
    for (const double shape : {0.05, 0.3, 0.75, 1.0, 2.5, 40.0}) {
      SCOPED_TRACE("shape " + std::to_string(shape));
      const double error = 5 / std::sqrt(kCount);
      const Moments gamma = moments(kCount, [&] { return gamma_draw(random, shape); });
      EXPECT_NEAR(gamma.mean, shape, error * std::sqrt(shape));
      // The kurtosis of a gamma distribution is 3 + 6 / shape.
      EXPECT_NEAR(gamma.variance, shape, error * shape * std::sqrt(2 + 6 / shape));
    }
    for (const double shape : {0.5, 1.0, 2.0}) {
      const double mean = std::tgamma(1 + 1 / shape), square = std::tgamma(1 + 2 / shape);
      const Moments weibull = moments(kCount, [&] { return weibull_draw(random, shape); });
      EXPECT_NEAR(weibull.mean, mean, 5 * std::sqrt((square - mean * mean) / kCount)) << shape;
    }
    EXPECT_NEAR(moments(kCount, [&] { return exponential_draw(random); }).mean, 1, 5 / std::sqrt(kCount));
  }
}

// What is left of a gap that began before has the mean (1 + CV^2) / 2.
TEST_F(ArrivalsTest, TheFirstGapIsWhatIsLeftOfOneThatBeganBefore) {
  constexpr int kCount = 400'000;
  for (const GapShape gap :
       {GapShape{false, 1}, GapShape{false, 0.25}, GapShape{false, 4}, GapShape{true, 0.7}, GapShape{true, 2}}) {
    SCOPED_TRACE(std::string(gap.weibull ? "Weibull " : "gamma ") + std::to_string(gap.shape));
    Prng random(11);
    const Moments whole = moments(kCount, [&] { return gap_draw(random, gap); });
    EXPECT_NEAR(whole.mean, 1, 0.02);
    const Moments first = moments(kCount, [&] { return first_gap_draw(random, gap); });
    const double inverse = 1 / gap.shape;
    const double square = gap.weibull ? std::tgamma(1 + 2 * inverse) / std::pow(std::tgamma(1 + inverse), 2)
                                      : 1 + inverse;  // mean of the squares of gaps of mean 1
    EXPECT_NEAR(first.mean, square / 2, 5 * std::sqrt(first.variance / kCount));
  }
}

TEST_F(ArrivalsTest, WeightsAreChances) {
  const WeightedDraw draw({3, 0, 1, 4, 0});
  Prng random(5);
  std::vector<int> counts(draw.size());
  for (int i = 0; i < 80'000; ++i) ++counts[draw.draw(random)];
  EXPECT_NEAR(counts[0], 30'000, 700);
  EXPECT_EQ(counts[1], 0);
  EXPECT_NEAR(counts[2], 10'000, 500);
  EXPECT_NEAR(counts[3], 40'000, 700);
  EXPECT_EQ(counts[4], 0);
  EXPECT_DOUBLE_EQ(draw.share(3), 0.5);
}

TEST_F(ArrivalsTest, PoissonHasItsRateAndGapsOfCvOne) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto arrivals = made({.spec = "poisson:8.7", .seconds = 10'000, .seed = seed});
    EXPECT_NEAR(static_cast<double>(arrivals.size()), 87'000, 4 * std::sqrt(87'000));
    EXPECT_NEAR(gap_cv(arrivals), 1, 0.02);
    EXPECT_LT(arrivals.back().at_ns, 10'000 * kNsPerSecond);
    // Counts of a second have the variance of their mean.
    std::vector<double> counts(10'000);
    for (const WorkloadArrival& one : arrivals) ++counts[static_cast<size_t>(one.at_ns / kNsPerSecond)];
    size_t i = 0;
    EXPECT_NEAR(moments(10'000, [&] { return counts[i++]; }).variance, 8.7, 0.65);
  }
}

TEST_F(ArrivalsTest, GammaHasItsRateAndItsCv) {
  for (const double cv : {0.5, 1.0, 3.0}) {
    const std::string spec = "gamma:20:" + std::to_string(cv);
    SCOPED_TRACE(spec);
    const auto arrivals = made({.spec = spec, .rate_scale = 2, .seconds = 10'000, .seed = 3});
    // The variance of a renewal count is its mean times CV^2.
    EXPECT_NEAR(static_cast<double>(arrivals.size()), 400'000, 4 * cv * std::sqrt(400'000));
    EXPECT_NEAR(gap_cv(arrivals), cv, 0.03 * cv);
  }
}

// Also of short workloads, whose beginning would show if it were that of a gap.
TEST_F(ArrivalsTest, BurstyArrivalsHaveTheirRateFromTheStart) {
  double sum = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed)
    sum += static_cast<double>(made({.spec = "gamma:10:5", .seconds = 2, .seed = seed}).size());
  EXPECT_NEAR(sum / 4000, 20, 2);  // started with a gap's begin, there would be 12 more
}

TEST_F(ArrivalsTest, ACountEndsThemAndASeedMakesThemAgain) {
  const auto first = made({.spec = "poisson:5", .count = 1000, .seed = 9});
  const auto second = made({.spec = "poisson:5", .count = 1500, .seed = 9});
  const auto other = made({.spec = "poisson:5", .count = 1000, .seed = 10});
  ASSERT_EQ(first.size(), 1000u);
  ASSERT_EQ(second.size(), 1500u);
  for (size_t i = 0; i < first.size(); ++i) ASSERT_EQ(first[i].at_ns, second[i].at_ns);
  EXPECT_NE(first[0].at_ns, other[0].at_ns);
}

TEST_F(ArrivalsTest, ATraceIsReplayedFromItsFirstRow) {
  const std::string dates = file("dates.csv",
                                 "TIMESTAMP,x\r\n2023-12-31 23:59:59.5000000,1\r\n2024-01-01 00:00:00,2\r\n"
                                 "2024-01-01T00:00:02.000000001,3\r\n");
  const auto at = [](const std::vector<WorkloadArrival>& arrivals) {
    std::vector<int64_t> times;
    for (const WorkloadArrival& one : arrivals) times.push_back(one.at_ns);
    return times;
  };
  EXPECT_EQ(at(made({.spec = "trace:" + dates})), (std::vector<int64_t>{0, 500'000'000, 2'500'000'001}));
  EXPECT_EQ(at(made({.spec = "trace:" + dates, .rate_scale = 2, .seconds = 1})),
            (std::vector<int64_t>{0, 250'000'000}));
  const std::string ms = file("ms.csv", "x,timestamp_ms\n1,6011\n1,6917.5\n");
  EXPECT_EQ(at(made({.spec = "trace:" + ms})), (std::vector<int64_t>{0, 906'500'000}));
  EXPECT_EQ(at(made({.spec = "trace:" + ms, .count = 1})), (std::vector<int64_t>{0}));
  EXPECT_EQ(at(made({.spec = "trace:" + file("t.csv", "t\n1\n1\n3.5\n")})),
            (std::vector<int64_t>{0, 0, 2'500'000'000}));
}

TEST_F(ArrivalsTest, WrongTracesHaveTheirSentence) {
  const auto said = [this](const std::string& text) { return refusal({.spec = "trace:" + file("t.csv", text)}); };
  EXPECT_TRUE(holds(said("a,b\n1,2\n"), "t.csv:1: there is no column of times"));
  EXPECT_TRUE(holds(said("t\n2\n\n1\n"), "t.csv:4: the column t holds '1', which is not at or after"));
  EXPECT_TRUE(holds(said("t\nx\n"), "t.csv:2: the column t holds 'x', which is not a number"));
  EXPECT_TRUE(holds(said("TIMESTAMP\n2023-02-30 00:00:00\n"), "which is not a time such as"));
  EXPECT_TRUE(holds(said("TIMESTAMP\n2023-02-03 00:00:00.\n"), "which is not a time such as"));
  EXPECT_TRUE(holds(said("TIMESTAMP\n2023-02-03\n"), "which is not a time such as"));
  EXPECT_TRUE(holds(said("t,u\n1\n"), "t.csv:2: the line has 1 cells, and the first line names 2 columns"));
  EXPECT_TRUE(holds(said("t\n\"1\"\n"), "t.csv:2: the line holds a quote"));
  EXPECT_TRUE(holds(said("t\n"), "holds no rows"));
  EXPECT_TRUE(holds(said(""), "holds no rows"));
  EXPECT_TRUE(holds(said("t\n0\n1e9\n"), "last longer than 2592000 seconds"));
  EXPECT_TRUE(holds(refusal({.spec = "trace:none.csv"}), "none.csv"));
  EXPECT_TRUE(holds(refusal({.spec = "trace:t.csv.zst"}), "`zstd -d t.csv.zst`"));
}

TEST_F(ArrivalsTest, WrongWordsHaveTheirSentence) {
  EXPECT_TRUE(holds(refusal({.spec = "poison:3", .count = 1}), "arrivals 'poison:3': write poisson:RPS, gamma"));
  EXPECT_TRUE(holds(refusal({.spec = "", .count = 1}), "arrivals '': write"));
  EXPECT_TRUE(holds(refusal({.spec = "poisson", .count = 1}), "write poisson:RPS."));
  EXPECT_TRUE(holds(refusal({.spec = "poisson:x", .count = 1}), "write poisson:RPS."));
  EXPECT_TRUE(holds(refusal({.spec = "poisson:-1", .count = 1}), "RPS is -1; it must be from 1e-06 to 1e+06"));
  EXPECT_TRUE(holds(refusal({.spec = "gamma:3", .count = 1}), "write gamma:RPS:CV."));
  EXPECT_TRUE(holds(refusal({.spec = "gamma:3:0", .count = 1}), "CV is 0; it must be from 0.01 to 50"));
  EXPECT_TRUE(holds(refusal({.spec = "poisson:3"}), "have no end"));
  EXPECT_TRUE(holds(refusal({.spec = "poisson:0.000001", .count = 1000}), "last longer than 2592000 seconds"));
  EXPECT_TRUE(holds(refusal({.spec = "poisson:1000000", .seconds = 100}), "are more than 10000000 requests"));
  EXPECT_TRUE(holds(refusal({.spec = "trace:"}), "no file is named"));
  EXPECT_TRUE(holds(refusal({.spec = "servegen:5", .count = 1}), "no file is named"));
}

constexpr const char* kRates =
    "client,start_s,requests_per_s,cv,distribution,param1,param2\n"
    "7,0,2,1,Gamma,0.5,9\n7,600,4,1,Weibull,0.8,9\n7,1800,2,1,Gamma,1,9\n"
    "3,600,1,1,Gamma,3,9\n"
    "5,0,0.1,1,Weibull,0.5,9\n5,600,0.1,1,Gamma,0.2,9\n";

TEST_F(ArrivalsTest, ServegenClientsHaveTheirRatesInEveryWindow) {
  const std::string rates = file("rates.csv", kRates);
  std::map<std::pair<int, int>, double> counts;  // by client and window
  constexpr int kRuns = 40;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    const auto arrivals = made({.spec = "servegen:" + rates, .seconds = 2400, .seed = seed});
    for (size_t i = 0; i < arrivals.size(); ++i) {
      if (i > 0) {
        ASSERT_GE(arrivals[i].at_ns, arrivals[i - 1].at_ns);
      }
      EXPECT_NEAR(arrivals[i].source_s, static_cast<double>(arrivals[i].at_ns) / 1e9, 1e-6);
      counts[{arrivals[i].client, static_cast<int>(arrivals[i].source_s / 600)}] += 1.0 / kRuns;
    }
  }
  EXPECT_EQ(counts.size(), 6u);
  EXPECT_NEAR((counts[{7, 0}]), 1200, 40);
  EXPECT_NEAR((counts[{7, 1}]), 2400, 60);
  EXPECT_EQ((counts.count({7, 2})), 0u);
  EXPECT_NEAR((counts[{7, 3}]), 1200, 30);
  EXPECT_NEAR((counts[{3, 1}]), 600, 12);
  EXPECT_NEAR((counts[{5, 0}]), 60, 14);
  EXPECT_NEAR((counts[{5, 1}]), 60, 14);
}

TEST_F(ArrivalsTest, ServegenIsScaledToARateAndToTheBusiest) {
  const std::string rates = file("rates.csv", kRates);
  const auto arrivals = made({.spec = "servegen:30:2:600:" + rates, .seconds = 600, .seed = 4});
  EXPECT_NEAR(static_cast<double>(arrivals.size()), 18'000, 5 * 1.3 * std::sqrt(18'000));
  double of_seven = 0;
  for (const WorkloadArrival& one : arrivals) {
    EXPECT_TRUE(one.client == 7 || one.client == 3) << one.client;
    EXPECT_LT(one.at_ns, 600 * kNsPerSecond);
    EXPECT_GE(one.source_s, 600);
    of_seven += one.client == 7 ? 1 : 0;
  }
  EXPECT_NEAR(of_seven / static_cast<double>(arrivals.size()), 0.8, 0.02);
  const auto twice = made({.spec = "servegen:30:2:600:" + rates, .rate_scale = 2, .seconds = 600, .seed = 4});
  EXPECT_NEAR(static_cast<double>(twice.size()), 36'000, 5 * 1.3 * std::sqrt(36'000));
  const auto counted = made({.spec = "servegen:30:2:600:" + rates, .count = 100, .seed = 4});
  EXPECT_EQ(counted.size(), 100u);
}

TEST_F(ArrivalsTest, AClientsTimesDoNotDependOnTheOthers) {
  const auto of_seven = [this](const std::string& rates) {
    std::vector<int64_t> times;
    for (const WorkloadArrival& one : made({.spec = "servegen:" + rates, .seconds = 2400, .seed = 4}))
      if (one.client == 7) times.push_back(one.at_ns);
    return times;
  };
  const std::string all = kRates;
  EXPECT_EQ(of_seven(file("one.csv", all.substr(0, all.find("3,600")))), of_seven(file("all.csv", all)));
}

TEST_F(ArrivalsTest, WrongServegenFilesHaveTheirSentence) {
  const std::string head = "client,start_s,requests_per_s,cv,distribution,param1,param2\n";
  const auto said = [&](const std::string& rows, const std::string& numbers = "") {
    return refusal({.spec = "servegen:" + numbers + file("r.csv", head + rows), .seconds = 600});
  };
  const std::string good = "1,0,2,1,Gamma,1,1\n";
  EXPECT_EQ(said(good), "");
  EXPECT_TRUE(holds(said(good + "1,300,2,1,Gamma,1,1\n"), "r.csv:3: the column start_s holds '300'"));
  EXPECT_TRUE(holds(said("1,0,2,1,Pareto,1,1\n"), "which is not Gamma or Weibull"));
  EXPECT_TRUE(holds(said("1,0,2,1,Gamma,0,1\n"), "the column param1 holds '0', which is not a number from 0.001"));
  EXPECT_TRUE(holds(said("1,0,nan,1,Gamma,1,1\n"), "requests_per_s holds 'nan'"));
  EXPECT_TRUE(holds(said("1.5,0,2,1,Gamma,1,1\n"), "client holds '1.5', which is not a whole number"));
  EXPECT_TRUE(holds(said(good, "5:2:"), "only 1 clients send requests in that time"));
  EXPECT_TRUE(holds(said(good, "5:1:700:"), "START is 700; it must be from 0 to 599"));
  EXPECT_TRUE(holds(said(good, "5:1:100:"), "the file ends at 600 seconds, before the workload does at 700"));
  EXPECT_TRUE(holds(refusal({.spec = "servegen:" + file("x.csv", "client,start_s\n1,2\n"), .seconds = 5}),
                    "x.csv:1: there is no column requests_per_s. The columns are client, start_s."));
  EXPECT_TRUE(holds(refusal({.spec = "servegen:" + path("r.csv")}), "state the seconds or the count"));
}

}  // namespace
}  // namespace loralei

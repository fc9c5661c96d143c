// SPDX-License-Identifier: Apache-2.0
#include "sched/size_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

double within(const std::vector<double>& sorted, size_t begin, size_t end) {
  double mean = 0, sum = 0;
  for (size_t i = begin; i < end; ++i) mean += sorted[i] / static_cast<double>(end - begin);
  for (size_t i = begin; i < end; ++i) sum += (sorted[i] - mean) * (sorted[i] - mean);
  return sum;
}

// Every way to cut the numbers into so many groups.
double brute_force(const std::vector<double>& sorted, size_t begin, int groups) {
  if (groups == 1) return within(sorted, begin, sorted.size());
  double best = std::numeric_limits<double>::infinity();
  for (size_t end = begin + 1; end + static_cast<size_t>(groups) - 1 <= sorted.size(); ++end)
    best = std::min(best, within(sorted, begin, end) + brute_force(sorted, end, groups - 1));
  return best;
}

std::vector<double> some_numbers(Prng& random, size_t count) {
  std::vector<double> numbers;
  const uint64_t kind = random.below(4);
  for (size_t i = 0; i < count; ++i) {
    double number = static_cast<double>(random.below(20));
    if (kind == 1) number = std::exp(4 * random.uniform());
    if (kind == 2) number = 1e6 + random.uniform();
    if (kind == 3) number = static_cast<double>(random.below(3)) * 100 + random.uniform();
    numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

TEST(SizeGroups, AreTheBestOfAllThatCouldBe) {
  Prng random(20261128);
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const auto numbers = some_numbers(random, 1 + random.below(14));
    for (int groups = 1; groups <= kSizeGroupsMax; ++groups) {
      const SizeGroups found = group_sizes(numbers, groups);
      ASSERT_LE(found.count(), groups);
      ASSERT_TRUE(std::is_sorted(found.centres.begin(), found.centres.end()));
      ASSERT_EQ(found.borders.size() + 1, found.centres.size());
      const double best = brute_force(numbers, 0, found.count());
      ASSERT_NEAR(found.within, best, 1e-6 * (1 + best));
      ASSERT_TRUE(found.count() == groups || found.within < 1e-6) << "all numbers are centres";
      // Every number belongs to the nearest centre.
      double nearest = 0;
      for (const double number : numbers) {
        const double distance = number - found.centres[static_cast<size_t>(found.of(number))];
        nearest += distance * distance;
      }
      ASSERT_NEAR(nearest, best, 1e-6 * (1 + best));
    }
  }
}

TEST(SizeGroups, AreAsManyAsTheSizesAskFor) {
  Prng random(7);
  const auto numbers = [&](const std::vector<double>& centres, double spread, size_t each) {
    std::vector<double> all;
    for (const double centre : centres)
      for (size_t i = 0; i < each; ++i) all.push_back(centre + spread * (random.uniform() - 0.5));
    std::sort(all.begin(), all.end());
    return all;
  };
  EXPECT_EQ(choose_size_groups({}).count(), 1);
  EXPECT_EQ(choose_size_groups(numbers({5}, 0, 10)).count(), 1);
  EXPECT_EQ(choose_size_groups(numbers({5}, 1, 100)).count(), 1) << "alike: 6 % around their mean";
  EXPECT_EQ(choose_size_groups(numbers({1, 10}, 0.5, 100)).count(), 2);
  EXPECT_EQ(choose_size_groups(numbers({1, 10, 30}, 0.5, 100)).count(), 3);
  EXPECT_EQ(choose_size_groups(numbers({1, 10, 30, 60, 100}, 0.5, 100)).count(), 4) << "no more than four";
  EXPECT_EQ(choose_size_groups(numbers({1, 10, 30, 60}, 0.5, 100), 2).count(), 2);
  EXPECT_EQ(choose_size_groups(numbers({5}, 10, 1000)).count(), 4) << "evenly: three leave a ninth";
  // One that is very large does not have a queue of its own.
  auto one_giant = numbers({5}, 10, 1000);
  one_giant.push_back(1e6);
  EXPECT_EQ(choose_size_groups(one_giant).count(), 1);
}

TEST(SizeGroups, ABorderLiesBetweenTwoCentres) {
  const std::vector<double> numbers = {1, 2, 3, 11, 12, 13};
  const SizeGroups groups = group_sizes(numbers, 2);
  ASSERT_EQ(groups.centres, (std::vector<double>{2, 12}));
  ASSERT_EQ(groups.borders, std::vector<double>{7});
  EXPECT_EQ(groups.of(0), 0);
  EXPECT_EQ(groups.of(6.9), 0);
  EXPECT_EQ(groups.of(7), 1);
  EXPECT_EQ(groups.of(1e9), 1);
}

}  // namespace
}  // namespace loralei

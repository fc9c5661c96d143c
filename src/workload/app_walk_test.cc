// SPDX-License-Identifier: Apache-2.0
// Which application follows which: tables, and walks over them.
#include "workload/app_walk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "workload/workload_test_util.h"

namespace loralei {
namespace {

using AppWalkTest = WorkloadFiles;

std::vector<size_t> walked(const AppChances& chances, size_t owned, uint64_t seed, size_t steps) {
  AppWalk walk(chances, owned, seed);
  std::vector<size_t> apps;
  for (size_t i = 0; i < steps; ++i) apps.push_back(walk.next());
  return apps;
}

TEST_F(AppWalkTest, ATableOfWeightsIsWalkedByItsShares) {
  // Lines that do not sum to 1, one with the ends of lines of another system.
  const auto chances = AppChances::read(file("three.csv", "0,3,1\r\n0.5,0.5,0\n\n2,1,1e-3\n"));
  ASSERT_TRUE(chances.ok()) << chances.error().message;
  ASSERT_EQ(chances->apps(), 3u);
  EXPECT_EQ(chances->weight(0, 1), 3);
  EXPECT_EQ(chances->weight(2, 2), 1e-3);
  // Whoever owns all of them: numbers among the owned are places; shares tell who is who.
  constexpr size_t kSteps = 60'000;
  const std::vector<size_t> apps = walked(*chances, 3, 5, kSteps);
  std::map<std::pair<size_t, size_t>, double> pairs;
  std::map<size_t, double> from;
  for (size_t i = 1; i < apps.size(); ++i) {
    ++pairs[{apps[i - 1], apps[i]}];
    ++from[apps[i - 1]];
  }
  std::multiset<int> percents, expected = {75, 25, 50, 50, 67, 33};
  for (const auto& [pair, count] : pairs) {
    const int percent = static_cast<int>(std::lround(100 * count / from[pair.first]));
    if (percent > 0) percents.insert(percent);
  }
  ASSERT_EQ(percents.size(), expected.size());
  for (auto one = percents.begin(), other = expected.begin(); one != percents.end(); ++one, ++other)
    EXPECT_NEAR(*one, *other, 2);
}

TEST_F(AppWalkTest, AnOwnerStaysAmongFewAndASeedWalksAgain) {
  const AppChances chances = AppChances::drawn(1);
  ASSERT_EQ(chances.apps(), 181u);
  for (const size_t owned : {size_t{1}, size_t{7}, size_t{181}, size_t{500}}) {
    const std::vector<size_t> apps = walked(chances, owned, 3, 2000);
    const std::set<size_t> used(apps.begin(), apps.end());
    EXPECT_LT(*used.rbegin(), std::min(owned, chances.apps()));
    EXPECT_EQ(apps, walked(chances, owned, 3, 2000));
    EXPECT_EQ(apps == walked(chances, owned, 4, 2000), owned == 1);
  }
  const std::vector<size_t> of_seven = walked(chances, 7, 3, 2000);
  EXPECT_EQ(std::set<size_t>(of_seven.begin(), of_seven.end()).size(), 7u);
  size_t same = 0;
  const std::vector<size_t> apps = walked(chances, 20, 9, 10'000);
  for (size_t i = 1; i < apps.size(); ++i) same += apps[i] == apps[i - 1] ? 1 : 0;
  EXPECT_GT(same, 3'000u);  // a good third, and more as most of what follows is not owned
  EXPECT_LT(same, 8'000u);
}

// Who is followed by nobody he owns goes on to any of them; who is never met is taken by
// his number.
TEST_F(AppWalkTest, ApplicationsThatLeadNowhereHoldNobodyUp) {
  const auto chances = AppChances::read(file("ends.csv", "1,0,0,0\n0,1,0,0\n0,0,1,0\n0,0,0,1\n"));
  ASSERT_TRUE(chances.ok());
  const std::vector<size_t> apps = walked(*chances, 3, 2, 100);
  EXPECT_EQ(std::set<size_t>(apps.begin(), apps.end()).size(), 1u);
  const auto out = AppChances::read(file("out.csv", "0,0,1\n0,0,1\n1,0,0\n"));
  ASSERT_TRUE(out.ok());
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const size_t app : walked(*out, 2, seed, 50)) EXPECT_LT(app, 2u);
  }
}

TEST_F(AppWalkTest, EachWrongLineHasItsSentence) {
  const auto refused = [&](const std::string& text) {
    const auto chances = AppChances::read(file("wrong.csv", text));
    return chances.ok() ? std::string() : chances.error().message;
  };
  EXPECT_TRUE(holds(refused(""), "the file holds no lines of numbers"));
  EXPECT_TRUE(holds(refused("1,2\n3,x\n"), "wrong.csv:2: 'x' is not a number"));
  EXPECT_TRUE(holds(refused("1,2\n3,-1\n"), "wrong.csv:2: '-1' is not a number"));
  EXPECT_TRUE(holds(refused("1,nan\n3,1\n"), "wrong.csv:1: 'nan' is not a number"));
  EXPECT_TRUE(holds(refused("1,1e300\n3,1\n"), "wrong.csv:1: '1e300' is not a number"));
  EXPECT_TRUE(holds(refused("1,2\n3\n"), "wrong.csv:2: the line has 1 numbers, and the first one 2"));
  EXPECT_TRUE(holds(refused("1,2\n0,0\n"), "wrong.csv:2: the line holds nothing but zeros"));
  EXPECT_TRUE(holds(refused("1,2\n"), "1 lines of 2 numbers are not a table"));
  EXPECT_TRUE(holds(refused("1\n2\n"), "2 lines of 1 numbers are not a table"));
  std::string wide = "1";
  for (size_t i = 0; i < AppChances::kAppsMost; ++i) wide += ",1";
  EXPECT_TRUE(holds(refused(wide + "\n"), "more than 4096 applications"));
  EXPECT_TRUE(holds(AppChances::read(path("absent.csv")).error().message, "absent.csv"));
}

TEST_F(AppWalkTest, NoBytesCrashTheReader) {
  const uint64_t seed = 77;
  Prng random(seed);
  SCOPED_TRACE(seed);
  const std::string whole = "0.1,0.9,0\n0.5,0.25,0.25\n0,1,3\n";
  for (int trial = 0; trial < 500; ++trial) {
    std::string text = whole.substr(0, random.below(whole.size() + 1));
    for (uint64_t i = random.below(4); i > 0 && !text.empty(); --i)
      text[random.below(text.size())] = static_cast<char>(random.below(256));
    const auto chances = AppChances::read(file("any.csv", text));
    if (chances.ok()) walked(*chances, 1 + random.below(5), random(), 20);
  }
}

TEST_F(AppWalkTest, ThePublishedTableIsRead) {
  const std::string path = shared("app_usage/deepapp_transition_181.csv");
  if (path.empty()) GTEST_SKIP() << "no shared data";
  const auto chances = AppChances::read(path);
  ASSERT_TRUE(chances.ok()) << chances.error().message;
  EXPECT_EQ(chances->apps(), 181u);
  EXPECT_NEAR(chances->weight(0, 0), 0.45477356, 1e-9);
  const std::vector<size_t> apps = walked(*chances, 20, 1, 1000);
  EXPECT_EQ(std::set<size_t>(apps.begin(), apps.end()).size(), 20u);
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "http/crowd.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace loralei {
namespace {

// Against a list that is searched whole.
TEST(Crowd, NamesTheFirstOfWhoeverHasMost) {
  struct One {
    std::string address;
    int64_t weight;
  };
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Crowd<One> crowd;
  std::vector<std::pair<std::unique_ptr<One>, Crowd<One>::Seat>> naive;  // in the order in which they joined
  for (int i = 0; i < 5000; ++i) {
    if (random() % 5 < (i % 1000 < 500 ? 3u : 2u)) {
      auto one = std::make_unique<One>(One{std::to_string(random() % 7), static_cast<int64_t>(1 + random() % 3)});
      const auto seat = crowd.join(one->address, one.get(), one->weight);
      naive.emplace_back(std::move(one), seat);
    } else if (!naive.empty()) {
      const auto leaves = naive.begin() + static_cast<std::ptrdiff_t>(random() % naive.size());
      crowd.leave(leaves->second);
      naive.erase(leaves);
    }
    ASSERT_EQ(crowd.empty(), naive.empty());
    if (naive.empty()) continue;
    std::map<std::string, int64_t> weights;
    for (const auto& [one, seat] : naive) weights[one->address] += one->weight;
    const One* expected = nullptr;
    for (const auto& [one, seat] : naive) {
      if (!expected || weights[one->address] > weights[expected->address]) expected = one.get();
    }
    ASSERT_EQ(crowd.first_of_most(), expected);
    ASSERT_EQ(crowd.most(), weights[expected->address]);
  }
}

}  // namespace
}  // namespace loralei

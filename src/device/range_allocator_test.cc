// SPDX-License-Identifier: Apache-2.0
#include "device/range_allocator.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kUnit = RangeAllocator::kAlign;

// The same by looking at every unit.
class NaiveRanges {
 public:
  explicit NaiveRanges(size_t units) : taken_(units, false) {}
  std::optional<int64_t> allocate(size_t units) {
    std::optional<size_t> best;
    size_t best_length = 0;
    for (size_t begin = 0; begin < taken_.size();) {
      size_t end = begin;
      while (end < taken_.size() && !taken_[end]) ++end;
      const size_t length = end - begin;
      if (length >= units && (!best || length < best_length)) {
        best = begin;
        best_length = length;
      }
      begin = end + 1;
    }
    if (!best) return std::nullopt;
    for (size_t i = 0; i < units; ++i) taken_[*best + i] = true;
    return static_cast<int64_t>(*best) * kUnit;
  }
  void release(int64_t offset, size_t units) {
    for (size_t i = 0; i < units; ++i) taken_[static_cast<size_t>(offset / kUnit) + i] = false;
  }

 private:
  std::vector<bool> taken_;
};

TEST(RangeAllocator, RandomTrafficIsThatOfTheNaiveOne) {
  const char* given = std::getenv("RANGE_ALLOCATOR_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 31;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Prng random(seed);
  for (int round = 0; round < 20; ++round) {
    const auto units = static_cast<int64_t>(1 + random.below(120));
    RangeAllocator ranges(units * kUnit + static_cast<int64_t>(random.below(kUnit)));
    NaiveRanges naive(static_cast<size_t>(units));
    struct Taken {
      int64_t offset;
      size_t units;
    };
    std::vector<Taken> taken;
    int refused = 0;
    for (int step = 0; step < 600; ++step) {
      if (taken.empty() || random.below(9) < 5) {
        const auto bytes = static_cast<int64_t>(1 + random.below(static_cast<uint64_t>(kUnit) * 20));
        const auto wanted = static_cast<size_t>((bytes + kUnit - 1) / kUnit);
        const auto offset = ranges.allocate(bytes);
        ASSERT_EQ(offset, naive.allocate(wanted)) << "round " << round << " step " << step;
        if (offset) taken.push_back({*offset, wanted});
        refused += offset ? 0 : 1;
      } else {
        const size_t index = random.below(taken.size());
        ranges.release(taken[index].offset);
        naive.release(taken[index].offset, taken[index].units);
        taken.erase(taken.begin() + static_cast<int64_t>(index));
      }
      ranges.check();
      int64_t bytes = 0;
      for (const Taken& range : taken) bytes += static_cast<int64_t>(range.units) * kUnit;
      ASSERT_EQ(ranges.taken_bytes(), bytes);
      ASSERT_EQ(ranges.free_bytes(), units * kUnit - bytes);
    }
    EXPECT_GT(refused, 0);
    for (const Taken& range : taken) ranges.release(range.offset);
    EXPECT_EQ(ranges.allocate(units * kUnit), 0) << "the free ranges have not grown together again";
  }
}

TEST(RangeAllocator, OfNothingGivesNothing) {
  RangeAllocator none;
  EXPECT_FALSE(none.allocate(1));
  EXPECT_EQ(none.size_bytes(), 0);
  RangeAllocator less(kUnit - 1);
  EXPECT_FALSE(less.allocate(1));
  none.check();
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "sched/waiting_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"
#include "sched/admission.h"

namespace loralei {
namespace {

constexpr int64_t kPatience = 1000;

Waiting request(uint64_t order, int64_t since_ns, int64_t deadline_ns = kNoDeadline, int64_t needs_ns = 10) {
  Waiting waiting{.id = SeqId{order}, .order = order, .rows = 1};
  waiting.since_ns = since_ns;
  waiting.until_ns = since_ns + kPatience;
  waiting.deadline_ns = deadline_ns;
  if (deadline_ns != kNoDeadline) waiting.latest_ns = deadline_ns - needs_ns;
  return waiting;
}

uint64_t urgent(const WaitingLine& line, int64_t now_ns, int64_t gap_ns = 0) {
  const Waiting* const found = line.urgent(now_ns, gap_ns);
  return found == nullptr ? 0 : found->order;
}

TEST(WaitingLine, WhoseTurnComesInTimeWaitsForIt) {
  WaitingLine line;
  line.put(request(1, 0));
  line.put(request(2, 100, 400));
  line.check();
  EXPECT_EQ(urgent(line, 120), 0u) << "the first has waited 120: so the second is asked at about 220";
  EXPECT_EQ(urgent(line, 289), 0u);
  EXPECT_EQ(urgent(line, 239, 50), 0u);
  EXPECT_EQ(urgent(line, 240, 50), 2u) << "else it would be asked 50 later";
  EXPECT_EQ(urgent(line, 290), 2u) << "its turn would come at 390, and it needs 10";
}

TEST(WaitingLine, ADeadlineThatHasPassedIsNone) {
  WaitingLine line;
  line.put(request(1, 0));
  line.put(request(2, 10, 400));
  EXPECT_EQ(urgent(line, 400), 2u);
  EXPECT_EQ(urgent(line, 401), 0u);
}

TEST(WaitingLine, OfSeveralTheEarliestDeadlineIsFirst) {
  WaitingLine line;
  line.put(request(1, 0));
  line.put(request(2, 10, 700));
  line.put(request(3, 20, 500));
  EXPECT_EQ(urgent(line, 490), 3u);
  line.take_out(request(3, 20, 500));
  EXPECT_EQ(urgent(line, 690), 2u);
  line.check();
}

TEST(WaitingLine, NobodyIsPassedOnceItHasWaitedItsWantedTime) {
  WaitingLine line;
  line.put(request(1, 0));
  line.put(request(2, 900, 1200));
  EXPECT_EQ(urgent(line, kPatience - 1), 2u);
  EXPECT_EQ(urgent(line, kPatience), 0u);
  line.take_out(request(1, 0));
  EXPECT_EQ(urgent(line, 1195), 2u) << "it is the first by itself, too";
}

// One is admitted every kServiceNs, and more come than that, most of them with deadlines
// that they would miss. Nobody waits longer than its wanted time and what those take that
// were before it.
TEST(WaitingLine, WithRandomDeadlinesNobodyStarves) {
  constexpr int64_t kServiceNs = 10;
  int64_t passes = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    Admission admission;
    std::vector<Waiting> waiting;  // by age
    std::vector<int64_t> before;   // beside it: how many were before it when it came
    uint64_t order = 0;
    for (int64_t now_ns = 0; now_ns < 40'000; now_ns += kServiceNs) {
      for (auto count = random.below(now_ns < 20'000 ? 4 : 1); count > 0; --count) {
        const bool wants = random.below(4) != 0;
        waiting.push_back(request(++order, now_ns,
                                  wants ? now_ns + 1 + static_cast<int64_t>(random.below(300)) : kNoDeadline,
                                  static_cast<int64_t>(random.below(20))));
        before.push_back(static_cast<int64_t>(waiting.size()) - 1);
        admission.arrive(waiting.back());
      }
      if (waiting.empty()) continue;
      admission.begin({.queues = {}, .now_ns = now_ns});
      const auto id = admission.next();
      ASSERT_TRUE(id);
      const auto found =
          std::find_if(waiting.begin(), waiting.end(), [&](const Waiting& one) { return one.id == *id; });
      const bool patient =
          std::all_of(waiting.begin(), waiting.end(), [&](const Waiting& one) { return now_ns < one.until_ns; });
      if (found != waiting.begin()) {
        ASSERT_TRUE(patient) << "somebody is passed that has waited its wanted time";
        ASSERT_GE(found->deadline_ns, now_ns);
        ++passes;
      }
      refused += patient ? 0 : 1;
      const auto index = found - waiting.begin();
      ASSERT_LE(now_ns - found->since_ns, kPatience + (before[static_cast<size_t>(index)] + 1) * kServiceNs);
      admission.leave(*found);
      waiting.erase(found);
      before.erase(before.begin() + index);
      if (now_ns % (16 * kServiceNs) == 0) admission.check();
    }
  }
  EXPECT_GT(passes, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "serve/text_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <random>
#include <string>

namespace loralei {
namespace {

constexpr int64_t kCheap = 1000, kDear = 100 << 10, kDearer = 1 << 20, kDearest = 8 << 20;  // classes of bytes

// What the jobs of a test say, in order.
class Journal {
 public:
  void add(const std::string& line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(line);
    changed_.notify_all();
  }
  bool wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return lines_.size() >= count; });
  }
  std::vector<std::string> lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

// A job that takes the only turn of a pool until it is let go, whatever comes.
class Holder {
 public:
  Holder(TextPool& pool, int64_t bytes) {
    EXPECT_TRUE(pool.try_run({bytes,
                              [this](Work&) {
                                began_.set_value();
                                let_go_.get_future().wait();
                              },
                              {}}));
    began_.get_future().wait();
  }
  void let_go() { let_go_.set_value(); }

 private:
  std::promise<void> began_, let_go_;
};

// The order by the rule as it is written: the least class, then who came first; at every
// fourth turn who came first.
std::vector<size_t> naive_order(std::vector<int64_t> bytes, size_t turns_before) {
  const auto class_of = [](int64_t size) {
    int result = 0;
    for (int64_t limit = 64 << 10; size >= limit; limit *= 4) ++result;
    return result;
  };
  std::vector<size_t> waiting, order;
  for (size_t i = 0; i < bytes.size(); ++i) waiting.push_back(i);
  for (size_t turn = turns_before; !waiting.empty(); ++turn) {
    auto next = waiting.begin();
    if (turn % 4 != 3)
      next = std::min_element(waiting.begin(), waiting.end(),
                              [&](size_t a, size_t b) { return class_of(bytes[a]) < class_of(bytes[b]); });
    order.push_back(*next);
    waiting.erase(next);
  }
  return order;
}

TEST(TextPool, CheapestFirstAndEveryFourthTurnToTheOldest) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    TextPool pool(1, 100, "text");
    Journal journal;
    Holder holder(pool, kCheap);
    std::vector<int64_t> bytes;
    // No job as cheap as to run beside a dear one.
    for (int i = 0; i < 25; ++i) bytes.push_back(int64_t{65 << 10} << std::uniform_int_distribution<int>(0, 8)(random));
    for (size_t i = 0; i < bytes.size(); ++i)
      ASSERT_TRUE(pool.try_run({bytes[i], [&journal, i](Work&) { journal.add(std::to_string(i)); }, {}}));
    holder.let_go();
    ASSERT_TRUE(journal.wait_for(bytes.size()));
    std::vector<std::string> wanted;
    for (const size_t i : naive_order(bytes, 1)) wanted.push_back(std::to_string(i));
    EXPECT_EQ(journal.lines(), wanted);
  }
}

// Spends until `done`; false when that does not come, or the work is stopped.
bool spend_until(Work& work, const std::atomic<bool>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!done && std::chrono::steady_clock::now() < end) {
    if (!work.spend(Work::kSlice)) return false;
  }
  return done;
}

TEST(TextPool, ADearJobGivesItsTurnToCheaperOnes) {
  TextPool pool(1, 100, "text");
  std::promise<void> began;
  std::atomic<bool> dear_ran{false}, cheap_ran{false};
  std::promise<bool> saw_both;
  ASSERT_TRUE(pool.try_run({kDearest,
                            [&](Work& work) {
                              began.set_value();
                              saw_both.set_value(spend_until(work, cheap_ran) && dear_ran);
                            },
                            {}}));
  began.get_future().wait();
  ASSERT_TRUE(pool.try_run({kDear, [&](Work&) { dear_ran = true; }, {}}));
  while (!dear_ran) std::this_thread::yield();
  ASSERT_TRUE(pool.try_run({kCheap, [&](Work&) { cheap_ran = true; }, {}}));
  EXPECT_TRUE(saw_both.get_future().get());
}

// Announced as cheap, and spends on: from some point on others go first.
TEST(TextPool, WhatHasSpentMuchIsDearHoweverItBegan) {
  TextPool pool(1, 100, "text");
  std::promise<void> began, may_go;
  std::atomic<bool> cheap_ran{false};
  std::promise<bool> saw;
  ASSERT_TRUE(pool.try_run({10,
                            [&](Work& work) {
                              began.set_value();
                              may_go.get_future().wait();
                              saw.set_value(spend_until(work, cheap_ran));
                            },
                            {}}));
  began.get_future().wait();
  ASSERT_TRUE(pool.try_run({kCheap, [&](Work&) { cheap_ran = true; }, {}}));
  EXPECT_FALSE(cheap_ran) << "one cheap job waits for another";
  may_go.set_value();
  EXPECT_TRUE(saw.get_future().get());
}

TEST(TextPool, DearWorkEndsUnderASteadyStreamOfCheaperWork) {
  TextPool pool(1, 100, "text");
  std::atomic<bool> stream_flows{false}, dear_ended{false};
  std::atomic<int> cheaper{0};
  constexpr int kSlices = 50, kMost = 20'000;
  std::promise<void> began;
  ASSERT_TRUE(pool.try_run({kDearest,
                            [&](Work& work) {
                              began.set_value();
                              EXPECT_TRUE(spend_until(work, stream_flows));
                              for (int i = 0; i < kSlices; ++i) work.spend(Work::kSlice + 1);
                              dear_ended = true;
                            },
                            {}}));
  began.get_future().wait();
  // Each puts two more into the queue before it ends, as long as there are few:
  // one waits always.
  std::function<void(Work&)> stream = [&](Work&) {
    if (dear_ended || ++cheaper > kMost) return;
    stream_flows = true;
    pool.try_run({kDear, stream, {}});
    if (cheaper < 3) pool.try_run({kDear, stream, {}});
  };
  ASSERT_TRUE(pool.try_run({kDear, stream, {}}));
  EXPECT_TRUE(pool.wait_idle(30'000));
  EXPECT_TRUE(dear_ended);
  EXPECT_LT(cheaper, 10 * kSlices) << "a quarter of the turns are the oldest job's";
}

TEST(TextPool, CheapWorkRunsBesideDearWorkThatGivesNoTurnAway) {
  TextPool pool(2, 100, "text");
  Holder one(pool, kDearest), two(pool, kDearest);
  std::promise<void> cheap_ran;
  ASSERT_TRUE(pool.try_run({kCheap, [&](Work&) { cheap_ran.set_value(); }, {}}));
  EXPECT_EQ(cheap_ran.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  std::atomic<bool> dear_ran{false};
  ASSERT_TRUE(pool.try_run({kDear, [&](Work&) { dear_ran = true; }, {}}));
  EXPECT_FALSE(pool.wait_idle(50));
  EXPECT_FALSE(dear_ran) << "the turn more is for cheap work";
  one.let_go();
  two.let_go();
  EXPECT_TRUE(pool.wait_idle(30'000));
}

TEST(TextPool, FewDearJobsAreBegunAtOnce) {
  TextPool pool(2, 100, "text");
  std::atomic<int> begun{0}, most{0}, ended{0};
  for (int i = 0; i < 40; ++i) {
    // Of all classes, so that the cheaper ones overtake those that have begun.
    ASSERT_TRUE(pool.try_run({kDearest >> (i % 6),
                              [&](Work& work) {
                                const int now = ++begun;
                                for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
                                }
                                for (int slice = 0; slice < 20; ++slice) work.spend(Work::kSlice + 1);
                                --begun;
                                ++ended;
                              },
                              {}}));
  }
  EXPECT_TRUE(pool.wait_idle(30'000));
  EXPECT_EQ(ended, 40);
  EXPECT_LE(most, 2 * TextPool::kPlaces / 2);
}

TEST(TextPool, TakesNoMoreThanItHoldsAndRunsWhatItTook) {
  auto pool = std::make_unique<TextPool>(1, 3, "text");
  Holder holder(*pool, kDearest);
  std::atomic<int> ran{0};
  const auto job = [&] { return TextJob{kDear, [&](Work&) { ++ran; }, {}}; };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(pool->try_run(job()));
  EXPECT_FALSE(pool->try_run(job()));
  std::thread stopping([&] { pool->stop(); });
  while (pool->try_run(job())) std::this_thread::yield();
  EXPECT_EQ(ran, 0);
  holder.let_go();
  stopping.join();
  EXPECT_EQ(ran, 3);
  EXPECT_FALSE(pool->try_run(job())) << "stopped";
}

TEST(TextPool, StopsWhatNobodyWantsAndAllOfItWhenCancelled) {
  TextPool pool(1, 100, "text");
  std::atomic<bool> wanted{true}, never{false};
  std::promise<void> began;
  std::promise<Error> end;
  ASSERT_TRUE(pool.try_run({kDear,
                            [&](Work& work) {
                              began.set_value();
                              EXPECT_FALSE(spend_until(work, never));
                              end.set_value(work.error());
                            },
                            [&] { return wanted.load(); }}));
  began.get_future().wait();
  wanted = false;
  EXPECT_EQ(end.get_future().get().code, ErrorCode::kCancelled);
  std::atomic<int> stopped{0};
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(pool.try_run({kDearer, [&](Work& work) { stopped += spend_until(work, never) ? 0 : 1; }, {}}));
  pool.cancel();
  EXPECT_TRUE(pool.wait_idle(30'000));
  EXPECT_EQ(stopped, 5) << "each has its own end";
}

TEST(TextPool, EveryJobRunsOnceWhoeverComesWhenever) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr int kSubmitters = 3, kJobs = 200;
  std::vector<std::atomic<int>> ran(kSubmitters * kJobs);
  std::vector<int> taken(ran.size(), 0);
  {
    TextPool pool(2, 50, "text");
    std::vector<std::thread> submitters;
    for (int submitter = 0; submitter < kSubmitters; ++submitter) {
      submitters.emplace_back([&, submitter] {
        std::mt19937 random(seed + static_cast<unsigned>(submitter));
        for (int i = 0; i < kJobs; ++i) {
          const int index = submitter * kJobs + i;
          const int slices = std::uniform_int_distribution<int>(0, 12)(random);
          taken[index] = pool.try_run({int64_t{1} << std::uniform_int_distribution<int>(0, 23)(random),
                                       [&ran, index, slices](Work& work) {
                                         for (int slice = 0; slice < slices; ++slice) work.spend(Work::kSlice + 1);
                                         ++ran[index];
                                       },
                                       {}})
                             ? 1
                             : 0;
          if (i % 7 == 0) std::this_thread::yield();
        }
      });
    }
    for (std::thread& submitter : submitters) submitter.join();
  }
  for (size_t i = 0; i < ran.size(); ++i) ASSERT_EQ(ran[i], taken[i]) << i;
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "sched/virtual_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/prng.h"
#include "sched/admission.h"

namespace loralei {
namespace {

constexpr ClientId kA{1}, kB{2}, kC{3};

TEST(VirtualTokens, ATokenOfAnAnswerCountsAsTwoOfAPrompt) {
  VirtualTokens tokens;
  tokens.came(kA);
  EXPECT_EQ(tokens.begin_wait(kA), 0);
  EXPECT_EQ(tokens.serve(kA, 100, 0), 100);
  EXPECT_EQ(tokens.serve(kA, 0, 1), 102);
  tokens.check();
}

TEST(VirtualTokens, WhoWasIdleIsLiftedToTheLeastOfThoseThatWait) {
  VirtualTokens tokens;
  for (const ClientId client : {kA, kB, kC}) tokens.came(client);
  (void)tokens.begin_wait(kA);
  (void)tokens.begin_wait(kB);
  (void)tokens.serve(kA, 500, 0);
  (void)tokens.serve(kB, 300, 0);
  EXPECT_EQ(tokens.begin_wait(kC), 300);
  tokens.end_wait(kC);
  (void)tokens.serve(kC, 900, 0);
  EXPECT_EQ(tokens.begin_wait(kC), 1200) << "who has had more keeps it";
  tokens.check();
}

TEST(VirtualTokens, WhereNobodyWaitsTheLastOneThatDidIsTheMeasure) {
  VirtualTokens tokens;
  tokens.came(kA);
  (void)tokens.begin_wait(kA);
  tokens.end_wait(kA);
  (void)tokens.serve(kA, 70, 5);
  tokens.came(kB);
  EXPECT_EQ(tokens.begin_wait(kB), 80);
  tokens.end_wait(kB);
  tokens.left(kB);
  tokens.left(kA);
  EXPECT_EQ(tokens.known(), 0u);
  tokens.came(kC);
  EXPECT_EQ(tokens.begin_wait(kC), 80) << "though it was forgotten";
  tokens.check();
}

TEST(VirtualTokens, WhoIsGoneIsForgottenUnlessItIsAhead) {
  VirtualTokens tokens;
  tokens.came(kA);
  (void)tokens.begin_wait(kA);
  tokens.came(kB);
  (void)tokens.begin_wait(kB);
  tokens.end_wait(kB);
  (void)tokens.serve(kB, 50, 0);
  tokens.left(kB);
  EXPECT_EQ(tokens.known(), 2u) << "it has had more than those that wait";
  tokens.came(kB);
  EXPECT_EQ(tokens.begin_wait(kB), 50);
  tokens.end_wait(kB);
  tokens.left(kB);
  (void)tokens.serve(kA, 60, 0);
  tokens.came(kC);
  tokens.left(kC);
  EXPECT_EQ(tokens.known(), 1u) << "it would be lifted beyond that";
  tokens.check();
}

TEST(VirtualTokens, OfThoseThatAreGoneABoundedNumberIsRemembered) {
  VirtualTokens tokens;
  tokens.came(kA);
  (void)tokens.begin_wait(kA);
  for (uint64_t id = 10; id < 20 + VirtualTokens::kGoneMax; ++id) {
    tokens.came(ClientId{id});
    (void)tokens.begin_wait(ClientId{id});
    tokens.end_wait(ClientId{id});
    (void)tokens.serve(ClientId{id}, static_cast<int64_t>(id), 0);
    tokens.left(ClientId{id});
  }
  EXPECT_EQ(tokens.known(), 1 + VirtualTokens::kGoneMax);
  tokens.check();
  tokens.came(ClientId{15});
  EXPECT_EQ(tokens.begin_wait(ClientId{15}), 0) << "the least ahead were forgotten";
  tokens.came(ClientId{25});
  EXPECT_EQ(tokens.begin_wait(ClientId{25}), 25);
  tokens.check();
}

// Against one that forgets nobody and searches from end to end.
TEST(VirtualTokens, AgreesWithANaiveTwin) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    VirtualTokens tokens;
    struct Twin {
      int64_t served = 0;
      int requests = 0, waiting = 0;
      bool begun = false;  // to wait, since it came: nobody is served before
    };
    std::map<uint64_t, Twin> twins;
    uint64_t last = 0;
    int64_t least_before = 0;
    const auto least = [&] {
      int64_t value = INT64_MAX;
      for (const auto& [id, twin] : twins)
        if (twin.waiting > 0) value = std::min(value, twin.served);
      if (value == INT64_MAX) value = last == 0 ? 0 : twins[last].served;
      return value;
    };
    for (int step = 0; step < 2000; ++step) {
      const uint64_t id = 1 + random.below(8);
      Twin& twin = twins[id];
      switch (random.below(6)) {
        case 0:
          tokens.came(ClientId{id});
          if (twin.requests++ == 0) twin.begun = false;
          break;
        case 1:
          if (twin.requests == 0 || (twin.requests == 1 && twin.waiting > 0)) break;
          tokens.left(ClientId{id});
          --twin.requests;
          break;
        case 2:
          if (twin.requests == 0) break;
          if (twin.waiting == 0) twin.served = std::max(twin.served, least());
          ++twin.waiting;
          twin.begun = true;
          ASSERT_EQ(tokens.begin_wait(ClientId{id}), twin.served);
          break;
        case 3:
          if (twin.waiting == 0) break;
          tokens.end_wait(ClientId{id});
          if (--twin.waiting == 0) last = id;
          break;
        default:
          if (twin.requests == 0 || !twin.begun) break;
          const auto input = static_cast<int64_t>(random.below(50)), output = static_cast<int64_t>(random.below(3));
          twin.served += input + 2 * output;
          ASSERT_EQ(tokens.serve(ClientId{id}, input, output), twin.served);
          break;
      }
      tokens.check();
      ASSERT_EQ(tokens.least(), least());
      ASSERT_GE(tokens.least(), least_before) << "it never falls";
      least_before = tokens.least();
    }
  }
}

// A server that runs kTogether tokens at most, a token of each running answer in a step,
// and asks clients by what they have had; prompts, answers and clients at random.
constexpr int64_t kTogether = 400, kPromptMost = 100, kAnswerMost = 60;

struct Job {
  Waiting waiting;
  int64_t prompt = 0, answer = 0, done = 0;
};

class FairServer {
 public:
  explicit FairServer(uint64_t seed) : random_(seed) {}

  void submit(ClientId client, int64_t prompt_most) {
    Job job{.prompt = 1 + static_cast<int64_t>(random_.below(static_cast<uint64_t>(prompt_most))),
            .answer = 1 + static_cast<int64_t>(random_.below(kAnswerMost))};
    job.waiting.id = SeqId{++last_};
    job.waiting.order = last_;
    job.waiting.rows = static_cast<int32_t>(job.prompt);
    job.waiting.client = client;
    tokens_.came(client);
    admission_.arrive(job.waiting, tokens_.begin_wait(client));
    ++waiting_[client];
    jobs_[last_] = job;
  }
  void step() {
    admission_.begin();
    while (const auto id = admission_.next()) {
      Job& job = jobs_.at(id->value);
      const ClientId client = job.waiting.client;
      if (used_ + job.prompt + job.answer > kTogether) {
        admission_.refused(Lack::kMemory);
        break;
      }
      used_ += job.prompt + job.answer;
      admission_.leave(job.waiting);
      tokens_.end_wait(client);
      --waiting_[client];
      serve(client, job.prompt, 0);
      running_.push_back(id->value);
    }
    for (size_t i = running_.size(); i-- > 0;) {
      Job& job = jobs_.at(running_[i]);
      serve(job.waiting.client, 0, 1);
      if (++job.done < job.answer) continue;
      used_ -= job.prompt + job.answer;
      tokens_.left(job.waiting.client);
      jobs_.erase(running_[i]);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    admission_.check();
    tokens_.check();
  }
  int waiting(ClientId client) { return waiting_[client]; }
  int64_t served(ClientId client) { return served_[client]; }

 private:
  void serve(ClientId client, int64_t input, int64_t output) {
    served_[client] += input + 2 * output;
    admission_.set_served(client, tokens_.serve(client, input, output));
  }

  Prng random_;
  Admission admission_;
  VirtualTokens tokens_;
  std::map<uint64_t, Job> jobs_;
  std::vector<uint64_t> running_;
  std::map<ClientId, int> waiting_;
  std::map<ClientId, int64_t> served_;
  int64_t used_ = 0;
  uint64_t last_ = 0;
};

// Theorem 4.4. A floods, B and C come and go, with requests of other sizes: over each
// stretch in which two of them wait all the time, what one gets more than the other stays
// within the bound.
TEST(VirtualTokens, TwoThatWaitAllTheTimeDifferByNoMoreThanTheBound) {
  constexpr int64_t kBound =
      2 * std::max(VirtualTokens::kInputWeight * kPromptMost, VirtualTokens::kOutputWeight * kTogether);
  int64_t widest = 0, stretches = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    FairServer server(seed + 1000);
    const std::map<ClientId, int64_t> prompts = {{kA, 10}, {kB, kPromptMost}, {kC, kPromptMost / 2}};
    struct Stretch {
      int64_t lowest = 0, highest = 0;  // of the difference
      bool lasts = false;
    };
    std::map<std::pair<ClientId, ClientId>, Stretch> pairs;
    std::map<ClientId, bool> on;
    for (int step = 0; step < 3000; ++step) {
      for (const auto& [client, most] : prompts) {
        if (random.below(200) == 0) on[client] = !on[client];
        const int wanted = client == kA ? 40 : on[client] ? 3 : 0;
        while (server.waiting(client) < wanted) server.submit(client, most);
      }
      server.step();
      for (const auto& [one, other] : {std::pair(kA, kB), std::pair(kA, kC), std::pair(kB, kC)}) {
        Stretch& stretch = pairs[{one, other}];
        const bool both = server.waiting(one) > 0 && server.waiting(other) > 0;
        const int64_t difference = server.served(one) - server.served(other);
        if (!both || !stretch.lasts) stretch = {difference, difference, both};
        stretch.lowest = std::min(stretch.lowest, difference);
        stretch.highest = std::max(stretch.highest, difference);
        ASSERT_LE(stretch.highest - stretch.lowest, kBound);
        widest = std::max(widest, stretch.highest - stretch.lowest);
        stretches += both ? 1 : 0;
      }
    }
  }
  EXPECT_GT(widest, kBound / 10);
  EXPECT_GT(stretches, 10'000);
}

}  // namespace
}  // namespace loralei

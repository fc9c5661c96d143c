// SPDX-License-Identifier: Apache-2.0
#include "serve/key_ledger.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

namespace loralei {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

NamedKey key_of(const std::string& name, int64_t requests = 0, int64_t tokens = 0, int64_t running = 0) {
  NamedKey key;
  key.name = name;
  key.requests_per_minute = requests;
  key.tokens_per_minute = tokens;
  key.max_running = running;
  return key;
}
std::string header(const HttpHeaders& headers, const std::string& name) {
  for (const auto& [one, value] : headers)
    if (one == name) return value;
  return "none";
}

class KeyLedgerTest : public testing::Test {
 protected:
  ManualClock clock;
  KeyLedger ledger{clock};
};

TEST_F(KeyLedgerTest, RequestsOfAMinute) {
  ledger.set_keys({key_of("a", 6), key_of("free")});
  for (int i = 0; i < 6; ++i) {
    const auto entry = ledger.enter("a");
    ASSERT_TRUE(entry.ticket) << "a minute's worth at once";
    EXPECT_EQ(header(entry.headers, "x-ratelimit-limit-requests"), "6");
    EXPECT_EQ(header(entry.headers, "x-ratelimit-remaining-requests"), std::to_string(5 - i));
    EXPECT_EQ(header(entry.headers, "x-ratelimit-reset-requests"),
              i == 5 ? "1m0s" : std::to_string(10 * (i + 1)) + "s");
    EXPECT_EQ(header(entry.headers, "x-ratelimit-limit-tokens"), "none");
  }
  const auto refused = ledger.enter("a");
  ASSERT_TRUE(refused.refusal);
  EXPECT_FALSE(refused.ticket);
  EXPECT_EQ(refused.refusal->error.status, 429);
  EXPECT_EQ(refused.refusal->error.code, "rate_limit_exceeded");
  EXPECT_EQ(header(refused.refusal->headers, "Retry-After"), "10");
  EXPECT_EQ(header(refused.headers, "x-ratelimit-remaining-requests"), "0");
  clock.advance_ns(10 * kSecond - 1000);
  EXPECT_FALSE(ledger.enter("a").ticket);
  clock.advance_ns(2000);
  EXPECT_TRUE(ledger.enter("a").ticket);
  EXPECT_FALSE(ledger.enter("a").ticket);
  clock.advance_ns(3600 * kSecond);
  int most = 0;
  while (ledger.enter("a").ticket) ++most;
  EXPECT_EQ(most, 6) << "an hour's quiet is no more than a minute's worth";
  EXPECT_TRUE(ledger.enter("free").headers.empty());
  EXPECT_FALSE(ledger.enter("nobody").ticket);
  EXPECT_FALSE(ledger.enter("nobody").refusal);
}

TEST_F(KeyLedgerTest, TokensAreTakenBeforeAndComeBackAfter) {
  ledger.set_keys({key_of("a", 0, 1000)});
  const auto first = ledger.enter("a").ticket;
  EXPECT_FALSE(first->take_tokens(100, 500, true));
  EXPECT_EQ(header(first->headers(), "x-ratelimit-remaining-tokens"), "400");
  const auto second = ledger.enter("a").ticket;
  const auto refused = second->take_tokens(100, 500, true);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error.status, 429);
  EXPECT_EQ(header(refused->headers, "Retry-After"), "12");
  EXPECT_NE(refused->error.message.find("400 are left"), std::string::npos) << refused->error.message;
  first->used(100, 50);
  first->used(100, 50);
  EXPECT_EQ(header(first->headers(), "x-ratelimit-remaining-tokens"), "850");
  EXPECT_FALSE(ledger.enter("a").ticket->take_tokens(100, 500, true)) << "and given up, it gives all back";
  EXPECT_EQ(header(first->headers(), "x-ratelimit-remaining-tokens"), "850");
  const auto never = ledger.enter("a").ticket->take_tokens(100, 901, true);
  ASSERT_TRUE(never);
  EXPECT_EQ(never->error.status, 413) << "waiting does not help";
  EXPECT_EQ(header(never->headers, "Retry-After"), "none");
}

TEST_F(KeyLedgerTest, WhatNobodyStatedIsAssumedAndTheRestADebt) {
  ledger.set_keys({key_of("a", 0, 6000), key_of("small", 0, 100)});
  auto ticket = ledger.enter("a").ticket;
  EXPECT_FALSE(ticket->take_tokens(10, 32'000, false));
  EXPECT_EQ(header(ticket->headers(), "x-ratelimit-remaining-tokens"), std::to_string(6000 - 10 - 1000));
  ticket->used(10, 7000);
  EXPECT_EQ(header(ticket->headers(), "x-ratelimit-remaining-tokens"), "0");
  EXPECT_TRUE(ledger.enter("a").ticket->take_tokens(1, 1, true)) << "a debt of 1,010";
  clock.advance_ns(10 * kSecond);
  EXPECT_TRUE(ledger.enter("a").ticket->take_tokens(1, 1, true));
  clock.advance_ns(kSecond);
  EXPECT_FALSE(ledger.enter("a").ticket->take_tokens(1, 1, true));
  EXPECT_FALSE(ledger.enter("small").ticket->take_tokens(50, 32'000, false)) << "no limit makes it impossible";
  EXPECT_TRUE(ledger.enter("small").ticket->take_tokens(101, 32'000, false)) << "but a prompt alone may be too much";
}

TEST_F(KeyLedgerTest, RequestsAtOnce) {
  ledger.set_keys({key_of("a", 0, 0, 2)});
  auto one = ledger.enter("a").ticket, two = ledger.enter("a").ticket;
  ASSERT_TRUE(one && two);
  const auto refused = ledger.enter("a");
  ASSERT_TRUE(refused.refusal);
  EXPECT_EQ(header(refused.refusal->headers, "Retry-After"), "1");
  one.reset();
  EXPECT_TRUE(ledger.enter("a").ticket);
  const KeyFigures figures = ledger.figures().at(0);
  EXPECT_EQ(figures.running, 1);
  EXPECT_EQ(figures.requests, 3);
  EXPECT_EQ(figures.refused[static_cast<size_t>(KeyLimit::kRunning)], 1);
}

TEST_F(KeyLedgerTest, AnotherFileKeepsTheAccountsOfItsNames) {
  ledger.set_keys({key_of("a", 10), key_of("b")});
  auto old = ledger.enter("a").ticket, gone = ledger.enter("b").ticket;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(ledger.enter("a").ticket);
  ledger.set_keys({key_of("a", 10), key_of("c")});
  EXPECT_EQ(header(ledger.enter("a").headers, "x-ratelimit-remaining-requests"), "3");
  ledger.set_keys({key_of("a", 2, 100), key_of("c")});
  EXPECT_EQ(header(ledger.enter("a").headers, "x-ratelimit-remaining-requests"), "1") << "less is at once less";
  EXPECT_FALSE(ledger.enter("b").ticket);
  old->used(3, 4);
  gone->used(1, 1);
  gone.reset();
  const auto figures = ledger.figures();
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[0].name, "a");
  EXPECT_EQ(figures[0].prompt_tokens + figures[0].output_tokens, 7);
}

TEST_F(KeyLedgerTest, AThousandNamesAreShown) {
  std::vector<NamedKey> keys;
  for (int i = 0; i < 1003; ++i) keys.push_back(key_of("k" + std::to_string(10'000 + i)));
  ledger.set_keys(keys);
  for (const NamedKey& key : keys) EXPECT_TRUE(ledger.enter(key.name).ticket);
  auto figures = ledger.figures();
  ASSERT_EQ(figures.size(), 1001u);
  EXPECT_EQ(figures.back().name, kOtherKeys);
  EXPECT_EQ(figures.back().requests, 3);
  keys.pop_back();
  ledger.set_keys(keys);
  EXPECT_EQ(ledger.figures().back().requests, 3) << "counters do not fall";
  keys.erase(keys.begin());
  keys.push_back(key_of("later"));
  ledger.set_keys(keys);
  EXPECT_TRUE(ledger.enter("later").ticket);
  figures = ledger.figures();
  EXPECT_EQ(figures.size(), 1001u);
  EXPECT_EQ(figures[999].name, "later") << "a place that became free";
}

// Whatever comes at once, nobody gets more than there is, and all comes back.
TEST_F(KeyLedgerTest, ManyThreads) {
  ledger.set_keys({key_of("a", 0, 10'000, 8)});
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      for (int i = 0; i < 2000; ++i) {
        const auto entry = ledger.enter("a");
        if (!entry.ticket) continue;
        (void)entry.ticket->take_tokens(static_cast<int64_t>(random() % 3000), static_cast<int64_t>(random() % 3000),
                                        true);
        if (t == 0 && i % 50 == 0) ledger.set_keys({key_of("a", 0, 10'000, 8), key_of("b" + std::to_string(i))});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto figures = ledger.figures();
  EXPECT_EQ(figures.front().running, 0);
  EXPECT_EQ(header(ledger.enter("a").headers, "x-ratelimit-remaining-tokens"), "10000");
}

}  // namespace
}  // namespace loralei

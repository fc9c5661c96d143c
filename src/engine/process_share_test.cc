// SPDX-License-Identifier: Apache-2.0
#include "engine/process_share.h"

#include <gtest/gtest.h>

#include <string>

#include "base/log_test_util.h"

namespace loralei {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(ProcessShare, FollowsWhatNoOtherGrantCovers) {
  Ledger ledger(1000);
  Grant kv = *ledger.try_grant(MemoryUse::kKv, 300), adapters = *ledger.try_grant(MemoryUse::kAdapters, 200);
  ProcessShare share(ledger, *ledger.try_grant(MemoryUse::kOther, 100));
  CollectingLog log;
  int64_t asked = -1, now = 0;
  const GiveWay give_way = [&](int64_t bytes) {
    asked = bytes;
    adapters.shrink_to(std::max<int64_t>(adapters.bytes() - bytes, 150));  // the rest is in use
  };
  const auto other = [&] { return ledger.used_bytes(MemoryUse::kOther); };
  const auto follow = [&](int64_t bytes) { return share.follow(bytes, now += kSecond, give_way, log); };
  EXPECT_FALSE(follow(600));
  EXPECT_EQ(other(), 100);
  EXPECT_TRUE(follow(750));
  EXPECT_EQ(other(), 250);
  EXPECT_TRUE(follow(700));
  EXPECT_EQ(other(), 200) << "what has gone by is given back";
  EXPECT_FALSE(follow(100));
  EXPECT_EQ(other(), 100) << "never less than at start";
  EXPECT_EQ(asked, -1);
  // With idle adapters their memory goes, too: 1030 less the 30 of them.
  EXPECT_TRUE(follow(1030));
  EXPECT_EQ(asked, 30);
  EXPECT_EQ(ledger.used_bytes(), 1000);
  EXPECT_EQ(other(), 530);
  EXPECT_TRUE(log.lines().empty());
  // More than there is: told once, until it fits again.
  for (int again = 0; again < 2; ++again) follow(1100);
  EXPECT_EQ(ledger.used_bytes(), 1000);
  EXPECT_EQ(other(), 550);
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_NE(log.lines()[0].find("--memory-budget"), std::string::npos) << log.lines()[0];
  ASSERT_TRUE(ledger.set_budget(2000));
  follow(1200);
  EXPECT_EQ(other(), 750);
  EXPECT_EQ(log.lines().size(), 1u);
  ledger.check();
}

TEST(ProcessShare, WhatCameLatelyIsALoanAndWhatStaysIsNot) {
  Ledger ledger(1000);
  ProcessShare share(ledger, *ledger.try_grant(MemoryUse::kOther, 100));
  NullLogSink log;
  const GiveWay none = [](int64_t) {};
  int64_t now = 0;
  const auto lent = [&] {
    return ledger.available_after_loans_bytes(MemoryUse::kAdapters) - ledger.available_bytes(MemoryUse::kAdapters);
  };
  share.follow(100, now, none, log);
  for (int second = 1; second <= 20; ++second) share.follow(900, now += kSecond, none, log);
  EXPECT_EQ(ledger.available_bytes(MemoryUse::kAdapters), 100);
  EXPECT_EQ(lent(), 800) << "an adapter waits for it and is not refused";
  share.follow(300, now += kSecond, none, log);
  EXPECT_EQ(lent(), 200);
  for (int second = 0; second <= 30; ++second) share.follow(400, now += kSecond, none, log);
  EXPECT_EQ(lent(), 0) << "after half a minute it is the process's own";
  EXPECT_EQ(ledger.used_bytes(), 400);
  share.follow(150, now += kSecond, none, log);
  EXPECT_EQ(ledger.used_bytes(), 150);
  ledger.check();
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "engine/process_share.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace loralei {
namespace {

class Lines final : public LogSink {
 public:
  void log(LogLevel, std::string_view message) override { lines.emplace_back(message); }
  std::vector<std::string> lines;
};

TEST(ProcessShare, FollowsWhatNoOtherGrantCovers) {
  Ledger ledger(1000);
  Grant kv = *ledger.try_grant(MemoryUse::kKv, 300), adapters = *ledger.try_grant(MemoryUse::kAdapters, 200);
  ProcessShare share(ledger, *ledger.try_grant(MemoryUse::kOther, 100));
  Lines log;
  int64_t kept = -1;
  const ShrinkAdapters shrink = [&](int64_t bytes) {
    kept = bytes;
    adapters.shrink_to(std::max<int64_t>(bytes, 150));  // the rest is in use
  };
  const auto other = [&] { return ledger.used_bytes(MemoryUse::kOther); };
  share.follow(600, shrink, log);
  EXPECT_EQ(other(), 100);
  share.follow(750, shrink, log);
  EXPECT_EQ(other(), 250);
  share.follow(700, shrink, log);
  EXPECT_EQ(other(), 250) << "it never shrinks";
  EXPECT_EQ(kept, -1);
  // With idle adapters their memory goes, too: 1030 less the 30 of them.
  share.follow(1030, shrink, log);
  EXPECT_EQ(kept, 170);
  EXPECT_EQ(ledger.used_bytes(), 1000);
  EXPECT_EQ(other(), 530);
  EXPECT_TRUE(log.lines.empty());
  // More than there is: told once, until it fits again.
  for (int again = 0; again < 2; ++again) share.follow(1100, shrink, log);
  EXPECT_EQ(ledger.used_bytes(), 1000);
  EXPECT_EQ(other(), 550);
  ASSERT_EQ(log.lines.size(), 1u);
  EXPECT_NE(log.lines[0].find("--memory-budget"), std::string::npos) << log.lines[0];
  ASSERT_TRUE(ledger.set_budget(2000));
  share.follow(1200, shrink, log);
  EXPECT_EQ(other(), 750);
  EXPECT_EQ(log.lines.size(), 1u);
}

}  // namespace
}  // namespace loralei

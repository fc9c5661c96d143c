// SPDX-License-Identifier: Apache-2.0
#include "serve/adapter_checks.h"

#include <gtest/gtest.h>

#include "serve/server_test_util.h"

namespace loralei {
namespace {

std::vector<CatalogueEntry> named(std::initializer_list<const char*> names) {
  std::vector<CatalogueEntry> entries;
  for (const char* name : names)
    entries.push_back({name, std::string("/") + name, "", AdapterOrigin::kDirectory, 0, {}, nullptr});
  return entries;
}

constexpr int64_t kLongMs = 30'000;

TEST(AdapterChecks, EveryAdapterIsLookedAtOnceAndBrokenOnesAreTold) {
  FakeEngine engine;
  CollectingLog log;
  SteadyClock clock;
  AdapterChecks checks(engine, clock, log);
  EXPECT_TRUE(checks.wait(0).complete()) << "nothing was begun";
  std::vector<CatalogueEntry> entries = named({"broken"});
  for (int i = 0; i < 100; ++i)
    entries.push_back({"a" + std::to_string(i), "/a", "", AdapterOrigin::kHttp, 0, {}, nullptr});
  checks.begin(entries);
  const AdapterChecks::State state = checks.wait(kLongMs);
  EXPECT_TRUE(state.complete());
  EXPECT_EQ(state.all, 101u);
  EXPECT_EQ(state.broken, 1u);
  ASSERT_EQ(state.named.size(), 1u);
  EXPECT_EQ(state.named[0].name, "broken");
  EXPECT_EQ(state.named[0].sentence, "The file is broken.");
  checks.stop();
  EXPECT_EQ(engine.checks.size(), 101u);
  for (const auto& [name, count] : engine.checks) EXPECT_EQ(count, 1) << name;
  EXPECT_NE(log.text().find("adapter broken adapter=broken: The file is broken."), std::string::npos) << log.text();
  EXPECT_NE(log.text().find("adapters checked adapters=101 broken=1 seconds="), std::string::npos) << log.text();
}

TEST(AdapterChecks, TheFirstTwentyAreNamedAndTheRestCounted) {
  for (int round = 0; round < 300; ++round) {  // whoever ends last may have come too late for any of them
    FakeEngine engine;
    CollectingLog log;
    SteadyClock clock;
    AdapterChecks checks(engine, clock, log);
    std::vector<CatalogueEntry> entries;
    for (int i = 0; i < 50; ++i) {
      entries.push_back({"a" + std::to_string(i), "/broken", "", AdapterOrigin::kDirectory, 0, {}, nullptr});
    }
    checks.begin(entries);
    const AdapterChecks::State state = checks.wait(kLongMs);
    checks.stop();
    EXPECT_EQ(state.broken, 50u);
    EXPECT_EQ(state.named.size(), AdapterChecks::kNamed);
    size_t lines = 0;
    const std::string text = log.text();
    for (size_t at = text.find("adapter broken"); at != std::string::npos; at = text.find("adapter broken", at + 1))
      ++lines;
    EXPECT_EQ(lines, AdapterChecks::kNamed);
    EXPECT_NE(text.find("30 more are broken than are named here"), std::string::npos) << text;
  }
}

TEST(AdapterChecks, WhatIsBegunLaterIsItsOwnCount) {
  FakeEngine engine;
  CollectingLog log;
  SteadyClock clock;
  AdapterChecks checks(engine, clock, log);
  for (int round = 0; round < 200; ++round) {
    checks.begin(named({"broken", "b", "c"}));
    const AdapterChecks::State state = checks.wait(kLongMs);
    ASSERT_TRUE(state.complete()) << round;
    ASSERT_EQ(state.checked, state.all) << round;
    ASSERT_GE(state.broken, 1u) << round;
  }
  checks.begin({});
  checks.stop();
  checks.begin(named({"late"}));
  EXPECT_EQ(engine.checks.count("late"), 0u);
  EXPECT_EQ(engine.checks["b"], 200);
}

// A disk that does not answer holds neither the start nor the end up, but
// for what was begun.
TEST(AdapterChecks, StoppingLeavesWhatWasNotBegun) {
  FakeEngine engine;
  CollectingLog log;
  SteadyClock clock;
  std::atomic<bool> go{false};
  engine.on_check = [&] { go.wait(false); };
  AdapterChecks checks(engine, clock, log);
  std::vector<CatalogueEntry> entries;
  for (int i = 0; i < 1000; ++i)
    entries.push_back({"a" + std::to_string(i), "/a", "", AdapterOrigin::kDirectory, 0, {}, nullptr});
  checks.begin(entries);
  const AdapterChecks::State state = checks.wait(10);
  EXPECT_FALSE(state.complete());
  EXPECT_EQ(state.all, 1000u);
  std::thread end([&] { checks.stop(); });
  EXPECT_FALSE(checks.wait(kLongMs).complete()) << "who waits is told at once";
  go = true;
  go.notify_all();
  end.join();
  EXPECT_LE(engine.checks.size(), 4u);
  EXPECT_EQ(log.text().find("adapters checked"), std::string::npos) << "they were not";
}

}  // namespace
}  // namespace loralei

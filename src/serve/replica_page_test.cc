// SPDX-License-Identifier: Apache-2.0
#include "serve/replica_page.h"

#include <gtest/gtest.h>

#include <map>

#include "base/prng.h"

namespace loralei {
namespace {

std::vector<ReplicaAdapter> all_of(const std::map<std::string, ReplicaAdapter>& adapters) {
  std::vector<ReplicaAdapter> all;
  for (const auto& [name, adapter] : adapters) all.push_back(adapter);
  return all;
}

// Who reads pages, and believes them.
struct Reader {
  std::map<std::string, ReplicaAdapter> adapters;
  std::string boot;
  uint64_t cursor = 0;
  int pages = 0;

  bool read(ReplicaPage& page, const std::map<std::string, ReplicaAdapter>& now) {
    ReplicaReport report;
    page.fill(all_of(now), boot, cursor, report);
    if (report.since == 0) adapters.clear();
    EXPECT_TRUE(report.since == 0 || report.since == cursor);
    EXPECT_LE(report.adapters.size() + report.gone.size(), kReportAdaptersMost);
    for (const ReplicaAdapter& adapter : report.adapters) adapters[adapter.name] = adapter;
    for (const std::string& name : report.gone) adapters.erase(name);
    boot = report.boot, cursor = report.cursor;
    ++pages;
    return report.more;
  }
  void read_all(ReplicaPage& page, const std::map<std::string, ReplicaAdapter>& now) {
    while (read(page, now)) {
    }
    EXPECT_EQ(adapters, now);
  }
};

TEST(ReplicaPage, TellsChangesOnly) {
  ReplicaPage page("boot");
  std::map<std::string, ReplicaAdapter> now = {{"a", {.name = "a"}}, {"b", {.name = "b"}}};
  ReplicaReport first, second, third;
  page.fill(all_of(now), "", 0, first);
  EXPECT_EQ(first.adapters.size(), 2u);
  EXPECT_EQ(first.since, 0u);
  page.fill(all_of(now), "boot", first.cursor, second);
  EXPECT_TRUE(second.adapters.empty());
  EXPECT_EQ(second.since, first.cursor);
  now.erase("a");
  now["b"].tier = ReplicaTier::kMemory;
  page.fill(all_of(now), "boot", second.cursor, third);
  EXPECT_EQ(third.gone, std::vector<std::string>{"a"});
  ASSERT_EQ(third.adapters.size(), 1u);
  EXPECT_EQ(third.adapters[0].name, "b");
}

TEST(ReplicaPage, BeginsAnewForWhoKnewAnotherProcess) {
  ReplicaPage page("boot");
  const std::map<std::string, ReplicaAdapter> now = {{"a", {.name = "a"}}};
  ReplicaReport report;
  page.fill(all_of(now), "other", 1, report);
  EXPECT_EQ(report.since, 0u);
  EXPECT_EQ(report.adapters.size(), 1u);
  report = {};
  page.fill(all_of(now), "boot", 99, report);
  EXPECT_EQ(report.since, 0u);
}

TEST(ReplicaPage, AddsUpToWhatIsThere) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    ReplicaPage page("boot");
    Reader often, seldom;
    std::map<std::string, ReplicaAdapter> now;
    for (int step = 0; step < 400; ++step) {
      for (uint64_t left = random.below(6); left > 0; --left) {
        const std::string name = "adapter" + std::to_string(random.below(40));
        if (random.below(3) == 0) {
          now.erase(name);
        } else {
          now[name] = {.name = name,
                       .tier = static_cast<ReplicaTier>(random.below(3)),
                       .rank = static_cast<int32_t>(random.below(3)),
                       .uses = static_cast<int64_t>(random.below(2))};
        }
      }
      often.read_all(page, now);
      if (random.below(50) == 0) seldom.read_all(page, now);
    }
  }
}

TEST(ReplicaPage, ComesInPagesAndForgetsWhatIsGoneForLong) {
  ReplicaPage page("boot");
  Reader reader, late;
  std::map<std::string, ReplicaAdapter> now;
  for (size_t i = 0; i < 3 * kReportAdaptersMost; ++i) {
    const std::string name = "adapter" + std::to_string(i);
    now[name] = {.name = name};
  }
  reader.read_all(page, now);
  EXPECT_EQ(reader.pages, 3);
  late = reader;
  for (int round = 0; round < 3; ++round) {
    now.clear();
    for (size_t i = 0; i < ReplicaPage::kGoneKept; ++i) {
      const std::string name = "round" + std::to_string(round) + "." + std::to_string(i);
      now[name] = {.name = name};
    }
    reader.read_all(page, now);
  }
  late.read_all(page, now);
}

TEST(ReplicaAdapters, AreThoseOfTheCatalogueWhereverTheyAre) {
  const std::vector<CatalogueEntry> entries = {
      {.name = "on disk", .path = "", .root = "", .source = AdapterSourceId{1}},
      {.name = "here", .path = "", .root = "", .source = AdapterSourceId{2}}};
  auto status = std::make_shared<AdapterStatus>();
  status->source.id = AdapterSourceId{2};
  status->tier = AdapterTier::kResident;
  status->rank = 8;
  status->version = "d1";
  status->uses = 5;
  const auto adapters = replica_adapters(entries, {status});
  ASSERT_EQ(adapters.size(), 2u);
  EXPECT_EQ(adapters[0], (ReplicaAdapter{.name = "on disk"}));
  EXPECT_EQ(adapters[1], (ReplicaAdapter{"here", "d1", ReplicaTier::kMemory, 8, 0, 5}));
}

}  // namespace
}  // namespace loralei

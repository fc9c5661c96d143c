// SPDX-License-Identifier: Apache-2.0
#include "adapters/versions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "adapters/registry.h"

namespace loralei {
namespace {

constexpr int64_t kRoomBytes = 1 << 20;

struct VersionsWorld {
  Ledger ledger{kRoomBytes};
  ManualClock clock;
  AdapterEntry source;
  int used = 0, used_retired = 0;
  std::vector<uint64_t> left, told;  // versions that left; tickets told of it
  std::optional<AdapterVersions> versions;

  VersionsWorld() {
    ledger.set_cap(MemoryUse::kAdapters, kRoomBytes);
    versions.emplace(clock,
                     AdapterVersionEvents{.used = [this](AdapterEntry* owner) { ++(owner ? used : used_retired); },
                                          .leaving =
                                              [this](const AdapterVersion& version) {
                                                left.push_back(version.adapter->version.value);
                                                told.insert(told.end(), version.unload_tickets.begin(),
                                                            version.unload_tickets.end());
                                              }});
  }
  AdapterVersion& add(int64_t bytes = 100) {
    auto adapter = std::make_shared<Adapter>();
    adapter->version = versions->new_id();
    adapter->bytes = bytes;
    return versions->add(source, "a", adapter, *ledger.try_grant(MemoryUse::kAdapters, bytes + 28));
  }
  AdapterVersionId id_of(const AdapterVersion& version) const { return version.adapter->version; }
};

TEST(AdapterVersions, ARetiredOneLeavesWithItsLastPinAndClaim) {
  VersionsWorld world;
  AdapterVersion& version = world.add();
  const AdapterVersionId id = world.id_of(version);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 100) << "what it does not take goes back";
  AdapterPin first = world.versions->pin(version, 1), second = world.versions->pin(version, 7);
  EXPECT_EQ(version.youngest_order, 7u);
  AdapterClaim claim = world.versions->claim(id);
  world.versions->retire(version, {5});
  EXPECT_EQ(&*first, version.adapter.get());
  first.release();
  second = AdapterPin();
  EXPECT_EQ(world.versions->find(id), &version) << "somebody waits with it";
  world.versions->check();
  claim.release();
  EXPECT_EQ(world.versions->find(id), nullptr);
  EXPECT_EQ(world.told, std::vector<uint64_t>{5});
  EXPECT_EQ(world.used, 2);
  EXPECT_EQ(world.used_retired, 2);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
}

TEST(AdapterVersions, AClaimKeepsNothingThatCouldBeLoadedAgain) {
  VersionsWorld world;
  AdapterVersion& version = world.add();
  AdapterClaim claim = world.versions->claim(world.id_of(version));
  world.versions->evict(version);
  EXPECT_EQ(world.versions->find(claim.version()), nullptr);
  claim.release();  // of what is gone: nothing happens
  EXPECT_EQ(world.left.size(), 1u);
  world.versions->check();
}

TEST(AdapterVersions, WhatIsLeftAtTheEndLeavesToo) {
  VersionsWorld world;
  world.add();
  world.add();
  world.versions.reset();
  EXPECT_EQ(world.left.size(), 2u);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
}

// Against plain counters beside them.
TEST(AdapterVersions, RandomOperationsAgreeWithCounters) {
  constexpr uint32_t kSeed = 39;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  struct Twin {
    AdapterVersionId id;
    bool retired = false;
    std::vector<AdapterPin> pins;
    std::vector<AdapterClaim> claims;
  };
  std::vector<Twin> twins;  // before the world: shares must not outlive it
  VersionsWorld world;
  const auto settle = [&](size_t index) {
    Twin& twin = twins[index];
    const bool lives = !twin.retired || !twin.pins.empty() || !twin.claims.empty();
    ASSERT_EQ(world.versions->find(twin.id) != nullptr, lives);
    if (!lives) twins.erase(twins.begin() + static_cast<ptrdiff_t>(index));
  };
  for (int turn = 0; turn < 5000; ++turn) {
    if (twins.size() < 8 && random() % 4 == 0)
      twins.push_back({world.id_of(world.add(1 + random() % 100)), false, {}, {}});
    if (twins.empty()) continue;
    const size_t index = random() % twins.size();
    Twin& twin = twins[index];
    AdapterVersion& version = *world.versions->find(twin.id);
    switch (random() % 6) {
      case 0:
        twin.pins.push_back(world.versions->pin(version, static_cast<uint64_t>(turn)));
        break;
      case 1:
        twin.claims.push_back(world.versions->claim(twin.id));
        break;
      case 2:
        if (!twin.pins.empty()) twin.pins.pop_back();
        break;
      case 3:
        if (!twin.claims.empty()) twin.claims.pop_back();
        break;
      case 4:
        if (!twin.retired && random() % 3 == 0) {
          twin.retired = true;
          world.versions->retire(version, {});
        }
        break;
      case 5:
        if (!twin.retired && twin.pins.empty() && twin.claims.empty()) {
          world.versions->evict(version);
          ASSERT_EQ(world.versions->find(twin.id), nullptr);
          twins.erase(twins.begin() + static_cast<ptrdiff_t>(index));
          continue;
        }
        break;
    }
    settle(index);
    world.versions->check();
    ASSERT_EQ(world.versions->all().size(), twins.size());
    ASSERT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), world.versions->bytes());
  }
  twins.clear();
}

}  // namespace
}  // namespace loralei

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
  AdapterVersion& add_arriving(int64_t bytes = 100) {
    auto adapter = std::make_shared<Adapter>();
    adapter->version = versions->new_id();
    adapter->bytes = bytes;
    adapter->digest[0] = 1;
    return versions->add_arriving(source, "a", {adapter, std::make_shared<Arrivals>(1), {0}});
  }
  Grant grant(int64_t bytes = 100) { return *ledger.try_grant(MemoryUse::kAdapters, bytes); }
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
TEST(AdapterVersions, OneThatIsArrivingHasItsDigestWhenItIsWhole) {
  VersionsWorld world;
  AdapterVersion& version = world.add_arriving();
  const auto digest = version.adapter->digest;
  EXPECT_FALSE(world.versions->has(digest));
  EXPECT_EQ(world.versions->bytes(), 0) << "they are its load's";
  AdapterVersion& failing = world.add_arriving();
  AdapterPin pin = world.versions->pin(failing, 1);
  world.versions->fail(failing, world.grant());
  EXPECT_FALSE(world.versions->has(digest));
  world.versions->complete(version, world.grant());
  EXPECT_TRUE(world.versions->has(digest));
  EXPECT_EQ(world.versions->bytes(), 200);
  pin.release();
  EXPECT_TRUE(world.versions->has(digest));
  world.versions->evict(version);
  EXPECT_FALSE(world.versions->has(digest));
}

struct Twin {
  AdapterVersionId id;
  bool retired = false, failed = false;
  std::optional<Grant> loading;  // of one that is arriving
  std::vector<AdapterPin> pins;
  std::vector<AdapterClaim> claims;
};

void end_load(VersionsWorld& world, Twin& twin, bool well) {
  AdapterVersion& version = *world.versions->find(twin.id);
  Grant grant = *std::exchange(twin.loading, std::nullopt);
  twin.failed = !well;
  twin.retired |= twin.failed;
  if (well) return world.versions->complete(version, std::move(grant));
  world.versions->fail(version, std::move(grant));
}

TEST(AdapterVersions, RandomOperationsAgreeWithCounters) {
  constexpr uint32_t kSeed = 39;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  std::vector<Twin> twins;  // before the world: shares must not outlive it
  VersionsWorld world;
  const auto settle = [&](size_t index) {
    Twin& twin = twins[index];
    const bool lives = !twin.retired || !twin.pins.empty() || (!twin.claims.empty() && !twin.failed);
    ASSERT_EQ(world.versions->find(twin.id) != nullptr, lives);
    if (!lives) twins.erase(twins.begin() + static_cast<ptrdiff_t>(index));
  };
  for (int turn = 0; turn < 5000; ++turn) {
    if (twins.size() < 8 && random() % 4 == 0) {
      const int64_t bytes = 1 + random() % 100;
      twins.emplace_back();
      if (random() % 2 == 0) twins.back().loading = world.ledger.try_grant(MemoryUse::kAdapters, bytes);
      twins.back().id = world.id_of(twins.back().loading ? world.add_arriving(bytes) : world.add(bytes));
    }
    if (twins.empty()) continue;
    const size_t index = random() % twins.size();
    Twin& twin = twins[index];
    AdapterVersion& version = *world.versions->find(twin.id);
    switch (random() % 7) {
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
        if (!twin.retired && !twin.loading && twin.pins.empty() && twin.claims.empty()) {
          world.versions->evict(version);
          ASSERT_EQ(world.versions->find(twin.id), nullptr);
          twins.erase(twins.begin() + static_cast<ptrdiff_t>(index));
          continue;
        }
        break;
      case 6:
        if (twin.loading && random() % 3 == 0) end_load(world, twin, random() % 2 == 0);
        break;
    }
    settle(index);
    world.versions->check();
    ASSERT_EQ(world.versions->all().size(), twins.size());
    int64_t loading_bytes = 0;
    for (const Twin& other : twins) loading_bytes += other.loading ? other.loading->bytes() : 0;
    ASSERT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), world.versions->bytes() + loading_bytes);
  }
  twins.clear();
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// What others are told of a cache is what it holds: after every operation, with and
// without a disk, and again after events were lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/allocation_counter.h"
#include "base/prng.h"
#include "kv/kv_cache.h"
#include "kv/kv_disk_test_util.h"

namespace loralei {
namespace {

const KvShape kShape{.layers = 2, .kv_heads = 1, .head_dim = 16, .dtype = DType::kI8};

KvIdentityPart part(uint8_t digest, float scale = 1, int32_t first_position = 0) {
  KvIdentityPart value;
  value.digest[0] = digest;
  value.scale = scale;
  value.first_position = first_position;
  return value;
}

// Whoever is told, and knows nothing else.
struct Consumer {
  std::map<uint64_t, KvEvent> memory, ever;
  std::set<uint64_t> disk;
  int cleared = 0;
  int64_t stored = 0, removed = 0, disk_stored = 0, disk_removed = 0;

  void take(const KvEvent& event) {
    const bool on_disk = event.tier == KvTier::kDisk;
    switch (event.kind) {
      case KvEvent::Kind::kCleared:
        memory.clear();
        disk.clear();
        ++cleared;
        return;
      case KvEvent::Kind::kStored:
        EXPECT_GT(cleared, 0);
        ++(on_disk ? disk_stored : stored);
        if (on_disk) {
          EXPECT_TRUE(disk.insert(event.hash).second);
          return;
        }
        EXPECT_TRUE(memory.emplace(event.hash, event).second);
        ever.insert_or_assign(event.hash, event);
        return;
      case KvEvent::Kind::kRemoved:
        ++(on_disk ? disk_removed : removed);
        EXPECT_EQ(on_disk ? disk.erase(event.hash) : memory.erase(event.hash), 1u);
        return;
    }
  }
  bool take_one(KvEvents& events) {
    KvEvent event;
    if (!events.take(event)) return false;
    take(event);
    return true;
  }
};

struct Text {
  size_t key = 0;
  std::vector<TokenId> tokens;
  auto operator<=>(const Text&) const = default;
};

struct Live {
  KvLease lease;
  Text text;
  int computed = 0;
};

class World {
 public:
  World(size_t places, bool with_disk, KvSharing sharing, bool prefix_cache = true)
      : events(places), cache(std::move(KvCache::create(kShape, 24, prefix_cache, ledger, clock, kCapacity)).value()) {
    CHECK(cache->rest_by({.sharing = sharing, .ledger = &ledger}).ok());
    if (with_disk) open_disk();
    cache->tell(events);
    for (const auto& parts : std::vector<std::vector<KvIdentityPart>>{
             {}, {part(1)}, {part(2)}, {part(1, 0.5f)}, {part(1, 1, 20)}, {part(1), part(2)}}) {
      keys.push_back(make_kv_key(cache->identities(), parts, ""));
      if (parts.size() < 2) keys.push_back(make_kv_key(cache->identities(), parts, "salt"));
    }
    for (KvKey& key : keys) key.exact = false;
  }
  void open_disk() {
    const int64_t block = kv_block_bytes(kShape);
    const KvDiskOptions options{.folder = folder.path(),
                                .bytes_most = 32 * block,
                                .record_bytes_most = block,
                                .write_buffer_bytes = 8 * block,
                                .read_buffer_bytes = 8 * block,
                                .thread = false};
    disk = std::move(KvDisk::open(options, ledger, clock, log, [this](KvFetched&& message) {
             fetched = std::move(message);
           })).value();
    cache->spill_to(*disk);
  }

  void begin(Prng& random) {
    auto one = std::make_unique<Live>();
    one->text.key = random.below(keys.size());
    keys[one->text.key].app = cache->apps().asks(std::string(1, static_cast<char>('a' + random.below(3))));
    const int count = 17 + static_cast<int>(random.below(94));
    TokenId token = 0;
    for (int i = 0; i < count; ++i) {
      if (i > 0 && i % kKvBlockTokens == 0) token = static_cast<TokenId>(random.below(3));
      one->text.tokens.push_back(token);
    }
    begin(std::move(one));
  }
  void begin(std::unique_ptr<Live> one) {
    const KvKey& key = keys[one->text.key];
    const auto limit = static_cast<int32_t>(one->text.tokens.size()) - 1;
    const KvMatch match = cache->peek(key, one->text.tokens, limit);
    if (match.evictable > cache->available()) return;
    one->lease = cache->match(key, one->text.tokens, limit, 8);
    ASSERT_TRUE(cache->materialise(one->lease));
    one->computed = match.tokens();
    texts.insert(one->text);
    live.push_back(std::move(one));
  }
  void grow(Live& one, int target) {
    const auto most = static_cast<int>(one.text.tokens.size());
    target = std::min(most, target);
    if (!cache->reserve(one.lease, target)) return;
    const auto names = cache->disk_keys(keys[one.text.key], one.text.tokens, target);
    for (size_t block = static_cast<size_t>(one.computed) / kKvBlockTokens; block < names.size(); ++block) {
      std::byte* const bytes = cache->view().slice(one.lease.blocks()[block], 0, 0);
      std::memset(bytes, 1 + names[block][0] % 100, static_cast<size_t>(cache->block_bytes()));
    }
    one.computed = target;
    cache->publish(one.lease, keys[one.text.key], one.text.tokens, target);
  }
  // What lies on disk of a text comes back.
  void restore(const Text& text) {
    const auto names = cache->disk_keys(keys[text.key], text.tokens, static_cast<int32_t>(text.tokens.size()));
    const int32_t there = cache->peek(keys[text.key], text.tokens, static_cast<int32_t>(text.tokens.size())).blocks;
    const auto missing = std::span(names).subspan(static_cast<size_t>(there));
    if (missing.empty() || !disk->fetch(1, missing, false)) return;
    while (disk->run_one_job()) {
    }
    ASSERT_TRUE(fetched);
    restored += cache->restore(keys[text.key], text.tokens, names, there, fetched->blocks);
    fetched.reset();
  }
  void step(Prng& random) {
    clock.advance_ns(static_cast<int64_t>(random.below(60)) * 1'000'000'000);
    const uint64_t choice = random.below(24);
    if (choice < 5) {
      begin(random);
    } else if (choice < 11 && !live.empty()) {
      Live& one = *live[random.below(live.size())];
      grow(one, one.computed + 1 + static_cast<int>(random.below(80)));
    } else if (choice < 16 && !live.empty()) {
      live.erase(live.begin() + static_cast<int64_t>(random.below(live.size())));
    } else if (choice < 18) {
      for (uint64_t i = random.below(6); i > 0; --i) cache->rest();
    } else if (choice == 18) {
      cache->make_available(static_cast<int32_t>(random.below(8)));
    } else if (choice == 19) {  // somebody takes all there is for a moment
      KvLease all = cache->match(keys[0], {}, 0, kCapacity);
      EXPECT_TRUE(cache->reserve(all, cache->available() * kKvBlockTokens));
    } else if (choice == 20) {
      resize(random);
    } else if (choice == 21 && random.below(8) == 0) {
      const std::string name(1, static_cast<char>('a' + random.below(3)));
      EXPECT_TRUE(cache->state_app(name, static_cast<AppState>(random.below(3))).ok());
    } else if (choice > 21 && disk != nullptr) {
      if (choice == 22 && !texts.empty()) {
        auto text = texts.begin();
        std::advance(text, static_cast<int64_t>(random.below(texts.size())));
        restore(*text);
      } else {
        cache->spill();
        for (uint64_t i = random.below(8); i > 0; --i) disk->run_one_job();
      }
    }
  }
  void resize(Prng& random) {
    const int32_t least = std::max(1, cache->leased());
    std::vector<KvLease*> leases;
    for (const auto& one : live) leases.push_back(&one->lease);
    const auto blocks = least + static_cast<int32_t>(random.below(static_cast<uint64_t>(kCapacity - least) + 1));
    EXPECT_TRUE(cache->resize(blocks, leases).ok());
  }
  void check() const {
    std::vector<const KvLease*> leases;
    for (const auto& one : live) leases.push_back(&one->lease);
    cache->check(leases);
  }

  // All that is on its way has come.
  void settle() {
    if (disk != nullptr) {
      while (disk->run_one_job()) {
      }
      disk->check();
    }
    do {
      while (consumer.take_one(events)) {
      }
    } while (cache->tell_more());
    while (consumer.take_one(events)) {
    }
  }
  // What the consumer knows is what is there.
  void compare() {
    size_t there = 0;
    for (const KvHeld& held : cache->summary().held) there += static_cast<size_t>(held.blocks - held.nowhere);
    ASSERT_EQ(consumer.memory.size(), there);
    for (const Text& text : texts) compare(text);
    if (disk != nullptr) {
      ASSERT_LE(static_cast<int64_t>(consumer.disk.size()), disk->stats().records);
    }
  }
  void compare(const Text& text) {
    const auto count = static_cast<int32_t>(text.tokens.size());
    const auto names = cache->disk_keys(keys[text.key], text.tokens, count);
    const auto found = static_cast<size_t>(cache->peek(keys[text.key], text.tokens, count).blocks);
    for (size_t block = 0; block < names.size(); ++block) {
      const uint64_t hash = kv_event_hash(names[block]);
      const auto known = consumer.memory.find(hash);
      if (block <= found) {
        ASSERT_EQ(known != consumer.memory.end(), block < found) << block;
      }
      if (known != consumer.memory.end()) {
        ASSERT_EQ(known->second.parent, block == 0 ? 0 : kv_event_hash(names[block - 1]));
        ASSERT_TRUE(
            std::ranges::equal(known->second.tokens, kv_block_tokens(text.tokens, static_cast<int32_t>(block))));
      }
      if (disk == nullptr) continue;
      const bool readable = disk->readable({&names[block], 1}, false).blocks == 1;
      if (consumer.disk.contains(hash)) {
        ASSERT_TRUE(disk->has(names[block]));
      }
      if (known != consumer.memory.end() && readable) {
        ASSERT_TRUE(consumer.disk.contains(hash));
      }
    }
  }

  static constexpr int32_t kCapacity = 40;
  DiskFolder folder;
  Ledger ledger{1 << 22};
  ManualClock clock;
  CollectingLog log;
  KvEvents events;
  std::optional<KvFetched> fetched;
  std::unique_ptr<KvDisk> disk;
  std::unique_ptr<KvCache> cache;
  std::vector<KvKey> keys;
  std::vector<std::unique_ptr<Live>> live;
  std::set<Text> texts;
  Consumer consumer;
  int64_t restored = 0;
};

std::unique_ptr<Live> text_of(size_t key, int count, TokenId token = 5) {
  auto one = std::make_unique<Live>();
  one->text = {key, std::vector<TokenId>(static_cast<size_t>(count), token)};
  return one;
}

TEST(KvTell, RandomOperationsAreToldAsTheyAreAlsoAfterEventsWereLost) {
  int64_t stored = 0, removed = 0, disk_stored = 0, disk_removed = 0, restored = 0;
  uint64_t lost = 0, pictures = 0;
  for (uint64_t seed = 1; seed <= 96; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const size_t places = seed % 3 == 0 ? 4096 : 8 + random.below(24);
    World world(places, seed % 2 == 0, seed % 4 < 2 ? KvSharing::kExact : KvSharing::kLossless);
    world.cache->evict_by(static_cast<KvEviction>(seed % 3), [] { return KvWorth{.row_s = 0.001, .load_s = {}}; });
    for (int step = 0; step < 800; ++step) {
      world.step(random);
      world.check();
      for (uint64_t i = random.below(16) == 0 ? 6 : 0; i > 0; --i) world.consumer.take_one(world.events);
      if (random.below(6) == 0) world.cache->tell_more();
      if (random.below(30) == 0) {
        world.settle();
        world.check();
        world.compare();
      }
      if (testing::Test::HasFailure()) return;
    }
    world.settle();
    world.compare();
    const KvEventCounts counts = world.events.counts();
    if (places == 4096) {
      ASSERT_EQ(counts.lost, 0u);
    }
    ASSERT_EQ(static_cast<uint64_t>(world.consumer.cleared), 1 + counts.pictures);
    lost += counts.lost;
    pictures += counts.pictures;
    stored += world.consumer.stored;
    removed += world.consumer.removed;
    disk_stored += world.consumer.disk_stored;
    disk_removed += world.consumer.disk_removed;
    restored += world.restored;
  }
  EXPECT_GT(stored, 10000);
  EXPECT_GT(removed, 5000);
  EXPECT_GT(disk_stored, 1000);
  EXPECT_GT(disk_removed, 500);
  EXPECT_GT(restored, 100);
  EXPECT_GT(lost, 1000u);
  EXPECT_GT(pictures, 200u);
}

TEST(KvTell, TheFirstWordIsThatNothingOfBeforeCounts) {
  World world(16, false, KvSharing::kExact);
  KvEvent first{.kind = KvEvent::Kind::kStored};
  ASSERT_TRUE(world.events.take(first));
  EXPECT_EQ(first.kind, KvEvent::Kind::kCleared);
  EXPECT_FALSE(world.events.take(first));
}

TEST(KvTell, NamesDifferByTextOwnerScaleAndSaltAndAreTheSameInEveryProcess) {
  std::map<uint64_t, KvEvent> known;
  for (int process = 0; process < 2; ++process) {
    World world(4096, false, KvSharing::kExact);
    for (size_t key = 0; key < world.keys.size(); ++key) {
      for (const TokenId token : {5, 6}) {
        world.begin(text_of(key, 33, token));
        world.grow(*world.live.back(), 33);
        world.live.clear();
      }
    }
    world.settle();
    // An adapter that is active from token 20 on has the base's first block.
    EXPECT_EQ(world.consumer.ever.size(), (world.keys.size() * 2 - 2) * 2);
    if (process == 0) known = world.consumer.ever;
    for (const auto& [hash, event] : known) {
      const auto found = world.consumer.ever.find(hash);
      ASSERT_NE(found, world.consumer.ever.end());
      EXPECT_EQ(found->second.owner, event.owner);
      EXPECT_EQ(found->second.parent, event.parent);
    }
  }
}

TEST(KvTell, SaysWhoComputedIt) {
  World world(4096, false, KvSharing::kExact);
  const auto owner_of = [&](std::vector<KvIdentityPart> parts, const std::string& salt) {
    world.keys[0] = make_kv_key(world.cache->identities(), parts, salt);
    world.begin(text_of(0, 33, static_cast<TokenId>(100 + world.texts.size())));
    world.grow(*world.live.back(), 33);
    world.live.clear();
    const KvDiskKey name = world.cache->disk_keys(world.keys[0], world.texts.rbegin()->tokens, 32)[1];
    world.settle();
    return world.consumer.memory.at(kv_event_hash(name)).owner;
  };
  const KvOwner base = owner_of({}, "");
  EXPECT_EQ(base, KvOwner());
  const KvOwner adapter = owner_of({part(7)}, "");
  EXPECT_EQ(adapter.adapters, 1);
  EXPECT_EQ(adapter.adapter[0], 7);
  EXPECT_EQ(adapter.salt, 0u);
  const KvOwner half = owner_of({part(7, 0.5f)}, "");
  EXPECT_EQ(half.scale, 0.5f);
  EXPECT_NE(half.identity, adapter.identity);
  const KvOwner salted = owner_of({}, "pepper");
  EXPECT_EQ(salted.adapters, 0);
  EXPECT_NE(salted.salt, 0u);
  EXPECT_NE(salted.salt, owner_of({}, "salt").salt);
  EXPECT_EQ(owner_of({part(1), part(2)}, "").adapters, 2);
}

TEST(KvTell, WhatIsEvictedIsToldAndNothingThatIsNotKept) {
  World world(4096, false, KvSharing::kExact);
  world.begin(text_of(0, 33));
  world.grow(*world.live.back(), 33);
  world.settle();
  EXPECT_EQ(world.consumer.memory.size(), 2u);  // two full blocks; the third is private
  world.live.clear();
  KvLease all = world.cache->match(world.keys[0], {}, 0, World::kCapacity);
  ASSERT_TRUE(world.cache->reserve(all, world.cache->available() * kKvBlockTokens));
  world.settle();
  EXPECT_TRUE(world.consumer.memory.empty());
  EXPECT_EQ(world.consumer.removed, 2);
  all.release();
  World silent(16, false, KvSharing::kExact, false);
  silent.begin(text_of(0, 33));
  silent.grow(*silent.live.back(), 33);
  silent.settle();
  EXPECT_EQ(silent.consumer.stored, 0);
}

// What an earlier process left is told once its text is in memory: before, nobody could
// tell what text it is of.
TEST(KvTell, WhatLiesOnDiskIsToldWhenItsTextIsKnown) {
  World world(4096, true, KvSharing::kExact);
  world.begin(text_of(0, 33));
  world.grow(*world.live.back(), 33);
  world.live.clear();
  world.settle();
  EXPECT_EQ(world.consumer.disk.size(), 0u);
  while (world.cache->spill() == KvCache::Spill::kSome) {
  }
  world.settle();
  EXPECT_EQ(world.consumer.disk.size(), 2u);
  ASSERT_TRUE(world.disk->flush(1000));
  const Text text = *world.texts.begin();
  world.cache.reset();
  world.disk.reset();

  world.cache = std::move(KvCache::create(kShape, 24, true, world.ledger, world.clock)).value();
  world.open_disk();
  KvEvents events(64);
  world.cache->tell(events);
  world.keys[0] = make_kv_key(world.cache->identities(), {}, "");
  Consumer next;
  while (next.take_one(events)) {
  }
  EXPECT_EQ(next.disk_stored, 0);
  world.restore(text);
  EXPECT_EQ(world.restored, 2);
  while (next.take_one(events)) {
  }
  EXPECT_EQ(next.memory.size(), 2u);
  EXPECT_EQ(next.disk.size(), 2u);
}

TEST(KvTell, ToTellAllocatesNothing) {
  World world(64, false, KvSharing::kExact);
  world.begin(text_of(1, 65));
  Live& one = *world.live.back();
  world.grow(one, 1);  // the key's first use
  ASSERT_TRUE(world.cache->reserve(one.lease, 65));
  world.cache->publish(one.lease, world.keys[1], one.text.tokens, 16);
  testing_support::start_counting_allocations();
  world.cache->publish(one.lease, world.keys[1], one.text.tokens, 64);
  world.cache->tell_more();
  EXPECT_EQ(testing_support::stop_counting_allocations().count, 0);
  world.settle();
  EXPECT_EQ(world.consumer.stored, 4);
}

TEST(KvEvents, ComeOutInOrderAndOnceAndAreRefusedWhereThereIsNoPlace) {
  KvEvents events(3);
  KvEvent event;
  EXPECT_FALSE(events.take(event));
  for (uint64_t round = 0, next = 1, expected = 1; round < 50; ++round) {
    while (events.room() > 0) ASSERT_TRUE(events.put({.hash = next++}));
    EXPECT_FALSE(events.put({.hash = 999}));
    for (int i = 0; i < 1 + static_cast<int>(round % 3); ++i) {
      ASSERT_TRUE(events.take(event));
      ASSERT_EQ(event.hash, expected++);
    }
  }
}

// For the thread sanitizer, too.
TEST(KvEvents, GoFromOneThreadToAnother) {
  constexpr uint64_t kEvents = 200'000;
  KvEvents events(64);
  std::thread puts([&] {
    for (uint64_t hash = 1; hash <= kEvents;) {
      KvEvent event{.kind = KvEvent::Kind::kStored, .hash = hash, .parent = hash - 1};
      event.tokens.fill(static_cast<TokenId>(hash));
      if (events.put(event)) {
        ++hash;
      } else {
        std::this_thread::yield();
      }
    }
  });
  uint64_t wrong = 0;
  for (uint64_t expected = 1; expected <= kEvents;) {
    KvEvent event;
    if (!events.take(event)) {
      std::this_thread::yield();
      continue;
    }
    const bool whole = event.hash == expected && event.parent == expected - 1 &&
                       event.tokens.front() == static_cast<TokenId>(expected) &&
                       event.tokens.back() == static_cast<TokenId>(expected);
    wrong += whole ? 0 : 1;
    ++expected;
  }
  puts.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// A KV cache of layers that attend to windows: beside a naive twin under random
// operations, and its rules one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "base/prng.h"
#include "kv/kv_cache.h"

namespace loralei {
namespace {

constexpr int32_t kWindow = 40, kRows = 64;

// Of which layers each attends to a window of so many tokens; 0: to all.
KvShape shape_of(const std::vector<int32_t>& sliding) {
  return {.layers = static_cast<int32_t>(sliding.size()),
          .kv_heads = 1,
          .head_dim = 4,
          .dtype = DType::kF32,
          .tables = kv_tables(sliding, 1 << 20, kRows)};
}

const std::vector<int32_t> kAllSlide{kWindow, kWindow};                                // one table
const std::vector<int32_t> kMixed{kWindow, kWindow, kWindow, kWindow, kWindow, 0};     // one full, five sliding
const std::vector<int32_t> kFewSlide{0, 0, 0, 0, 0, 0, kWindow, kWindow, 0, 0, 0, 0};  // five full, one sliding

struct Cache {
  Ledger ledger{1 << 24};
  ManualClock clock;
  std::unique_ptr<KvCache> cache;
  Cache(const KvShape& shape, int32_t blocks, bool prefix = true, int32_t capacity = 0)
      : cache(std::move(KvCache::create(shape, blocks, prefix, ledger, clock, capacity)).value()) {}
  KvCache* operator->() { return cache.get(); }
  KvKey key(uint8_t digest) {
    KvIdentityPart part;
    part.digest[0] = digest;
    return make_kv_key(cache->identities(),
                       digest == 0 ? std::vector<KvIdentityPart>{} : std::vector<KvIdentityPart>{part}, "");
  }
};

std::vector<TokenId> text_of(int count, int salt = 0) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(i * 7 + salt);
  return tokens;
}

void fill(const KvView& view, int32_t block, uint64_t value) {
  for (int64_t at = 0; at < view.block_stride_bytes; at += 8) std::memcpy(view.slice(block, 0, 0) + at, &value, 8);
}
bool holds(const KvView& view, int32_t block, uint64_t value) {
  return std::memcmp(view.slice(block, 0, 0), &value, 8) == 0 &&
         std::memcmp(view.slice(block, 0, 0) + view.block_stride_bytes - 8, &value, 8) == 0;
}

// What a block of this text must hold: a number that all its tokens so far, their
// identity and the table decide.
uint64_t content(const KvKey& key, std::span<const TokenId> tokens, int place, int table, int computed) {
  uint64_t hash = 77 + static_cast<uint64_t>(table);
  for (int i = 0; i < std::min(computed, (place + 1) * kKvBlockTokens); ++i) {
    hash = (hash ^ reinterpret_cast<uintptr_t>(key.at(i).get())) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ static_cast<uint64_t>(tokens[static_cast<size_t>(i)])) * 0x9E3779B97F4A7C15u;
  }
  return hash;
}

// A sequence as the engine has it.
struct Live {
  KvLease lease;
  KvKey key;
  std::vector<TokenId> tokens;
  int computed = 0;
  int shared = 0, first = 0, places = 0;  // as the twin has them

  int32_t block(int place, int table) const {
    return lease.blocks()[static_cast<size_t>(place * lease.tables() + table)];
  }
};

// All that the next row reads is there, and what it should be.
void expect_whole(KvCache& cache, const Live& one) {
  const KvTables& tables = cache.tables();
  for (int place = 0; place * kKvBlockTokens < one.computed; ++place) {
    for (int table = 0; table < tables.count(); ++table) {
      const bool read = table < tables.full || place >= tables.first_read(one.computed);
      if (!read) continue;
      ASSERT_NE(one.block(place, table), kNoBlock) << "place " << place << " table " << table;
      ASSERT_TRUE(
          holds(cache.view(), one.block(place, table), content(one.key, one.tokens, place, table, one.computed)))
          << "place " << place << " table " << table << " of " << one.computed;
    }
  }
}

// A step that computes up to here: false, where there is no room.
bool compute(KvCache& cache, Live& one, int target, bool publishes = true) {
  if (!cache.reserve(one.lease, target)) return false;
  for (int place = one.computed / kKvBlockTokens; place < one.lease.places(); ++place) {
    for (int table = 0; table < one.lease.tables(); ++table)
      fill(cache.view(), one.block(place, table), content(one.key, one.tokens, place, table, target));
  }
  one.computed = target;
  if (publishes) cache.publish(one.lease, one.key, one.tokens, target);
  cache.pass(one.lease, target);
  return true;
}

std::unique_ptr<Live> begin(KvCache& cache, const KvKey& key, std::vector<TokenId> tokens) {
  auto one = std::make_unique<Live>();
  one->key = key;
  one->tokens = std::move(tokens);
  const int limit = static_cast<int>(one->tokens.size()) - 1;
  one->lease = cache.match(key, one->tokens, limit, kv_blocks_for(limit + 1));
  one->computed = one->lease.shared() * kKvBlockTokens;
  return one;
}

void check(KvCache& cache, const std::vector<std::unique_ptr<Live>>& live) {
  std::vector<const KvLease*> leases;
  for (const auto& one : live) {
    leases.push_back(&one->lease);
    expect_whole(cache, *one);
  }
  cache.check(leases);
}

// The cache, by lists and maps alone.
struct Naive {
  using Path = std::vector<std::pair<const void*, std::vector<TokenId>>>;
  struct Held {
    int pins = 0, part_pins = 0;
    bool part = false;
    int64_t used_ns = 0, part_ns = 0;
  };
  KvTables tables;
  int total = 0, private_blocks = 0;
  int64_t now_ns = 0;
  std::map<Path, Held> stored;
  std::list<Path> released, parts;  // that nobody pins, as they were released

  static Path path(const Live& one, int places) {
    Path path;
    for (int place = 0; place < places; ++place) {
      const auto begin = one.tokens.begin() + place * kKvBlockTokens;
      path.push_back({one.key.at(place * kKvBlockTokens).get(), {begin, begin + kKvBlockTokens}});
    }
    return path;
  }
  int first_read(int computed) const { return std::max(0, computed - tables.window + 1) / kKvBlockTokens; }
  int match(const Live& one, int limit) const {
    int found = 0;
    for (int places = 1; places * kKvBlockTokens <= limit && stored.count(path(one, places)) > 0; ++places) {
      bool whole = true;
      for (int place = first_read(places * kKvBlockTokens); place < places; ++place)
        whole = whole && stored.at(path(one, place + 1)).part;
      if (whole) found = places;
    }
    return found;
  }
  int free() const {
    int free = total - private_blocks;
    for (const auto& [path, held] : stored) free -= tables.full + (held.part ? tables.sliding : 0);
    return free;
  }
  int available() const {
    return free() + static_cast<int>(released.size()) * tables.full + static_cast<int>(parts.size()) * tables.sliding;
  }
  bool is_leaf(const Path& parent) const {
    return std::none_of(stored.begin(), stored.end(), [&](const auto& entry) {
      const Path& p = entry.first;
      return p.size() == parent.size() + 1 && std::equal(parent.begin(), parent.end(), p.begin());
    });
  }
  void pin(const Path& p) {
    if (stored[p].pins++ == 0) released.remove(p);
    stored[p].used_ns = now_ns;
  }
  void pin_part(const Path& p) {
    if (stored[p].part_pins++ == 0) parts.remove(p);
  }
  void unpin_part(const Path& p) {
    if (--stored[p].part_pins > 0) return;
    stored[p].part_ns = now_ns;
    parts.push_back(p);
  }
  void unpin(const Path& p) {
    stored[p].used_ns = now_ns;
    if (--stored[p].pins > 0) return;
    released.push_back(p);
    drop_useless(p);
  }
  void drop_useless(Path p) {
    while (!p.empty() && stored.count(p) > 0 && stored[p].pins == 0 && !stored[p].part && is_leaf(p)) {
      released.remove(p);
      stored.erase(p);
      p.pop_back();
    }
  }
  void evict() {
    const auto leaf = std::find_if(released.begin(), released.end(), [&](const Path& p) { return is_leaf(p); });
    ASSERT_TRUE(leaf != released.end() || !parts.empty());
    const bool part =
        !parts.empty() && (leaf == released.end() || stored[parts.front()].part_ns <= stored[*leaf].used_ns);
    const Path goes = part ? parts.front() : *leaf;
    if (stored[goes].part) parts.remove(goes);
    stored[goes].part = false;
    if (part) return drop_useless(goes);
    released.remove(goes);
    stored.erase(goes);
    drop_useless(Path(goes.begin(), goes.end() - 1));
  }
  void take(int count) {
    for (; count > 0; --count) {
      if (free() == 0) evict();
      ++private_blocks;
    }
  }
  void resize(int blocks) {
    total = blocks;
    while (free() < 0) evict();
  }

  void begin(Live& one, int limit) {
    one.shared = one.places = match(one, limit);
    one.first = first_read(one.shared * kKvBlockTokens);
    for (int place = 0; place < one.shared; ++place) pin(path(one, place + 1));
    for (int place = one.first; place < one.shared; ++place) pin_part(path(one, place + 1));
  }
  // One that has room.
  void compute(Live& one, int target, bool publishes) {
    const int places = std::max(one.places, static_cast<int>(kv_blocks_for(target)));
    take((places - one.places) * tables.count());
    one.places = places;
    for (; publishes && (one.shared + 1) * kKvBlockTokens <= target; ++one.shared) {
      const Path p = path(one, one.shared + 1);
      const bool has_part = one.shared >= one.first;
      private_blocks -= tables.full + (has_part ? tables.sliding : 0);
      if (stored.count(p) == 0) stored[p] = {};
      pin(p);
      if (!has_part) continue;
      if (stored[p].part) {
        pin_part(p);
      } else {
        stored[p].part = true;
        stored[p].part_pins = 1;
      }
    }
    for (; one.first < std::min(first_read(target), one.places); ++one.first) {
      if (one.first < one.shared) {
        unpin_part(path(one, one.first + 1));
      } else {
        private_blocks -= tables.sliding;
      }
    }
  }
  void release(Live& one) {
    for (int place = one.places; place-- > 0;) {
      const bool in_window = place >= one.first;
      if (place >= one.shared) {
        private_blocks -= tables.full + (in_window ? tables.sliding : 0);
        continue;
      }
      if (in_window) unpin_part(path(one, place + 1));
      unpin(path(one, place + 1));
    }
  }
};

// Texts that are alike for a while.
std::vector<TokenId> random_text(Prng& random) {
  const int count = 1 + static_cast<int>(random.below(260));
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(i % 64 == 20 ? static_cast<TokenId>(random.below(2)) : i);
  return tokens;
}

struct Counts {
  int refused = 0, hits = 0, passed = 0, short_of_window = 0, resized = 0;
};

void run_beside_twin(const std::vector<int32_t>& sliding, uint64_t seed, Counts& counts) {
  Prng random(seed);
  const KvShape shape = shape_of(sliding);
  ASSERT_TRUE(shape.tables.has_windows());
  const int tables = shape.tables.count(), total = 16 * tables, capacity = 24 * tables;
  Cache cache(shape, total, true, capacity);
  Naive naive;
  naive.tables = shape.tables;
  naive.total = total;
  const KvKey keys[] = {cache.key(0), cache.key(1)};
  std::vector<std::unique_ptr<Live>> live;
  for (int step = 0; step < 400; ++step) {
    cache.clock.advance_ns(static_cast<int64_t>(random.below(3)));
    naive.now_ns = cache.clock.now_ns();
    const auto choice = random.below(12);
    if (choice == 0) {
      const int leased = cache->leased();
      const int blocks = std::max(1, leased) + static_cast<int>(random.below(static_cast<uint64_t>(capacity - leased)));
      std::vector<KvLease*> leases;
      for (const auto& one : live) leases.push_back(&one->lease);
      ASSERT_TRUE(cache->resize(std::min(blocks, capacity), leases).ok());
      naive.resize(std::min(blocks, capacity));
      ++counts.resized;
    } else if (choice < 4 && live.size() < 6) {
      auto one = std::make_unique<Live>();
      one->key = keys[random.below(2)];
      one->tokens = random_text(random);
      const int limit = static_cast<int>(one->tokens.size()) - 1;
      const int expected = naive.match(*one, limit);
      const KvMatch match = cache->peek(one->key, one->tokens, limit);
      ASSERT_EQ(match.blocks, expected);
      if (naive.stored.count(Naive::path(*one, std::min(expected + 1, limit / kKvBlockTokens))) > 0 &&
          (expected + 1) * kKvBlockTokens <= limit)
        ++counts.short_of_window;
      const int before = cache->available();
      one->lease = cache->match(one->key, one->tokens, limit, kv_blocks_for(limit + 1));
      ASSERT_EQ(before - cache->available(), match.evictable);
      ASSERT_EQ(one->lease.held(), match.held);
      naive.begin(*one, limit);
      one->computed = one->shared * kKvBlockTokens;
      counts.hits += expected > 0 ? 1 : 0;
      live.push_back(std::move(one));
    } else if (choice < 10 && !live.empty()) {
      Live& one = *live[random.below(live.size())];
      const int most = static_cast<int>(one.tokens.size());
      const int target = std::min(most, one.computed + 1 + static_cast<int>(random.below(kRows)));
      const bool publishes = random.below(8) != 0;
      const int missing = std::max(0, static_cast<int>(kv_blocks_for(target)) - one.places) * tables;
      const bool fits = missing <= naive.available();
      const int first = one.first;
      ASSERT_EQ(compute(*cache.cache, one, target, publishes), fits);
      if (fits) naive.compute(one, target, publishes);
      counts.refused += fits ? 0 : 1;
      counts.passed += one.first - first;
    } else if (!live.empty()) {
      const size_t index = random.below(live.size());
      const int exclusive = cache->exclusive(live[index]->lease), before = cache->available();
      naive.release(*live[index]);
      live.erase(live.begin() + static_cast<int64_t>(index));
      ASSERT_EQ(cache->available() - before, exclusive);
    }
    ASSERT_EQ(cache->free(), naive.free()) << "step " << step;
    ASSERT_EQ(cache->available(), naive.available()) << "step " << step;
    for (const auto& one : live) ASSERT_EQ(one->lease.held(), one->places * tables - one->first * shape.tables.sliding);
    check(*cache.cache, live);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(KvWindow, RandomOperationsAgreeWithANaiveModel) {
  for (const auto& sliding : {kAllSlide, kMixed, kFewSlide}) {
    Counts counts;
    for (uint64_t seed = 1; seed <= 24; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << sliding.size() << " layers");
      run_beside_twin(sliding, seed, counts);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(counts.refused, 50);
    EXPECT_GT(counts.hits, 100);
    EXPECT_GT(counts.passed, 500);
    EXPECT_GT(counts.short_of_window, 20);  // more was there than could be used
    EXPECT_GT(counts.resized, 100);
  }
}

TEST(KvWindow, OfAModelWhoseLayersAllSlideALongTextHasTheWindowAndAStep) {
  const KvShape shape = shape_of(kAllSlide);
  EXPECT_EQ(shape.tables.full, 0);
  EXPECT_EQ(shape.tables.sliding, 1);
  EXPECT_EQ(kv_block_bytes(shape), kv_block_bytes({.layers = 2, .kv_heads = 1, .head_dim = 4, .dtype = DType::kF32}));
  constexpr int kTokens = 40 * kWindow;
  const auto most = static_cast<int32_t>(shape.tables.blocks_most(kTokens));
  EXPECT_EQ(most, (kWindow - 1 + 15) / 16 + 1 + kRows / 16);
  Cache cache(shape, most, false);
  const auto one = begin(*cache.cache, cache.key(0), text_of(kTokens));
  int largest = 0;
  while (one->computed < kTokens) {
    const int target = std::min(kTokens, one->computed + kRows);
    ASSERT_TRUE(cache->reserve(one->lease, target)) << one->computed;
    largest = std::max(largest, cache->leased());
    ASSERT_TRUE(compute(*cache.cache, *one, target));
    ASSERT_LE(cache->leased(), (kWindow - 1 + 15) / 16) << "what a step wrote went with it";
    expect_whole(*cache.cache, *one);
    if (HasFatalFailure()) return;
  }
  EXPECT_LE(largest, most);
  EXPECT_EQ(one->lease.places(), kTokens / 16);
}

TEST(KvWindow, OneRowAStepNeedsTheLeastBlocks) {
  for (const auto& sliding : {kAllSlide, kMixed, kFewSlide}) {
    const KvShape shape = shape_of(sliding);
    constexpr int kTokens = 6 * kWindow;
    const auto least = static_cast<int32_t>(shape.tables.blocks_least(kTokens));
    for (const bool prefix : {false, true}) {
      Cache cache(shape, least, prefix);
      const auto one = begin(*cache.cache, cache.key(0), text_of(kTokens));
      while (one->computed < kTokens) {
        ASSERT_TRUE(compute(*cache.cache, *one, one->computed + 1)) << one->computed;
        expect_whole(*cache.cache, *one);
        if (HasFatalFailure()) return;
      }
      Cache less(shape, least - 1, prefix);
      const auto other = begin(*less.cache, less.key(0), text_of(kTokens));
      bool fits = true;
      while (fits && other->computed < kTokens) fits = compute(*less.cache, *other, other->computed + 1);
      EXPECT_FALSE(fits);
    }
  }
}

TEST(KvWindow, OfAMixedModelTheFullLayersKeepAll) {
  const KvShape shape = shape_of(kMixed);
  EXPECT_EQ(shape.tables.full, 1);
  EXPECT_EQ(shape.tables.sliding, 5);
  EXPECT_EQ(shape.tables.layers, 1);
  constexpr int kTokens = 1024;
  Cache cache(shape, 600, false);
  const auto one = begin(*cache.cache, cache.key(0), text_of(kTokens));
  while (one->computed < kTokens) ASSERT_TRUE(compute(*cache.cache, *one, one->computed + kRows));
  constexpr int kInWindow = kTokens / 16 - (kTokens - kWindow + 1) / 16;
  EXPECT_EQ(cache->leased(), kTokens / 16 + 5 * kInWindow);
  EXPECT_EQ(one->lease.held(), cache->leased());
}

TEST(KvWindow, APrefixIsFoundOnlyWhereTheWindowBeforeItsEndIsThere) {
  for (const auto& sliding : {kAllSlide, kMixed}) {
    const KvShape shape = shape_of(sliding);
    const int tables = shape.tables.count();
    Cache cache(shape, 20 * tables);
    const auto text = text_of(12 * 16 + 1);
    auto one = begin(*cache.cache, cache.key(0), text);
    while (one->computed < 12 * 16) ASSERT_TRUE(compute(*cache.cache, *one, one->computed + 16));
    one.reset();
    // All is there still, so any end will do.
    EXPECT_EQ(cache->peek(cache.key(0), text, 12 * 16).blocks, 12);
    EXPECT_EQ(cache->peek(cache.key(0), text, 7 * 16).blocks, 7);
    // Another takes blocks: of the first text those go that passed the window first.
    auto other = begin(*cache.cache, cache.key(1), text_of(11 * 16, 5));
    ASSERT_TRUE(compute(*cache.cache, *other, 11 * 16, false));
    EXPECT_EQ(cache->peek(cache.key(0), text, 12 * 16).blocks, 12);
    EXPECT_EQ(cache->peek(cache.key(0), text, 3 * 16).blocks, 0) << "the front went";
    auto again = begin(*cache.cache, cache.key(0), text);
    EXPECT_EQ(again->computed, 12 * 16);
    expect_whole(*cache.cache, *again);
    again.reset();
    other.reset();
    // And when of the window before the end one block goes, nothing is found.
    auto third = begin(*cache.cache, cache.key(1), text_of(18 * 16, 9));
    ASSERT_TRUE(compute(*cache.cache, *third, 18 * 16, false));
    EXPECT_EQ(cache->peek(cache.key(0), text, 12 * 16).blocks, 0);
    const KvLease* const leases[] = {&third->lease};
    cache->check(leases);
  }
}

// Whoever computes what went gives it back to the holdings that are there still.
TEST(KvWindow, WhatIsComputedAnewIsFoundAgain) {
  const KvShape shape = shape_of(kMixed);
  Cache cache(shape, 15 * shape.tables.count());
  const auto text = text_of(8 * 16 + 1);
  const auto compute_all = [&](Live& one) {
    while (one.computed < 8 * 16) ASSERT_TRUE(compute(*cache.cache, one, one.computed + 16));
  };
  auto keeper = begin(*cache.cache, cache.key(0), text);
  compute_all(*keeper);  // its holdings stay, the parts in front may go
  {
    auto other = begin(*cache.cache, cache.key(1), text_of(11 * 16, 5));
    ASSERT_TRUE(compute(*cache.cache, *other, 11 * 16, false));
  }
  ASSERT_EQ(cache->peek(cache.key(0), text, 3 * 16).blocks, 0);
  auto again = begin(*cache.cache, cache.key(0), {text.begin(), text.begin() + 3 * 16 + 1});
  ASSERT_EQ(again->computed, 0);
  ASSERT_TRUE(compute(*cache.cache, *again, 3 * 16));
  again.reset();
  EXPECT_EQ(cache->peek(cache.key(0), text, 3 * 16).blocks, 3);
  EXPECT_EQ(cache->summary().texts, 8);
  const KvLease* const leases[] = {&keeper->lease};
  cache->check(leases);
}

// Texts far longer than the window: what has no block any more is only a way, and gives
// its place to others where there are too many.
TEST(KvWindow, WhatHasNoBlockAnyMoreTakesNoPlaceForEver) {
  const KvShape shape = shape_of(kAllSlide);
  Cache cache(shape, 8);
  constexpr int kTokens = 16 * 40;
  for (int round = 0; round < 10; ++round) {
    const auto one = begin(*cache.cache, cache.key(0), text_of(kTokens, round));
    while (one->computed < kTokens) ASSERT_TRUE(compute(*cache.cache, *one, one->computed + 16));
    EXPECT_EQ(one->lease.shared(), 40) << "round " << round;
    const KvLease* const leases[] = {&one->lease};
    cache->check(leases);
  }
  cache->check({});
  EXPECT_LE(cache->summary().texts, 64);
  EXPECT_EQ(cache->available(), 8);
}

TEST(KvWindow, AnEmptyLeaseHasNothingToPass) {
  Cache cache(shape_of(kMixed), 60);
  KvLease lease = cache->match(cache.key(0), {}, 0, 0);
  cache->pass(lease, 4096);
  EXPECT_EQ(lease.places(), 0);
  EXPECT_EQ(lease.held(), 0);
  const KvLease* const leases[] = {&lease};
  cache->check(leases);
}

// Whoever names applications that are killed leaves nothing.
TEST(KvWindow, WhatOnlyKilledOnesUseGoesAtOnce) {
  Cache cache(shape_of(kMixed), 120);
  KvKey key = cache.key(0);
  key.app = cache->apps().asks("a");
  {
    const auto one = begin(*cache.cache, key, text_of(10 * 16));
    while (one->computed < 10 * 16) ASSERT_TRUE(compute(*cache.cache, *one, one->computed + 16));
  }
  EXPECT_LT(cache->free(), 120);
  ASSERT_TRUE(cache->state_app("a", AppState::kKilled).ok());
  EXPECT_EQ(cache->free(), 120);
  cache->check({});
}

TEST(KvWindow, TablesAreFewAndHoldAllLayers) {
  const auto tables_of = [](int32_t layers, int32_t one_full_in, int32_t window) {
    std::vector<int32_t> sliding;
    for (int32_t layer = 0; layer < layers; ++layer)
      sliding.push_back(one_full_in > 0 && (layer + 1) % one_full_in == 0 ? 0 : window);
    const KvTables tables = kv_tables(sliding, 32768, 512);
    const std::vector<KvPlace> places = kv_places(tables, sliding, layers);
    std::map<std::pair<int32_t, int32_t>, int32_t> seen;
    for (int32_t layer = 0; layer < layers; ++layer) {
      const KvPlace& place = places[static_cast<size_t>(layer)];
      const bool slides = sliding[static_cast<size_t>(layer)] > 0;
      EXPECT_EQ(place.table >= tables.full, slides && tables.has_windows());
      EXPECT_LT(place.table, tables.count());
      EXPECT_LT(place.layer, tables.has_windows() ? tables.layers : layers);
      EXPECT_TRUE(seen.emplace(std::pair(place.table, place.layer), layer).second) << layer;
    }
    return tables;
  };
  EXPECT_EQ(tables_of(26, 6, 512), (KvTables{1, 6, 4, 512, 512}));     // Gemma 3 1B
  EXPECT_EQ(tables_of(62, 6, 1024), (KvTables{1, 5, 11, 1024, 512}));  // Gemma 3 27B: 10 of 62 are full
  EXPECT_EQ(tables_of(26, 2, 4096), (KvTables{1, 1, 13, 4096, 512}));  // Gemma 2 2B
  EXPECT_EQ(tables_of(32, 0, 4096), (KvTables{0, 1, 32, 4096, 512}));  // Mistral 7B v0.1
  EXPECT_EQ(tables_of(32, 4, 4096), (KvTables{1, 3, 8, 4096, 512}));   // OLMo 3
  EXPECT_EQ(tables_of(28, 1, 4096), KvTables{}) << "no layer has a window";
  EXPECT_EQ(tables_of(32, 0, 32768), KvTables{}) << "no sequence is longer than the window";
  std::vector<int32_t> one_slides(28, 0);
  one_slides[5] = 64;
  EXPECT_EQ(kv_tables(one_slides, 4096, 512), KvTables{}) << "nothing would be gained";
}

// What a text of 32,768 tokens takes: whole, with the windows while prompts are read in
// steps of 512 rows, and with those while it decodes.
TEST(KvWindow, BytesOfALongTextOnTwoModels) {
  constexpr int64_t kTokens = 32768, kMiB = 1 << 20;
  constexpr int32_t kStepRows = 512;
  const auto bytes_of = [](const std::vector<int32_t>& sliding, int32_t heads, int32_t dim) {
    KvShape shape{.layers = static_cast<int32_t>(sliding.size()), .kv_heads = heads, .head_dim = dim};
    const int64_t whole = shape.tables.blocks_most(kTokens) * kv_block_bytes(shape);
    shape.tables = kv_tables(sliding, kTokens, kStepRows);
    const int64_t block = kv_block_bytes(shape);
    return std::vector<int64_t>{whole, shape.tables.blocks_most(kTokens) * block,
                                shape.tables.blocks_least(kTokens) * block};
  };
  std::vector<int32_t> gemma;  // Gemma 3 1B: each sixth layer attends to all
  for (int32_t layer = 0; layer < 26; ++layer) gemma.push_back((layer + 1) % 6 == 0 ? 0 : 512);
  const std::vector<int64_t> of_gemma = bytes_of(gemma, 1, 256);
  EXPECT_EQ(of_gemma[0], 832 * kMiB);
  EXPECT_EQ(of_gemma[1], 128 * kMiB + 65 * 16 * 24 * 1024);
  EXPECT_EQ(of_gemma[2], 128 * kMiB + 33 * 16 * 24 * 1024);
  const std::vector<int64_t> of_mistral = bytes_of(std::vector<int32_t>(32, 4096), 8, 128);
  EXPECT_EQ(of_mistral[0], 4096 * kMiB);
  EXPECT_EQ(of_mistral[1], 578 * kMiB);
  EXPECT_EQ(of_mistral[2], 514 * kMiB);
}

// Blocks and tokens of one sequence, there and back.
TEST(KvWindow, CountsTheBlocksOfASequence) {
  for (const auto& sliding : {kAllSlide, kMixed, kFewSlide}) {
    const KvTables tables = kv_tables(sliding, 1 << 20, kRows);
    for (int64_t blocks = tables.count(); blocks < 400; ++blocks) {
      const int64_t tokens = tables.tokens_within(blocks);
      if (tokens > 1 << 20) continue;  // as long as they like
      ASSERT_LE(tables.blocks_most(tokens), blocks) << blocks;
      ASSERT_GT(tables.blocks_most(tokens + 1), blocks) << blocks;
    }
    EXPECT_EQ(tables.first_read(kWindow - 1), 0);
    EXPECT_EQ(tables.first_read(kWindow + 14), 0);
    EXPECT_EQ(tables.first_read(kWindow + 15), 1);
  }
  const KvTables plain;
  EXPECT_EQ(plain.blocks_most(33), 3);
  EXPECT_EQ(plain.tokens_within(3), 48);
  EXPECT_EQ(plain.first_read(1000), 0);
}

}  // namespace
}  // namespace loralei

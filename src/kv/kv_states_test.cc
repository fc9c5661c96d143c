// SPDX-License-Identifier: Apache-2.0
// A KV cache of layers that keep states: beside a naive twin under random operations, and
// its rules one by one. A state here is a number that the identity and all tokens so far
// decide, as the twin computes it anew from the text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/allocation_counter.h"
#include "base/prng.h"
#include "kv/kv_cache.h"

namespace loralei {
namespace {

constexpr int64_t kFloats = 20;
const KvShape kShape{.layers = 1, .kv_heads = 1, .head_dim = 4, .dtype = DType::kF32};

struct Cache {
  Ledger ledger{1 << 24};
  ManualClock clock;
  std::unique_ptr<KvCache> cache;
  Cache(int32_t blocks, int32_t slots, bool prefix = true)
      : cache(std::move(KvCache::create(kShape, blocks, prefix, ledger, clock)).value()) {
    EXPECT_TRUE(cache->keep_states(kFloats, slots, ledger).ok());
  }
  KvCache* operator->() { return cache.get(); }
  KvKey key(uint8_t digest, int32_t from = 0, const std::string& salt = "") {
    KvIdentityPart part{.first_position = from};
    part.digest[0] = digest;
    return make_kv_key(cache->identities(),
                       digest == 0 ? std::vector<KvIdentityPart>{} : std::vector<KvIdentityPart>{part}, salt);
  }
};

std::vector<TokenId> text_of(int count, int salt = 0) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(i * 7 + salt);
  return tokens;
}

// Of no tokens: zeros, as a text begins.
uint64_t number_of(const KvKey& key, std::span<const TokenId> tokens, int computed) {
  uint64_t hash = 0;
  for (int i = 0; i < computed; ++i) {
    hash = (hash ^ reinterpret_cast<uintptr_t>(key.at(i).get())) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ static_cast<uint64_t>(tokens[static_cast<size_t>(i)] + 1)) * 0x9E3779B97F4A7C15u;
  }
  return hash;
}

// A sequence as the engine has it.
struct Live {
  KvLease lease;
  KvKey key;
  std::vector<TokenId> tokens;
  int computed = 0;
};

uint64_t state_of(KvCache& cache, const Live& one) {
  uint64_t first, last;
  const float* const state = cache.states().at(one.lease.state());
  std::memcpy(&first, state, sizeof first);
  std::memcpy(&last, state + kFloats - 2, sizeof last);
  EXPECT_EQ(first, last) << "half of a copy";
  return first;
}

void expect_its_own(KvCache& cache, const Live& one) {
  ASSERT_EQ(one.lease.state_at(), one.computed);
  ASSERT_EQ(state_of(cache, one), number_of(one.key, one.tokens, one.computed)) << "after " << one.computed;
}

// A step that computes up to here: false, where there is no room.
bool compute(KvCache& cache, Live& one, int target) {
  if (!cache.reserve(one.lease, target)) return false;
  one.lease.change_state();
  const uint64_t number = number_of(one.key, one.tokens, target);
  float* const state = cache.states().at(one.lease.state());
  for (int64_t i = 0; i < kFloats; i += 2) std::memcpy(state + i, &number, sizeof number);
  one.computed = target;
  cache.publish(one.lease, one.key, one.tokens, target);
  cache.keep_state(one.lease, target);
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

// As a planner cuts it.
void compute_all(KvCache& cache, Live& one, int step = 1 << 20) {
  const int size = static_cast<int>(one.tokens.size());
  while (one.computed < size) {
    const int next = std::min({size, one.computed + step, one.lease.keeps_next(one.computed)});
    ASSERT_TRUE(compute(cache, one, next)) << one.computed;
  }
}

void check(KvCache& cache, const std::vector<std::unique_ptr<Live>>& live) {
  std::vector<const KvLease*> leases;
  for (const auto& one : live) {
    leases.push_back(&one->lease);
    if (one->lease.state() != kNoState) expect_its_own(cache, *one);
  }
  cache.check(leases);
}

void run(Cache& cache, const KvKey& key, const std::vector<TokenId>& tokens, int found) {
  std::vector<std::unique_ptr<Live>> live;
  live.push_back(begin(*cache.cache, key, tokens));
  EXPECT_EQ(live[0]->computed, found * kKvBlockTokens);
  check(*cache.cache, live);
  compute_all(*cache.cache, *live[0]);
  check(*cache.cache, live);
}

TEST(KvStates, ARepeatedOrContinuedPromptBeginsWithTheStateOfItsLastBorder) {
  Cache cache(64, 4);
  const auto text = text_of(10 * 16 + 5);
  run(cache, cache.key(0), text, 0);
  EXPECT_EQ(cache->state_counts().snapshots, 1);
  run(cache, cache.key(0), text, 10);
  run(cache, cache.key(0), text_of(20 * 16), 10);
  // Whole blocks: the last of them is computed, as a prompt leaves its last token.
  const auto whole = text_of(8 * 16, 3);
  run(cache, cache.key(0), whole, 0);
  run(cache, cache.key(0), whole, 7);
  run(cache, cache.key(0), text_of(8 * 16 + 1, 3), 7);
  EXPECT_EQ(cache->state_counts().found, 4u);
}

TEST(KvStates, WhatManyBeginWithHasACopyFromItsSecondUseOn) {
  Cache cache(64, 6);
  const auto with = [](int salt) {
    std::vector<TokenId> text = text_of(6 * 16 + 3);
    for (int i = 0; i < 90; ++i) text.push_back(1000 + salt * 100 + i);
    return text;
  };
  run(cache, cache.key(0), with(1), 0);
  EXPECT_EQ(cache->state_counts().snapshots, 1);
  run(cache, cache.key(0), with(2), 0);  // where it leaves the first, and its own end
  EXPECT_EQ(cache->state_counts().snapshots, 3);
  run(cache, cache.key(0), with(3), 6);
  EXPECT_EQ(cache->state_counts().snapshots, 4);
}

TEST(KvStates, NobodyBeginsWithTheStateOfAnother) {
  Cache cache(128, 12);
  const auto text = text_of(7 * 16 + 1);
  run(cache, cache.key(0), text, 0);
  run(cache, cache.key(1), text, 0);
  run(cache, cache.key(0, 0, "salt"), text, 0);
  run(cache, cache.key(2, 5 * 16), text, 0);  // whose first five blocks are the base's: a copy is kept at these
  run(cache, cache.key(2, 5 * 16), text, 5);
  run(cache, cache.key(3, 5 * 16), text, 5);
  run(cache, cache.key(0), text, 7);
  run(cache, cache.key(1), text, 7);
}

// Borders that are close to each other are not worth a copy each.
TEST(KvStates, ShortStretchesAreComputedAgain) {
  Cache cache(64, 6);
  run(cache, cache.key(0), text_of(3 * 16 + 4), 0);
  EXPECT_EQ(cache->state_counts().snapshots, 0);
  run(cache, cache.key(0), text_of(5 * 16 + 4), 0);
  EXPECT_EQ(cache->state_counts().snapshots, 1);
  run(cache, cache.key(0), text_of(7 * 16 + 4), 5);
  EXPECT_EQ(cache->state_counts().snapshots, 1);
}

TEST(KvStates, TheCopyThatWasUsedLeastLatelyGivesWay) {
  Cache cache(128, 3);  // of which one is the sequence's own
  const auto text = [](int salt) { return text_of(6 * 16 + 1, salt); };
  run(cache, cache.key(0), text(1), 0);
  run(cache, cache.key(0), text(2), 0);
  run(cache, cache.key(0), text(1), 6);
  run(cache, cache.key(0), text(3), 0);
  run(cache, cache.key(0), text(2), 0) /* gave way, and takes the place of the first */;
  run(cache, cache.key(0), text(3), 6);
  run(cache, cache.key(0), text(1), 0);
}

// Those that run take the slots of copies; without any a lease has no state, and nobody
// waits for a copy.
TEST(KvStates, ThoseThatRunComeFirstAndACopyIsNeverWaitedFor) {
  Cache cache(128, 2);
  const auto text = text_of(6 * 16 + 1);
  run(cache, cache.key(0), text, 0);
  EXPECT_EQ(cache->state_counts().snapshots, 1);
  std::vector<std::unique_ptr<Live>> live;
  live.push_back(begin(*cache.cache, cache.key(0), text_of(90, 1)));
  live.push_back(begin(*cache.cache, cache.key(0), text));
  EXPECT_EQ(live[1]->computed, 6 * 16) << "the copy itself, since it was the last";
  check(*cache.cache, live);
  EXPECT_EQ(cache->state_counts().snapshots, 0);
  EXPECT_EQ(cache->state_counts().running, 2);
  live.push_back(begin(*cache.cache, cache.key(0), text));
  EXPECT_EQ(live[2]->computed, 0);
  EXPECT_EQ(live[2]->lease.state(), kNoState);
  live.pop_back();
  compute_all(*cache.cache, *live[0]);
  EXPECT_EQ(cache->state_counts().snapshots, 0);
  check(*cache.cache, live);
}

TEST(KvStates, ACopyGoesWithItsText) {
  Cache cache(12, 8);
  run(cache, cache.key(0), text_of(6 * 16 + 1), 0);
  EXPECT_EQ(cache->state_counts().snapshots, 1);
  run(cache, cache.key(0), text_of(11 * 16 + 1, 5), 0);  // all blocks
  EXPECT_EQ(cache->state_counts().snapshots, 1);
  EXPECT_EQ(cache->state_counts().dropped, 1u);
  run(cache, cache.key(0), text_of(6 * 16 + 1), 0);
  KvKey key = cache.key(0);
  key.app = cache->apps().asks("a");
  run(cache, key, text_of(7 * 16, 9), 0);
  const int32_t before = cache->state_counts().snapshots;
  ASSERT_TRUE(cache->state_app("a", AppState::kKilled).ok());
  EXPECT_EQ(cache->state_counts().snapshots, before - 1);
  cache->check({});
}

TEST(KvStates, WithoutPrefixCacheNothingIsKept) {
  Cache cache(64, 4, false);
  run(cache, cache.key(0), text_of(10 * 16), 0);
  run(cache, cache.key(0), text_of(10 * 16), 0);
  EXPECT_EQ(cache->state_counts().snapshots, 0);
  EXPECT_EQ(cache->state_counts().slots, 4);
}

TEST(KvStates, WhatEncodesIsRefused) {
  Cache cache(64, 4);
  const Status status = cache->rest_by({.sharing = KvSharing::kBounded, .ledger = &cache.ledger});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("states of whole texts"), std::string::npos) << status.error().message;
}

// The cache moves blocks, and states stay with their texts.
TEST(KvStates, AnotherNumberOfBlocksKeepsWhatHasRoom) {
  Cache cache(40, 4);
  const auto text = text_of(10 * 16 + 1);
  run(cache, cache.key(0), text_of(20 * 16, 7), 0);
  run(cache, cache.key(0), text, 0);
  ASSERT_TRUE(cache->resize(11, {}).ok());
  run(cache, cache.key(0), text, 10);
  EXPECT_EQ(cache->state_counts().snapshots, 1);
}

TEST(KvStates, KeepingAndFindingAllocateNothing) {
  Cache cache(64, 4);
  const auto text = text_of(10 * 16 + 5);
  run(cache, cache.key(0), text, 0);
  auto one = begin(*cache.cache, cache.key(0), text_of(12 * 16 + 1, 4));
  ASSERT_TRUE(cache->reserve(one->lease, 12 * 16));
  testing_support::start_counting_allocations();
  ASSERT_TRUE(compute(*cache.cache, *one, 12 * 16));
  EXPECT_EQ(testing_support::stop_counting_allocations().count, 0);
  EXPECT_EQ(cache->state_counts().snapshots, 2);
}

// What is found, where copies lie and which of them gives way, as written down plainly;
// with blocks for all, so that no text goes.
class Twin {
 public:
  explicit Twin(int slots) : slots_(slots) {}
  using Prefix = std::pair<const void*, std::vector<TokenId>>;

  struct Begun {
    int found = 0;
    std::set<int> borders;
    bool has_state = false;
  };
  Begun begin(const KvKey& key, const std::vector<TokenId>& tokens) {
    Begun begun;
    const int most = (static_cast<int>(tokens.size()) - 1) / 16;
    int held = 0;
    while (held < most && held_.count(prefix(key, tokens, held + 1)) > 0) ++held;
    for (int blocks = 1; blocks <= held; ++blocks)
      if (copy(prefix(key, tokens, blocks)) != copies_.end()) begun.found = blocks;
    int last = begun.found;
    for (const int border : {held, most}) {
      if (border < last + 4) continue;
      begun.borders.insert(border);
      last = border;
    }
    if (begun.found > 0) use(prefix(key, tokens, begun.found));
    begun.has_state = room();
    running_ += begun.has_state ? 1 : 0;
    return begun;
  }
  void computed(const KvKey& key, const std::vector<TokenId>& tokens, int target, const Begun& begun) {
    for (int blocks = 1; blocks <= target / 16; ++blocks) held_.insert(prefix(key, tokens, blocks));
    if (target % 16 != 0 || begun.borders.count(target / 16) == 0) return;
    const Prefix here = prefix(key, tokens, target / 16);
    if (copy(here) != copies_.end()) return use(here);
    if (room()) copies_.push_back(here);
  }
  void end(const Begun& begun) { running_ -= begun.has_state ? 1 : 0; }
  int copies() const { return static_cast<int>(copies_.size()); }

 private:
  static Prefix prefix(const KvKey& key, const std::vector<TokenId>& tokens, int blocks) {
    return {key.of_block(blocks - 1).get(), {tokens.begin(), tokens.begin() + blocks * 16}};
  }
  std::list<Prefix>::iterator copy(const Prefix& prefix) { return std::find(copies_.begin(), copies_.end(), prefix); }
  void use(const Prefix& prefix) { copies_.splice(copies_.end(), copies_, copy(prefix)); }
  bool room() {
    if (running_ + copies() < slots_) return true;
    if (copies_.empty()) return false;
    copies_.pop_front();
    return true;
  }

  const int slots_;
  int running_ = 0;
  std::set<Prefix> held_;
  std::list<Prefix> copies_;  // used last is the last
};

std::vector<TokenId> random_text(Prng& random) {
  std::vector<TokenId> tokens;
  const int pieces = 1 + static_cast<int>(random.below(4));
  for (int piece = 0; piece < pieces; ++piece) {
    const auto salt = static_cast<int>(random.below(2));
    const int count = 16 * static_cast<int>(1 + random.below(6)) + static_cast<int>(random.below(3) * random.below(8));
    for (int i = 0; i < count; ++i) tokens.push_back(100 * piece + 10 * salt + i % 10);
  }
  return tokens;
}

TEST(KvStates, RandomOperationsAgreeWithANaiveModel) {
  uint64_t found = 0, dropped = 0;
  for (uint64_t seed = 1; seed <= 60 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const int slots = 1 + static_cast<int>(random.below(8));
    Cache cache(4000, slots);
    Twin twin(slots);
    std::vector<std::unique_ptr<Live>> live;
    std::vector<Twin::Begun> begun;
    for (int step = 0; step < 300 && !testing::Test::HasFailure(); ++step) {
      const size_t index = live.empty() ? 0 : random.below(live.size());
      if (live.empty() || random.below(5) == 0) {
        const KvKey key = cache.key(static_cast<uint8_t>(random.below(2)), random.below(2) == 0 ? 0 : 48);
        const std::vector<TokenId> tokens = random_text(random);
        const Twin::Begun expected = twin.begin(key, tokens);
        auto one = begin(*cache.cache, key, tokens);
        ASSERT_EQ(one->lease.state() != kNoState, expected.has_state);
        if (!expected.has_state) continue;
        ASSERT_EQ(one->computed, expected.found * 16);
        std::set<int> borders;
        for (int at = one->lease.keeps_next(0); at != kNowhere; at = one->lease.keeps_next(at)) borders.insert(at / 16);
        ASSERT_EQ(borders, expected.borders);
        live.push_back(std::move(one));
        begun.push_back(expected);
      } else if (random.below(6) == 0 || live[index]->computed == static_cast<int>(live[index]->tokens.size())) {
        twin.end(begun[index]);
        live.erase(live.begin() + static_cast<int64_t>(index));
        begun.erase(begun.begin() + static_cast<int64_t>(index));
      } else {
        Live& one = *live[index];
        const int most = std::min(static_cast<int>(one.tokens.size()), one.lease.keeps_next(one.computed));
        // The planner's cut, or a step that was made without it.
        const int size = static_cast<int>(one.tokens.size());
        const int rows = 1 + static_cast<int>(random.below(70));
        const int target = std::min(random.below(8) == 0 ? size : most, one.computed + rows);
        ASSERT_TRUE(compute(*cache.cache, one, target));
        twin.computed(one.key, one.tokens, target, begun[index]);
      }
      check(*cache.cache, live);
      ASSERT_EQ(cache->state_counts().snapshots, twin.copies());
      ASSERT_EQ(cache->state_counts().running, static_cast<int32_t>(live.size()));
    }
    found += cache->state_counts().found;
    dropped += cache->state_counts().dropped;
    live.clear();
    cache->check({});
  }
  EXPECT_GT(found, 120u);
  EXPECT_GT(dropped, 150u);
}

// Few blocks, another number of them, all rules of eviction: whoever begins somewhere has
// the state of just that text.
TEST(KvStates, WhateverGoesAStateIsOfItsText) {
  uint64_t found = 0, dropped = 0;
  for (uint64_t seed = 1; seed <= 60 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    Cache cache(40, 2 + static_cast<int32_t>(random.below(8)));
    if (seed % 3 == 1) cache->evict_by(KvEviction::kDensity, [] { return KvWorth{.row_s = 1e-3, .load_s = {}}; });
    if (seed % 3 == 2) cache->evict_by(KvEviction::kUtility, [] { return KvWorth{}; });
    std::vector<std::unique_ptr<Live>> live;
    for (int step = 0; step < 400 && !testing::Test::HasFailure(); ++step) {
      cache.clock.advance_ns(1000);
      const size_t index = live.empty() ? 0 : random.below(live.size());
      const uint64_t choice = random.below(20);
      if (live.empty() || choice < 4) {
        KvKey key = cache.key(static_cast<uint8_t>(random.below(3)), random.below(2) == 0 ? 0 : 80);
        if (seed % 3 == 2) key.app = cache->apps().asks(std::string(1, static_cast<char>('a' + random.below(3))));
        auto one = begin(*cache.cache, key, random_text(random));
        if (one->lease.state() != kNoState) live.push_back(std::move(one));
      } else if (choice < 6 || live[index]->computed == static_cast<int>(live[index]->tokens.size())) {
        live.erase(live.begin() + static_cast<int64_t>(index));
      } else if (choice == 6) {
        const auto blocks = static_cast<int32_t>(10 + random.below(31));
        std::vector<KvLease*> leases;
        for (const auto& one : live) leases.push_back(&one->lease);
        if (cache->leased() <= blocks) ASSERT_TRUE(cache->resize(blocks, leases).ok());
      } else if (choice == 7) {
        const std::string app(1, static_cast<char>('a' + random.below(3)));
        ASSERT_TRUE(cache->state_app(app, random.below(2) == 0 ? AppState::kKilled : AppState::kForeground).ok());
      } else {
        Live& one = *live[index];
        const int size = static_cast<int>(one.tokens.size());
        const int rows = 1 + static_cast<int>(random.below(70));
        const int target = std::min({size, one.computed + rows, one.lease.keeps_next(one.computed)});
        if (!compute(*cache.cache, one, target)) live.erase(live.begin() + static_cast<int64_t>(index));
      }
      check(*cache.cache, live);
    }
    found += cache->state_counts().found;
    dropped += cache->state_counts().dropped;
    live.clear();
    cache->check({});
  }
  EXPECT_GT(found, 100u);
  EXPECT_GT(dropped, 300u);
}

}  // namespace
}  // namespace loralei

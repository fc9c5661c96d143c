// SPDX-License-Identifier: Apache-2.0
// What rests encoded comes back: exactly where that is asked for, within its bound else,
// and never as somebody else's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "kv/kv_cache.h"

namespace loralei {
namespace {

constexpr float kStep = 0.0625f;
constexpr float kContextPart = 0.01f;  // what the block before adds to a number
const KvShape kFloats{.layers = 2, .kv_heads = 1, .head_dim = 8, .dtype = DType::kF32};
const KvShape kBytes{.layers = 2, .kv_heads = 1, .head_dim = 16, .dtype = DType::kI8};

KvIdentityPart part(uint8_t digest, int32_t first_position = 0) {
  KvIdentityPart value;
  value.digest[0] = digest;
  value.first_position = first_position;
  return value;
}

struct Cache {
  Ledger ledger{1 << 22};
  ManualClock clock;
  KvShape shape;
  KvEvents events{4096};  // told of all that is held: check() sees whether that is so
  std::unique_ptr<KvCache> cache;
  Cache(const KvShape& of, int32_t blocks, KvSharing sharing, int32_t capacity = 0, ThreadPool* pool = nullptr,
        KvDelta delta = KvDelta::kSteps, float step = kStep)
      : shape(of), cache(std::move(KvCache::create(of, blocks, true, ledger, clock, capacity)).value()) {
    KvRestOptions options{.sharing = sharing, .delta = delta, .grid = {}, .pool = pool, .ledger = &ledger};
    const std::vector<float> steps(static_cast<size_t>(2 * of.layers * of.kv_heads * of.head_dim), step);
    if (!has_vector_scale(of.dtype)) options.grid = std::move(KvGrid::create(kv_grid_shape(of), steps)).value();
    CHECK(cache->rest_by(std::move(options)).ok());
    cache->tell(events);
  }
  KvCache* operator->() { return cache.get(); }
  KvKey key(std::vector<KvIdentityPart> parts, bool exact, const std::string& salt = "") {
    KvKey key = make_kv_key(cache->identities(), parts, salt);
    key.exact = exact;
    return key;
  }
  std::span<std::byte> bytes(int32_t block) {
    return {cache->view().slice(block, 0, 0), static_cast<size_t>(cache->view().block_stride_bytes)};
  }
};

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 31);
}
float unit(uint64_t hash) { return static_cast<float>(hash >> 40) * 0x1p-24f; }

// The model of these tests: what a block holds is told by the tokens so far and its
// identity, up to a little that the bytes of the block before it tell. Adapters differ
// from the base by some steps; so a block of somebody else shows.
class Content {
 public:
  Content(const KvKey& key, const std::vector<TokenId>& tokens, int block) {
    for (int i = 0; i < (block + 1) * kKvBlockTokens; ++i)
      text_ = mix(text_, static_cast<uint64_t>(tokens[static_cast<size_t>(i)]));
    const std::string& identity = *key.at((block + 1) * kKvBlockTokens - 1);
    for (const char c : identity) identity_ = mix(identity_, static_cast<uint8_t>(c));
    is_base_ = std::all_of(identity.begin(), identity.end(), [](char c) { return c == 0; });
  }
  float number(int64_t at) const {
    const float of_text = 4 * unit(mix(text_, static_cast<uint64_t>(at))) - 2;
    return is_base_ ? of_text : of_text + 0.6f * unit(mix(identity_, static_cast<uint64_t>(at))) + 0.1f;
  }
  void fill(std::span<std::byte> out, std::span<const std::byte> before, bool floats) const {
    uint64_t context = 7;
    for (const std::byte byte : before) context = mix(context, static_cast<uint64_t>(byte));
    if (!floats) {
      for (size_t at = 0; at < out.size(); ++at) {
        const float value = 3 * number(static_cast<int64_t>(at)) + 2 * unit(mix(context, at));
        out[at] = static_cast<std::byte>(static_cast<int8_t>(std::lrint(value)));
      }
      return;
    }
    for (size_t at = 0; at < out.size() / sizeof(float); ++at) {
      const float value = number(static_cast<int64_t>(at)) + kContextPart * unit(mix(context, at));
      std::memcpy(out.data() + at * sizeof value, &value, sizeof value);
    }
  }

 private:
  uint64_t text_ = 1, identity_ = 3;
  bool is_base_ = false;
};

// As it was computed cold.
std::vector<std::byte> cold(Cache& cache, const KvKey& key, const std::vector<TokenId>& tokens, int block) {
  const auto size = static_cast<size_t>(cache->view().block_stride_bytes);
  std::vector<std::byte> before, now;
  for (int i = 0; i <= block; ++i) {
    now.assign(size, {});
    Content(key, tokens, i).fill(now, before, !has_vector_scale(cache.shape.dtype));
    before = now;
  }
  return now;
}

// How far the numbers of a block are from what they are to be, at most.
float error_of(Cache& cache, const KvKey& key, const std::vector<TokenId>& tokens, int block, int32_t id) {
  const Content content(key, tokens, block);
  float most = 0;
  const std::span<std::byte> bytes = cache.bytes(id);
  for (size_t at = 0; at < bytes.size() / sizeof(float); ++at) {
    float value = 0;
    std::memcpy(&value, bytes.data() + at * sizeof value, sizeof value);
    most = std::max(most, std::abs(value - content.number(static_cast<int64_t>(at))));
  }
  return most;
}

struct Live {
  KvLease lease;
  const KvKey* key = nullptr;
  std::vector<TokenId> tokens;
  int computed = 0;
};

void compute(Cache& cache, Live& live, int target) {
  for (int block = live.computed / kKvBlockTokens; (block + 1) * kKvBlockTokens <= target; ++block) {
    const auto blocks = live.lease.blocks();
    const auto before = block == 0 ? std::span<std::byte>() : cache.bytes(blocks[static_cast<size_t>(block) - 1]);
    Content(*live.key, live.tokens, block)
        .fill(cache.bytes(blocks[static_cast<size_t>(block)]), before, !has_vector_scale(cache.shape.dtype));
  }
  live.computed = target;
  cache->publish(live.lease, *live.key, live.tokens, target);
}

// Leases what is there and computes the rest.
Live run(Cache& cache, const KvKey& key, const std::vector<TokenId>& tokens) {
  Live live{.lease = {}, .key = &key, .tokens = tokens};
  const auto count = static_cast<int32_t>(tokens.size());
  live.lease = cache->match(key, tokens, count, kv_blocks_for(count));
  EXPECT_TRUE(cache->materialise(live.lease));
  live.computed = live.lease.shared() * kKvBlockTokens;
  EXPECT_TRUE(cache->reserve(live.lease, count));
  compute(cache, live, count);
  return live;
}

std::vector<TokenId> text(int count, int first = 0) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

KvHeld held_by(Cache& cache, const KvIdentity& identity) {
  for (const KvHeld& held : cache->summary().held) {
    if (held.identity == identity) return held;
  }
  return {};
}

// Everything that is in a block takes it to itself for a moment, but what is to stay raw.
void take_blocks(Cache& cache, int32_t blocks) {
  KvLease lease = cache->match(cache.key({}, false), {}, 0, blocks);
  EXPECT_TRUE(cache->reserve(lease, blocks * kKvBlockTokens));
}

TEST(KvRest, AnAdaptersPrefixIsADeltaToTheBasesAndComesBackWithinItsBound) {
  Cache cache(kFloats, 12, KvSharing::kBounded);
  const KvKey base = cache.key({}, false), adapter = cache.key({part(1)}, false);
  const auto tokens = text(64);
  run(cache, adapter, tokens).lease.release();
  run(cache, base, tokens).lease.release();
  EXPECT_TRUE(cache->wants_rest());
  while (cache->rest() > 0) cache->check({});
  const KvHeld of_adapter = held_by(cache, adapter.at(0)), of_base = held_by(cache, base.at(0));
  EXPECT_GT(of_adapter.deltas, 0);
  EXPECT_EQ(of_adapter.alone_coded, 0) << "the base's was there to be told from";
  EXPECT_GT(of_base.alone_coded, 0);
  EXPECT_LT(of_adapter.coded_bytes / of_adapter.deltas, of_base.coded_bytes / of_base.alone_coded);
  {
    KvLease large = cache->match(base, {}, 0, 12);
    ASSERT_TRUE(cache->reserve(large, 16 * cache->available()));  // what was in blocks goes, and is not lost
  }
  ASSERT_EQ(cache->peek(adapter, tokens, 64).blocks, 4);
  Live again = run(cache, adapter, tokens);
  EXPECT_EQ(again.lease.shared(), 4);
  for (int block = 0; block < 4; ++block)
    EXPECT_LE(error_of(cache, adapter, tokens, block, again.lease.blocks()[static_cast<size_t>(block)]),
              kStep / 2 + kContextPart + 1e-5f);
  EXPECT_GT(cache->coded().times.decoded_blocks, 0);
  const KvLease* const leases[] = {&again.lease};
  cache->check(leases);
}

// Of every token the bound is that of its class, by its cosine to what the anchor's blob
// says; though the anchor's block is there too when it is told.
TEST(KvRest, ByThePapersBoundsADeltaIsWithinTheBoundOfItsClass) {
  Cache cache(kFloats, 12, KvSharing::kBounded, 0, nullptr, KvDelta::kPaper);
  const KvKey base = cache.key({}, false), adapter = cache.key({part(1)}, false);
  const auto tokens = text(64);
  run(cache, adapter, tokens).lease.release();
  run(cache, base, tokens).lease.release();
  std::vector<std::vector<std::byte>> wanted;
  {
    const Live own = run(cache, adapter, tokens);
    for (int block = 0; block < 4; ++block) {
      const auto bytes = cache.bytes(own.lease.blocks()[static_cast<size_t>(block)]);
      wanted.emplace_back(bytes.begin(), bytes.end());
    }
  }
  while (cache->rest() > 0) cache->check({});
  EXPECT_EQ(held_by(cache, adapter.at(0)).deltas, 4);
  take_blocks(cache, cache->available());
  const Live again = run(cache, adapter, tokens), anchor = run(cache, base, tokens);
  ASSERT_EQ(again.lease.shared() + anchor.lease.shared(), 8);
  ASSERT_EQ(cache->coded().times.decoded_blocks, 8);
  EXPECT_EQ(cache->coded().delta, KvDelta::kPaper);
  for (size_t block = 0; block < 4; ++block) {
    const KvView& view = cache->view();
    KvBlockAt own{.view = view, .block = 0};
    own.view.base = wanted[block].data();
    const KvBlockAt on{.view = view, .block = anchor.lease.blocks()[block]};
    for (int32_t layer = 0; layer < kFloats.layers; ++layer)
      for (const int32_t v : {0, 1})
        for (int32_t at = 0; at < kKvBlockTokens * kFloats.head_dim; ++at) {
          const int32_t token = v == 0 ? at % kKvBlockTokens : at / kFloats.head_dim;
          const auto number = [&](const std::byte* slice) { return reinterpret_cast<const float*>(slice)[at]; };
          const float got = number(view.slice(again.lease.blocks()[block], layer, v));
          const double bound = kKvPaperBounds[kv_paper_class(own, on, layer, v, token)];
          ASSERT_NEAR(got, number(own.view.slice(0, layer, v)), bound + 1e-6) << block << " " << at;
        }
  }
}

TEST(KvRest, WhatIsTooFarForThePapersBoundsIsEncodedAlone) {
  Cache cache(kFloats, 8, KvSharing::kBounded, 0, nullptr, KvDelta::kPaper);
  const KvKey base = cache.key({}, false), adapter = cache.key({part(1)}, false);
  const auto tokens = text(16);
  run(cache, base, tokens).lease.release();
  const auto far = [](size_t at) { return 1500 - static_cast<float>(at % 7); };
  {
    Live live{.lease = cache->match(adapter, tokens, 16, 1), .key = &adapter, .tokens = tokens};
    ASSERT_TRUE(cache->reserve(live.lease, 16));
    const auto bytes = cache.bytes(live.lease.blocks()[0]);
    for (size_t at = 0; at < bytes.size() / sizeof(float); ++at) {
      const float number = far(at);
      std::memcpy(bytes.data() + at * sizeof number, &number, sizeof number);
    }
    cache->publish(live.lease, adapter, tokens, 16);
  }
  while (cache->rest() > 0) cache->check({});
  EXPECT_EQ(held_by(cache, adapter.at(0)).deltas, 0);
  EXPECT_EQ(held_by(cache, adapter.at(0)).alone_coded, 1);
  take_blocks(cache, cache->available());
  const Live again = run(cache, adapter, tokens);
  ASSERT_EQ(again.lease.shared(), 1);
  const auto* const numbers = reinterpret_cast<const float*>(cache.bytes(again.lease.blocks()[0]).data());
  for (size_t at = 0; at < 64; ++at) EXPECT_NEAR(numbers[at], far(at), kStep / 2 + 1e-3);
}

TEST(KvRest, WhoAsksForWhatIsExactComputesItAnewAndIsFoundByAll) {
  Cache cache(kFloats, 8, KvSharing::kBounded);
  const KvKey loose = cache.key({part(1)}, false), strict = cache.key({part(1)}, true);
  const auto tokens = text(64);
  run(cache, loose, tokens).lease.release();
  while (cache->rest() > 0) {
  }
  EXPECT_EQ(cache->peek(strict, tokens, 64).blocks, 4) << "all that is encoded lies in blocks still";
  {
    KvLease large = cache->match(loose, {}, 0, 8);
    ASSERT_TRUE(cache->reserve(large, 16 * cache->available()));
  }
  const int32_t exact_left = cache->peek(strict, tokens, 64).blocks;
  EXPECT_LT(exact_left, 4);
  EXPECT_EQ(cache->peek(loose, tokens, 64).blocks, 4);
  Live again = run(cache, strict, tokens);
  EXPECT_EQ(again.lease.shared(), 4) << "its own take the place of what is encoded";
  for (int block = 0; block < 4; ++block) {
    const auto bytes = cache.bytes(again.lease.blocks()[static_cast<size_t>(block)]);
    EXPECT_TRUE(std::ranges::equal(bytes, cold(cache, strict, tokens, block))) << block;
  }
  Live beside = run(cache, loose, tokens);
  EXPECT_EQ(beside.lease.blocks()[3], again.lease.blocks()[3]);
}

TEST(KvRest, WhatIsNotExactIsNotSharedWithWhoComputesExactlyBesideIt) {
  Cache cache(kFloats, 12, KvSharing::kBounded);
  const KvKey loose = cache.key({part(1)}, false), strict = cache.key({part(1)}, true);
  const auto tokens = text(64);
  run(cache, loose, tokens).lease.release();
  while (cache->rest() > 0) {
  }
  {
    KvLease large = cache->match(loose, {}, 0, 12);
    ASSERT_TRUE(cache->reserve(large, 16 * cache->available()));
  }
  Live first = run(cache, loose, tokens);  // decoded, and leased
  Live second = run(cache, strict, tokens);
  EXPECT_LT(second.lease.shared(), 4) << "it keeps its own to itself";
  for (int block = 0; block < 4; ++block) {
    const auto bytes = cache.bytes(second.lease.blocks()[static_cast<size_t>(block)]);
    EXPECT_TRUE(std::ranges::equal(bytes, cold(cache, strict, tokens, block))) << block;
  }
  const KvLease* const leases[] = {&first.lease, &second.lease};
  cache->check(leases);
}

TEST(KvRest, SaltsShareNothingNotEvenAnAnchor) {
  Cache cache(kFloats, 10, KvSharing::kBounded);
  const KvKey base = cache.key({}, false), salted = cache.key({part(1)}, false, "s");
  const auto tokens = text(64);
  run(cache, base, tokens).lease.release();
  run(cache, salted, tokens).lease.release();
  while (cache->rest() > 0) cache->check({});
  EXPECT_EQ(held_by(cache, salted.at(0)).deltas, 0);
  EXPECT_GT(held_by(cache, salted.at(0)).alone_coded, 0);
}

TEST(KvRest, AnAnchorOfManyThatWouldGoFirstEndsNoSearchForRoom) {
  constexpr int kAdapters = 6;  // more than an anchor's that is told anew
  Cache cache(kFloats, 40, KvSharing::kBounded);
  cache->evict_by(KvEviction::kUtility, {});
  ASSERT_TRUE(cache->state_app("behind", AppState::kBackground).ok());
  KvKey base = cache.key({}, false);
  base.app = cache->apps().asks("behind");
  std::vector<KvKey> adapters;
  for (uint8_t i = 0; i < kAdapters; ++i) {
    adapters.push_back(cache.key({part(static_cast<uint8_t>(i + 1))}, false));
    adapters.back().app = cache->apps().asks("front");
  }
  run(cache, base, text(32)).lease.release();
  for (const KvKey& adapter : adapters) run(cache, adapter, text(32)).lease.release();
  while (cache->rest() > 0) {
  }
  // Behind each delta lies a block that is not encoded.
  for (const KvKey& adapter : adapters) run(cache, adapter, text(48)).lease.release();
  take_blocks(cache, cache->free() + 2 * (kAdapters + 1));  // what is encoded loses its blocks
  ASSERT_EQ(held_by(cache, base.at(0)).raw, 0);
  ASSERT_EQ(held_by(cache, adapters[0].at(0)).raw, 1);
  for (int32_t wanted = cache->available() + 1; cache->pages() > 0; ++wanted) {
    cache->make_available(wanted);
    cache->check({});
  }
}

TEST(KvRest, AKilledAnchorThatTakesItsDependantsAlongIsLookedAtOnce) {
  int lost = 0;
  for (int run_number = 2; run_number < 50; ++run_number) {
    const int fillers = run_number / 2;
    const bool stays = run_number % 2 == 0;
    SCOPED_TRACE(testing::Message() << fillers << " fillers" << (stays ? ", the delta's application stays" : ""));
    Cache cache(kFloats, 8, KvSharing::kBounded);
    KvKey base = cache.key({}, false), adapter = cache.key({part(1)}, false);
    base.app = cache->apps().asks("gone");
    adapter.app = cache->apps().asks(stays ? "stays" : "gone");
    const auto rest = [&] {
      while (cache->rest() > 0) {
      }
    };
    run(cache, base, text(16)).lease.release();
    run(cache, adapter, text(16)).lease.release();
    rest();
    for (int i = 0; i < fillers; ++i) {
      KvKey filler = cache.key({}, false);
      filler.app = cache->apps().asks("others");
      run(cache, filler, text(16, 1000 * (i + 1))).lease.release();
      rest();
    }
    KvLease all = cache->match(adapter, {}, 0, 8);
    ASSERT_TRUE(cache->reserve(all, cache->available() * kKvBlockTokens));
    ASSERT_EQ(cache->free(), 0) << "there is no room to tell the delta anew";
    const int32_t before = held_by(cache, adapter.at(0)).blocks;
    ASSERT_TRUE(cache->state_app("gone", AppState::kKilled).ok());
    lost += stays && before > 0 && held_by(cache, adapter.at(0)).blocks == 0 ? 1 : 0;
    const KvLease* const leases[] = {&all};
    cache->check(leases);
  }
  EXPECT_GT(lost, 0);
}

TEST(KvRest, RefusesWhatItCannotDo) {
  Ledger ledger(1 << 22);
  ManualClock clock;
  const auto ids = KvCache::create_ids(4, true, clock);
  EXPECT_NE(
      ids->rest_by({.sharing = KvSharing::kBounded, .ledger = &ledger}).error().message.find("--kv-sharing exact"),
      std::string::npos);
  const auto floats = std::move(KvCache::create(kFloats, 4, true, ledger, clock)).value();
  EXPECT_NE(floats->rest_by({.sharing = KvSharing::kLossless, .ledger = &ledger}).error().message.find("int8"),
            std::string::npos);
  const auto refusal = [&](KvSharing sharing, DType dtype) {
    KvShape shape = kFloats;
    shape.dtype = dtype;
    const auto cache = std::move(KvCache::create(shape, 4, true, ledger, clock)).value();
    return cache->rest_by({.sharing = sharing, .delta = KvDelta::kPaper, .ledger = &ledger}).error().message;
  };
  EXPECT_NE(refusal(KvSharing::kExact, DType::kF32).find("--kv-sharing bounded"), std::string::npos);
  for (const DType dtype : {DType::kI8, DType::kF8})
    for (const KvSharing sharing : {KvSharing::kLossless, KvSharing::kBounded})
      EXPECT_NE(refusal(sharing, dtype).find("--kv-cache-dtype f32"), std::string::npos);
  EXPECT_NE(refusal(KvSharing::kLossless, DType::kF32).find("bounded"), std::string::npos);
  Ledger full(4 * kv_block_bytes(kBytes));
  const auto bytes = std::move(KvCache::create(kBytes, 4, true, full, clock)).value();
  EXPECT_NE(bytes->rest_by({.sharing = KvSharing::kLossless, .ledger = &full}).error().message.find("budget"),
            std::string::npos);
  EXPECT_EQ(bytes->coded().sharing, KvSharing::kExact);
}

struct Seen {
  int64_t decoded = 0, recoded = 0, deltas = 0, alone = 0, hollow = 0, exact_blocks = 0, loose_blocks = 0,
          private_leases = 0;
};

// Whoever comes leases what a planner would have counted, and computes on.
void begin(Cache& cache, const KvKey& key, Prng& random, std::vector<std::unique_ptr<Live>>& live) {
  auto one = std::make_unique<Live>();
  one->key = &key;
  const int count = 1 + static_cast<int>(random.below(110));
  const uint64_t alike = random.below(2) == 0 ? 4 : 2;
  TokenId token = 0;
  for (int i = 0; i < count; ++i) {
    if (i > 0 && i % kKvBlockTokens == 0) token = static_cast<TokenId>(random.below(alike) == 0);
    one->tokens.push_back(token);
  }
  const KvMatch match = cache->peek(key, one->tokens, count - 1);
  if (match.evictable > cache->available()) return;
  one->lease = cache->match(key, one->tokens, count - 1, 8);
  ASSERT_EQ(one->lease.shared(), match.blocks);
  ASSERT_TRUE(cache->materialise(one->lease));
  one->computed = match.tokens();
  live.push_back(std::move(one));
}

void verify(Cache& cache, const std::vector<std::unique_ptr<Live>>& live, float bound, Seen& seen) {
  std::vector<const KvLease*> leases;
  for (const auto& one : live) {
    leases.push_back(&one->lease);
    const int full = one->computed / kKvBlockTokens;
    if (one->lease.shared() < full) ++seen.private_leases;
    for (int block = 0; block < full; ++block) {
      const int32_t id = one->lease.blocks()[static_cast<size_t>(block)];
      if (one->key->exact || has_vector_scale(cache.shape.dtype)) {
        ++seen.exact_blocks;
        ASSERT_TRUE(std::ranges::equal(cache.bytes(id), cold(cache, *one->key, one->tokens, block))) << block;
      } else {
        ++seen.loose_blocks;
        ASSERT_LE(error_of(cache, *one->key, one->tokens, block, id), bound + kContextPart + 1e-5f) << block;
      }
    }
  }
  cache->check(leases);
  for (KvEvent event; cache.events.take(event);) {
  }
  EXPECT_EQ(cache.events.counts().lost, 0u);
}

void tally(Cache& cache, Seen& seen) {
  for (const KvHeld& held : cache->summary().held) {
    seen.deltas += held.deltas;
    seen.alone += held.alone_coded;
    seen.hollow += held.nowhere;
  }
}

// By the paper's bounds steps are finer than these, so that what is told twice shows.
float step_of(KvDelta delta) { return delta == KvDelta::kPaper ? 0.0078125f : kStep; }
float bound_of(KvDelta delta) { return delta == KvDelta::kPaper ? static_cast<float>(kKvPaperBounds[2]) : kStep / 2; }

// Random trees of prefixes of adapters and salts, beside what each must hold: with
// evictions, encodes, another number of blocks, applications that are killed.
Seen run_random(const KvShape& shape, KvSharing sharing, uint64_t seeds, int steps, KvDelta delta = KvDelta::kSteps) {
  constexpr int32_t kCapacity = 40;
  Seen seen;
  ThreadPool pool(2);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    Cache cache(shape, 24, sharing, kCapacity, seed % 2 == 0 ? &pool : nullptr, delta, step_of(delta));
    const auto eviction = static_cast<KvEviction>(seed % 3);
    cache->evict_by(eviction, [] { return KvWorth{.row_s = 0.001, .load_s = {}}; });
    std::vector<KvKey> keys;
    for (const bool exact : {false, false, true}) {
      for (const auto& parts : std::vector<std::vector<KvIdentityPart>>{{}, {part(1)}, {part(2)}, {part(1, 20)}})
        keys.push_back(cache.key(parts, exact));
    }
    keys.push_back(cache.key({part(1)}, false, "salt"));
    keys.push_back(cache.key({}, false, "salt"));
    std::vector<std::unique_ptr<Live>> live;
    for (int step = 0; step < steps; ++step) {
      cache.clock.advance_ns(static_cast<int64_t>(random.below(60)) * 1'000'000'000);
      const uint64_t choice = random.below(20);
      if (choice < 5) {
        KvKey& key = keys[random.below(keys.size())];
        key.app = cache->apps().asks(std::string(1, static_cast<char>('a' + random.below(3))));
        begin(cache, key, random, live);
      } else if (choice < 10 && !live.empty()) {
        Live& one = *live[random.below(live.size())];
        const int target =
            std::min<int>(static_cast<int>(one.tokens.size()), one.computed + 1 + static_cast<int>(random.below(40)));
        const int missing = kv_blocks_for(target) - static_cast<int>(one.lease.blocks().size());
        const bool fits = missing <= cache->available();
        EXPECT_EQ(cache->reserve(one.lease, target), fits);
        if (fits) compute(cache, one, target);
      } else if (choice < 15 && !live.empty()) {
        live.erase(live.begin() + static_cast<int64_t>(random.below(live.size())));
      } else if (choice < 17) {
        for (uint64_t i = random.below(6); i > 0; --i) cache->rest();
      } else if (choice == 17 && random.below(2) == 0) {
        cache->make_available(static_cast<int32_t>(random.below(8)));
      } else if (choice == 17) {  // somebody takes all there is for a moment
        KvLease all = cache->match(keys[0], {}, 0, 40);
        EXPECT_TRUE(cache->reserve(all, cache->available() * kKvBlockTokens));
      } else if (choice == 18) {
        const int32_t least = std::max(1, cache->leased());
        std::vector<KvLease*> leases;
        for (const auto& one : live) leases.push_back(&one->lease);
        const auto blocks = least + static_cast<int32_t>(random.below(static_cast<uint64_t>(kCapacity - least) + 1));
        EXPECT_TRUE(cache->resize(blocks, leases).ok());
      } else {
        EXPECT_TRUE(cache
                        ->state_app(std::string(1, static_cast<char>('a' + random.below(3))),
                                    static_cast<AppState>(random.below(3)))
                        .ok());
      }
      verify(cache, live, bound_of(delta), seen);
      tally(cache, seen);
      if (testing::Test::HasFailure()) return seen;
      EXPECT_EQ(cache.ledger.used_bytes(MemoryUse::kKv), cache->total() * kv_block_bytes(shape));
    }
    seen.decoded += cache->coded().times.decoded_blocks;
    seen.recoded += cache->coded().times.recoded_blocks;
    EXPECT_EQ(cache->coded().times.damaged_blocks, 0);
    live.clear();
    cache->make_available(INT32_MAX);
    EXPECT_EQ(cache->pages(), 0);
    cache->check({});
  }
  return seen;
}

TEST(KvRest, BoundedRandomTreesHoldWhatTheyMustAndWhatIsExactStaysExact) {
  const Seen seen = run_random(kFloats, KvSharing::kBounded, 150, 500);
  EXPECT_GT(seen.decoded, 1000);
  EXPECT_GT(seen.deltas, 10000);
  EXPECT_GT(seen.alone, 10000);
  EXPECT_GT(seen.recoded, 500);
  EXPECT_GT(seen.exact_blocks, 10000);
  EXPECT_GT(seen.loose_blocks, 10000);
  EXPECT_GT(seen.private_leases, 0);
}

TEST(KvRest, ByThePapersBoundsRandomTreesHoldWhatTheyMustAndNoErrorsAddUp) {
  const Seen seen = run_random(kFloats, KvSharing::kBounded, 60, 500, KvDelta::kPaper);
  EXPECT_GT(seen.decoded, 300);
  EXPECT_GT(seen.deltas, 2000);
  EXPECT_GT(seen.alone, 2000);
  EXPECT_EQ(seen.recoded, 0);
  EXPECT_GT(seen.exact_blocks, 3000);
  EXPECT_GT(seen.loose_blocks, 3000);
}

TEST(KvRest, LosslessRandomTreesAreBitForBitAsComputedCold) {
  const Seen seen = run_random(kBytes, KvSharing::kLossless, 80, 500);
  EXPECT_GT(seen.decoded, 500);
  EXPECT_GT(seen.deltas, 5000);
  EXPECT_EQ(seen.loose_blocks, 0);
}

TEST(KvRest, ExactRandomTreesEncodeNothing) {
  const Seen seen = run_random(kFloats, KvSharing::kExact, 10, 300);
  EXPECT_EQ(seen.decoded + seen.deltas + seen.alone + seen.hollow, 0);
}

}  // namespace
}  // namespace loralei

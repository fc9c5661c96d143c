// SPDX-License-Identifier: Apache-2.0
// What goes from a cache to disk, and what it is when it comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "kv/kv_cache.h"
#include "kv/kv_disk_test_util.h"

namespace loralei {
namespace {

// int8, so that what was encoded is as it was; with the stream before layer 1.
const KvShape kShape{
    .layers = 2, .kv_heads = 1, .head_dim = 16, .dtype = DType::kI8, .streams = {.dim = 8, .levels = 1, .layers = {1}}};
constexpr int32_t kBlocks = 6;

struct Caches {
  DiskFolder folder;
  Ledger ledger{1 << 22};
  ManualClock clock;
  CollectingLog log;
  std::optional<KvFetched> fetched;
  std::unique_ptr<KvDisk> disk;
  std::vector<TokenId> tokens = std::vector<TokenId>(kKvBlockTokens, 7);

  // A disk that takes blobs of this grid; of none, blocks as they lie.
  explicit Caches(uint64_t grid = 0) {
    const int64_t block = kv_block_bytes(kShape);
    const KvDiskOptions options{.folder = folder.path(),
                                .grid = grid,
                                .bytes_most = 64 * block,
                                .record_bytes_most = block,
                                .write_buffer_bytes = 8 * block,
                                .read_buffer_bytes = 8 * block,
                                .thread = false};
    disk = std::move(KvDisk::open(options, ledger, clock, log, [this](KvFetched&& message) {
             fetched = std::move(message);
           })).value();
  }
  std::unique_ptr<KvCache> cache() {
    auto made = std::move(KvCache::create(kShape, kBlocks, true, ledger, clock)).value();
    CHECK(made->rest_by({.sharing = KvSharing::kLossless, .ledger = &ledger}).ok());
    made->spill_to(*disk);
    return made;
  }
  static KvKey base(KvCache& cache) { return make_kv_key(cache.identities(), {}, ""); }
  // Of an adapter that changes nothing below layer 1 of these tokens.
  static KvKey borrower(KvCache& cache) {
    KvIdentityPart part{.first_layer = 1, .until = 64};
    part.digest[0] = 9;
    return make_kv_key(cache.identities(), {&part, 1}, "");
  }
  // The base's blocks are computed, with their streams, and released.
  void compute(KvCache& cache) {
    KvLease lease = cache.match(base(cache), tokens, 0, kBlocks);
    const auto count = static_cast<int32_t>(tokens.size());
    ASSERT_TRUE(cache.reserve(lease, count));
    for (const int32_t block : lease.blocks()) {
      std::memset(cache.view().slice(block, 0, 0), 3, static_cast<size_t>(cache.block_bytes()));
      std::fill_n(cache.streams().rows(block, 0), kKvBlockTokens * kShape.streams.dim, uint16_t{0x3F80});
    }
    cache.publish(lease, base(cache), tokens, count);
  }
  // What the cache has goes to disk, and another one gets it from there.
  std::unique_ptr<KvCache> move_on(KvCache& cache) {
    while (cache.spill() == KvCache::Spill::kSome) {
    }
    while (disk->run_one_job()) {
    }
    auto next = this->cache();
    const auto keys = next->disk_keys(base(*next), tokens, kKvBlockTokens);
    EXPECT_TRUE(disk->fetch(1, keys, true));
    while (disk->run_one_job()) {
    }
    EXPECT_TRUE(fetched);
    EXPECT_EQ(next->restore(base(*next), tokens, keys, 0, fetched->blocks), 1);
    fetched.reset();
    next->check({});
    EXPECT_EQ(next->peek(base(*next), tokens, kKvBlockTokens).blocks, 1);
    return next;
  }
  int32_t lent(KvCache& cache) { return cache.lent(borrower(cache), tokens, kKvBlockTokens, 0, 1); }
};

TEST(KvSpill, ABlockComesBackWithItsStream) {
  Caches caches;
  const auto first = caches.cache();
  caches.compute(*first);
  ASSERT_EQ(caches.lent(*first), 1);
  const auto next = caches.move_on(*first);
  ASSERT_EQ(caches.lent(*next), 1);
  KvLease lease = next->match(Caches::borrower(*next), caches.tokens, 0, kBlocks);
  ASSERT_EQ(next->borrow(lease, Caches::borrower(*next), caches.tokens, 1, 1), 1);
  EXPECT_EQ(next->streams().rows(lease.blocks()[0], 0)[5], 0x3F80);
}

// Its K and V encoded, and its block gone to others.
void encode_alone(Caches& caches, KvCache& cache) {
  ASSERT_EQ(cache.rest(), 1);
  cache.check({});
  {
    KvLease all = cache.match(Caches::base(cache), {}, 0, kBlocks);
    ASSERT_TRUE(cache.reserve(all, cache.available() * kKvBlockTokens));
    for (const int32_t block : all.blocks())
      std::memset(cache.view().slice(block, 0, 0), 0x55, static_cast<size_t>(cache.block_bytes()));
  }
  ASSERT_EQ(cache.coded().blobs, 1);
  ASSERT_EQ(cache.free() + cache.pages(), kBlocks) << "no block is of a prefix";
  EXPECT_EQ(caches.lent(cache), 1);
}

// It is the base's of layer 0, with the stream before layer 1.
void expect_lends(Caches& caches, KvCache& cache) {
  ASSERT_EQ(caches.lent(cache), 1);
  KvLease lease = cache.match(Caches::borrower(cache), caches.tokens, 0, kBlocks);
  ASSERT_EQ(cache.borrow(lease, Caches::borrower(cache), caches.tokens, 1, 1), 1);
  EXPECT_EQ(*cache.view().slice(lease.blocks()[0], 0, 0), std::byte{3});
  for (const int32_t place : {0, 5, kKvBlockTokens * kShape.streams.dim - 1})
    EXPECT_EQ(cache.streams().rows(lease.blocks()[0], 0)[place], 0x3F80);
  const KvLease* const leases[] = {&lease};
  cache.check(leases);
}

TEST(KvSpill, WhatIsEncodedLendsItsStreamFromBesideTheBlob) {
  Caches caches;
  const auto cache = caches.cache();
  caches.compute(*cache);
  ASSERT_NO_FATAL_FAILURE(encode_alone(caches, *cache));
  expect_lends(caches, *cache);
  EXPECT_EQ(cache->coded().times.decoded_blocks, 1);
  EXPECT_EQ(cache->coded().blobs, 1) << "streams are not counted";
  // Nor does it where that has gone.
  cache->make_available(kBlocks);
  EXPECT_EQ(caches.lent(*cache), 0);
  EXPECT_EQ(cache->coded().bytes, 0);
  cache->check({});
}

// A block that was decoded has the stream that lay beside its blob, and goes to disk with
// it.
TEST(KvSpill, ABlockThatWasDecodedHasItsStream) {
  Caches caches;
  const auto first = caches.cache();
  caches.compute(*first);
  ASSERT_NO_FATAL_FAILURE(encode_alone(caches, *first));
  {
    KvLease again = first->match(Caches::base(*first), caches.tokens, kKvBlockTokens, kBlocks);
    ASSERT_EQ(again.shared(), 1);
    ASSERT_TRUE(first->materialise(again));
    EXPECT_EQ(first->streams().rows(again.blocks()[0], 0)[5], 0x3F80);
  }
  expect_lends(caches, *first);
  const auto next = caches.move_on(*first);
  expect_lends(caches, *next);
}

// Where room is made, streams go before any prefix does.
TEST(KvSpill, StreamsGoBeforePrefixes) {
  Caches caches;
  const auto cache = caches.cache();
  caches.tokens.assign(5 * kKvBlockTokens, 7);
  caches.compute(*cache);
  while (cache->rest() > 0) {
  }
  const KvCoded before = cache->coded();
  ASSERT_EQ(before.blobs, 5);
  ASSERT_GE(before.pages, 2);
  EXPECT_EQ(cache->lent(Caches::borrower(*cache), caches.tokens, 5 * kKvBlockTokens, 0, 1), 5);
  while (cache->pages() == before.pages) cache->make_available(cache->available() + 1);
  EXPECT_EQ(cache->coded().blobs, 5);
  EXPECT_LT(cache->coded().bytes, before.bytes);
  EXPECT_LT(cache->lent(Caches::borrower(*cache), caches.tokens, 5 * kKvBlockTokens, 0, 1), 5);
  cache->check({});
}

// On disk a blob is without it.
TEST(KvSpill, ABlobThatComesFromDiskLendsNothing) {
  Caches caches(KvGrid::create(kv_grid_shape(kShape), {}).value().digest());
  const auto first = caches.cache();
  caches.compute(*first);
  ASSERT_NO_FATAL_FAILURE(encode_alone(caches, *first));
  const auto next = caches.move_on(*first);
  EXPECT_EQ(caches.lent(*next), 0);
}

// A cache of floats that finds its steps itself, on a disk that was opened without any:
// of each text the base's block and one of an adapter, which differs by a little.
struct FoundSteps {
  static constexpr KvShape kFloats{.layers = 2, .kv_heads = 1, .head_dim = 16, .dtype = DType::kF32};
  static constexpr int32_t kMost = 24, kTexts = 4;
  static constexpr float kFar = 2.2f;  // no number is farther
  DiskFolder folder;
  Ledger ledger{1 << 24};
  ManualClock clock;
  CollectingLog log;
  std::optional<KvFetched> fetched;
  std::unique_ptr<KvDisk> disk;
  std::unique_ptr<KvCache> cache;

  ~FoundSteps() {
    fetched.reset();
    cache.reset();
  }
  void start(std::optional<KvGrid> grid, KvDelta delta = KvDelta::kSteps) {
    cache.reset();
    disk.reset();
    const int64_t block = kv_block_bytes(kFloats);
    const KvDiskOptions options{.folder = folder.path(),
                                .grid = grid ? grid->digest() : 0,
                                .bytes_most = 256 * block,
                                .record_bytes_most = block,
                                .write_buffer_bytes = 32 * block,
                                .read_buffer_bytes = 64 * block,
                                .thread = false};
    disk = std::move(KvDisk::open(options, ledger, clock, log, [this](KvFetched&& message) {
             fetched = std::move(message);
           })).value();
    cache = std::move(KvCache::create(kFloats, kMost, true, ledger, clock)).value();
    CHECK(cache->rest_by({.sharing = KvSharing::kBounded, .delta = delta, .grid = std::move(grid), .ledger = &ledger})
              .ok());
    cache->spill_to(*disk);
  }
  void run_disk() {
    while (disk->run_one_job()) {
    }
  }
  KvKey key(bool adapter) {
    KvIdentityPart part{};
    part.digest[0] = 9;
    KvKey key = make_kv_key(cache->identities(), {&part, adapter ? 1u : 0u}, "");
    key.exact = false;
    return key;
  }
  static std::vector<TokenId> tokens(int text) { return std::vector<TokenId>(kKvBlockTokens, text); }
  static std::vector<float> numbers(int text, bool adapter) {
    Prng random(static_cast<uint64_t>(text) + 1);
    std::vector<float> numbers(static_cast<size_t>(kv_block_bytes(kFloats)) / sizeof(float));
    for (float& number : numbers) number = static_cast<float>(random.below(1000)) * 0.004f - 2 + (adapter ? 0.1f : 0);
    return numbers;
  }
  std::span<float> block(const KvLease& lease) {
    return {reinterpret_cast<float*>(cache->view().slice(lease.blocks()[0], 0, 0)), numbers(0, false).size()};
  }
  void compute(int text, bool adapter) {
    KvLease lease = cache->match(key(adapter), tokens(text), 0, 1);
    ASSERT_TRUE(cache->reserve(lease, kKvBlockTokens));
    std::ranges::copy(numbers(text, adapter), block(lease).begin());
    cache->publish(lease, key(adapter), tokens(text), kKvBlockTokens);
  }
  void expect_on_disk(int text, bool adapter, double bound) {
    const auto keys = cache->disk_keys(key(adapter), tokens(text), kKvBlockTokens);
    ASSERT_TRUE(disk->fetch(1, keys, false));
    run_disk();
    ASSERT_EQ(cache->restore(key(adapter), tokens(text), keys, 0, fetched->blocks), 1);
    fetched.reset();
    const KvLease lease = cache->match(key(adapter), tokens(text), kKvBlockTokens, 1);
    const std::vector<float> want = numbers(text, adapter);
    const std::span<const float> got = block(lease);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << i;
  }
};

double bound_of(const KvGrid& grid) {
  double bound = 0;
  for (const int32_t layer : {0, 1})
    for (const int32_t v : {0, 1})
      for (const float step : grid.steps(layer, v))
        bound = std::max(bound, kv_error_bound(DType::kF32, step, FoundSteps::kFar));
  return bound;
}

TEST(KvSpill, WithStepsThatWereFoundBlobsAreWrittenOnceTheDiskHasLearntThem) {
  FoundSteps world;
  world.start({});
  for (int text = 0; text < FoundSteps::kTexts; ++text)
    for (const bool adapter : {false, true}) world.compute(text, adapter);
  while (world.cache->rest() > 0) {
  }
  ASSERT_TRUE(world.cache->grid());
  const KvGrid grid = *world.cache->grid();
  world.disk->learn_grid(grid.digest(), [] { return Status(); });
  EXPECT_EQ(world.cache->spill(), KvCache::Spill::kFull) << "nothing goes there raw meanwhile";
  world.run_disk();
  while (world.cache->spill() == KvCache::Spill::kSome) {
  }
  world.run_disk();
  EXPECT_EQ(world.disk->stats().written_blocks, 2 * FoundSteps::kTexts);
  EXPECT_EQ(world.disk->stats().written_coded, 2 * FoundSteps::kTexts);
  EXPECT_TRUE(world.disk->flush(1000));
  // The next process, told of the steps, reads both forms; one with others finds nothing.
  world.start(grid);
  for (int text = 0; text < FoundSteps::kTexts; ++text)
    for (const bool adapter : {false, true}) world.expect_on_disk(text, adapter, bound_of(grid));
  EXPECT_EQ(world.disk->stats().read_coded, 2 * FoundSteps::kTexts);
  const std::vector<float> others(2 * 2 * 16, 1.0f);
  world.start(KvGrid::create(kv_grid_shape(FoundSteps::kFloats), others).value());
  EXPECT_EQ(world.disk->stats().found_records, 0);
}

// There is no form on disk for differences by the paper's bounds: they lie there raw, and
// those of a process that tells integers are read as such.
TEST(KvSpill, ByThePapersBoundsDeltasGoToDiskRawAndThoseOfIntegersAreReadAllTheSame) {
  const KvGrid grid = KvGrid::create(kv_grid_shape(FoundSteps::kFloats), std::vector<float>(2 * 2 * 16, 0.5f)).value();
  for (const auto& [before, after] : {std::pair(KvDelta::kPaper, KvDelta::kSteps),
                                      {KvDelta::kSteps, KvDelta::kPaper},
                                      {KvDelta::kPaper, KvDelta::kPaper}}) {
    FoundSteps world;
    world.start(grid, before);
    for (int text = 0; text < FoundSteps::kTexts; ++text)
      for (const bool adapter : {false, true}) world.compute(text, adapter);
    while (world.cache->rest() > 0) {
    }
    int32_t deltas = 0;
    for (const KvHeld& held : world.cache->summary().held) deltas += held.deltas;
    EXPECT_EQ(deltas, FoundSteps::kTexts);
    while (world.cache->spill() == KvCache::Spill::kSome) {
    }
    world.run_disk();
    EXPECT_EQ(world.disk->stats().written_blocks, 2 * FoundSteps::kTexts);
    EXPECT_EQ(world.disk->stats().written_coded, (before == KvDelta::kPaper ? 1 : 2) * FoundSteps::kTexts);
    EXPECT_TRUE(world.disk->flush(1000));
    world.start(grid, after);
    for (int text = 0; text < FoundSteps::kTexts; ++text)
      for (const bool adapter : {true, false}) world.expect_on_disk(text, adapter, bound_of(grid));
    EXPECT_EQ(world.disk->stats().lost_records, 0);
    // What was decoded is not encoded anew by these bounds.
    while (world.cache->rest() > 0) world.cache->check({});
    const int64_t encoded = world.cache->coded().times.encoded_blocks;
    EXPECT_EQ(encoded, after == KvDelta::kSteps    ? 2 * FoundSteps::kTexts
                       : before == KvDelta::kPaper ? FoundSteps::kTexts
                                                   : 0);
  }
}

}  // namespace
}  // namespace loralei

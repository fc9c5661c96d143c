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

  // A disk that takes blocks as they lie, whatever else they are.
  Caches() {
    const int64_t block = kv_block_bytes(kShape);
    const KvDiskOptions options{.folder = folder.path(),
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
  // The base's block is computed, with its stream, and released.
  void compute(KvCache& cache) {
    KvLease lease = cache.match(base(cache), tokens, 0, kBlocks);
    ASSERT_TRUE(cache.reserve(lease, kKvBlockTokens));
    std::byte* const bytes = cache.view().slice(lease.blocks()[0], 0, 0);
    std::memset(bytes, 0, static_cast<size_t>(cache.block_bytes()));
    std::fill_n(cache.streams().rows(lease.blocks()[0], 0), kKvBlockTokens * kShape.streams.dim, uint16_t{0x3F80});
    cache.publish(lease, base(cache), tokens, kKvBlockTokens);
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

TEST(KvSpill, ABlockThatWasDecodedLendsNothingHereNorBehindTheDisk) {
  Caches caches;
  const auto first = caches.cache();
  caches.compute(*first);
  ASSERT_EQ(first->rest(), 1);
  {
    KvLease all = first->match(Caches::base(*first), {}, 0, kBlocks);
    ASSERT_TRUE(first->reserve(all, first->available() * kKvBlockTokens));  // its block goes
  }
  EXPECT_EQ(caches.lent(*first), 0);
  {
    KvLease again = first->match(Caches::base(*first), caches.tokens, kKvBlockTokens, kBlocks);
    ASSERT_EQ(again.shared(), 1);
    ASSERT_TRUE(first->materialise(again));
    ASSERT_EQ(first->coded().times.decoded_blocks, 1);
    std::fill_n(first->streams().rows(again.blocks()[0], 0), kKvBlockTokens * kShape.streams.dim, uint16_t{0x4242});
  }
  EXPECT_EQ(caches.lent(*first), 0);
  const auto next = caches.move_on(*first);
  EXPECT_EQ(caches.lent(*next), 0);
}

}  // namespace
}  // namespace loralei

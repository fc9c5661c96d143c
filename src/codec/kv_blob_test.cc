// SPDX-License-Identifier: Apache-2.0
// Blobs of blocks: there and back on every path, refused when they are another's or
// damaged.
#include "codec/kv_blob.h"

#include <gtest/gtest.h>

#include "base/allocation_counter.h"
#include "base/fast_hash.h"
#include "codec/codec_test_util.h"

namespace loralei {
namespace {

// Two blocks of one grid, near each other.
struct Pair {
  KvGrid grid;
  KvNumbers first, second;
};
Pair random_pair(Prng& prng, const KvGridShape& shape, float step, float noise) {
  const std::vector<float> scales = random_scales(prng, shape);
  const KvGrid grid = grid_of(shape, scales, step);
  Pair pair{grid, KvNumbers(grid), KvNumbers(grid)};
  const TestCache a(shape), b(shape);
  fill_block(prng, shape, scales, a, 0);
  fill_near(prng, shape, scales, a, b, noise);
  CHECK(kv_read(grid, a.view(), 0, pair.first));
  for (int32_t layer = 0; layer < shape.layers && has_vector_scale(shape.dtype); ++layer) {
    for (float& scale : pair.second.scales(shape.layers)) scale = normal(prng);
  }
  CHECK(kv_read(grid, b.view(), 0, pair.second));
  return pair;
}

KvGridShape small_shape(DType dtype = DType::kF16) {
  return {.layers = 2, .kv_heads = 1, .head_dim = 18, .dtype = dtype};
}

TEST(KvBlob, EveryPathWritesTheSameBytesAndReadsBackWhatWasThere) {
  Prng seeds(31);
  for (int round = 0; round < 60; ++round) {
    const uint64_t seed = seeds();
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    const KvGridShape shape = random_shape(prng, kCacheTypes[round % 5]);
    const float step = static_cast<float>(std::exp2(prng.uniform() * 8 - 6));
    Pair pair = random_pair(prng, shape, step, static_cast<float>(prng.uniform()));
    const auto [grid, first, second] = pair;
    for (const KvNumbers* anchor : {static_cast<const KvNumbers*>(nullptr), &first}) {
      const std::vector<std::byte> blob = encoded(grid, second, anchor, kv_codec_paths().front());
      for (const KvCodecPath& path : kv_codec_paths()) {
        SCOPED_TRACE(path.name);
        EXPECT_EQ(encoded(grid, second, anchor, path), blob);
        KvNumbers back(grid);
        const auto held = exact_copy(blob);
        const Status status = kv_decode(grid, {held.get(), blob.size()}, anchor, shape.layers, back, path);
        ASSERT_TRUE(status.ok()) << status.error().message;
        EXPECT_TRUE(same_numbers(back, second));
        // A room of exactly its size does, one byte less does not.
        std::vector<std::byte> room(blob.size());
        EXPECT_EQ(kv_encode(grid, second, anchor, room, path), blob.size());
        EXPECT_EQ(room, blob);
        room.pop_back();
        EXPECT_EQ(kv_encode(grid, second, anchor, room, path), 0u);
      }
      const auto info = kv_blob_info(blob);
      ASSERT_TRUE(info.ok());
      EXPECT_EQ(info->kind, anchor == nullptr ? KvBlobKind::kAlone : KvBlobKind::kDelta);
      EXPECT_EQ(info->layers, shape.layers);
      EXPECT_EQ(info->grid, grid.digest());
      EXPECT_EQ(info->anchor, anchor == nullptr ? 0 : kv_numbers_hash(first));
    }
  }
}

TEST(KvBlob, AReaderMayStopAfterAnyLayer) {
  Prng prng(32);
  for (const DType dtype : kCacheTypes) {
    const KvGridShape shape{.layers = 5, .kv_heads = 2, .head_dim = 34, .dtype = dtype};
    Pair pair = random_pair(prng, shape, 0.25f, 0.3f);
    const auto [grid, first, second] = pair;
    const auto blob = encoded(grid, second, &first), alone = encoded(grid, first, nullptr);
    for (const KvCodecPath& path : kv_codec_paths()) {
      for (int32_t layers = 0; layers <= shape.layers; ++layers) {
        KvNumbers anchor(grid), back(grid);
        ASSERT_TRUE(kv_decode(grid, alone, nullptr, layers, anchor, path).ok());
        ASSERT_TRUE(kv_decode(grid, blob, &anchor, layers, back, path).ok());
        EXPECT_EQ(back.layers(), layers);
        for (int32_t layer = 0; layer < layers; ++layer) {
          EXPECT_EQ(std::memcmp(back.layer(layer).data(), second.layer(layer).data(), second.layer(layer).size_bytes()),
                    0);
        }
        if (!back.scales(layers).empty()) {
          EXPECT_EQ(
              std::memcmp(back.scales(layers).data(), second.scales(layers).data(), back.scales(layers).size_bytes()),
              0);
        }
        if (layers == shape.layers) continue;
        EXPECT_FALSE(kv_decode(grid, blob, &anchor, layers + 1, back, path).ok());  // the anchor ends before
      }
    }
  }
}

// The farthest that two integers can be apart.
TEST(KvBlob, DifferencesWrapWithoutLoss) {
  Prng prng(33);
  const KvGridShape shape{.layers = 1, .kv_heads = 1, .head_dim = 32, .dtype = DType::kF32};
  const KvGrid grid = grid_of(shape, std::vector<float>(64, 1.0f), 1.0f);
  KvNumbers first(grid), second(grid), back(grid);
  first.set_layers(1);
  second.set_layers(1);
  for (size_t i = 0; i < first.layer(0).size(); ++i) {
    const auto pick = [&] {
      return static_cast<int16_t>(prng.below(3) == 0 ? 32767 : prng.below(2) == 0 ? -32767 : 0);
    };
    first.layer(0)[i] = pick();
    second.layer(0)[i] = pick();
  }
  for (const KvCodecPath& path : kv_codec_paths()) {
    const auto blob = encoded(grid, second, &first, path);
    ASSERT_TRUE(kv_decode(grid, blob, &first, 1, back, path).ok());
    EXPECT_TRUE(same_numbers(back, second));
  }
}

// Told from one anchor, then from another: the integers are the same after any number
// of turns.
TEST(KvBlob, AnotherAnchorChangesNothing) {
  Prng prng(34);
  const KvGridShape shape{.layers = 3, .kv_heads = 2, .head_dim = 32, .dtype = DType::kBF16};
  const std::vector<float> scales = random_scales(prng, shape);
  const KvGrid grid = grid_of(shape, scales, 0.5f);
  std::vector<KvNumbers> blocks;
  for (int i = 0; i < 4; ++i) {
    const TestCache cache(shape);
    fill_block(prng, shape, scales, cache, 0);
    blocks.emplace_back(grid);
    ASSERT_TRUE(kv_read(grid, cache.view(), 0, blocks.back()));
  }
  KvNumbers kept = blocks[0];
  for (int turn = 0; turn < 20; ++turn) {
    const KvNumbers& anchor = blocks[1 + prng.below(3)];
    const auto blob = encoded(grid, kept, &anchor);
    KvNumbers back(grid);
    ASSERT_TRUE(kv_decode(grid, blob, &anchor, back).ok());
    const TestCache cache(shape);
    kv_write(grid, back, cache.view(), 0);
    ASSERT_TRUE(kv_read(grid, cache.view(), 0, kept));
    ASSERT_TRUE(same_numbers(kept, blocks[0]));
  }
}

TEST(KvBlob, NoBlockTakesMoreThanTheBound) {
  Prng prng(35);
  for (const DType dtype : kCacheTypes) {
    for (int round = 0; round < 20; ++round) {
      const KvGridShape shape = random_shape(prng, dtype);
      const KvGrid grid = grid_of(shape, random_scales(prng, shape), 1.0f);
      KvNumbers numbers(grid);
      numbers.set_layers(shape.layers);
      for (int32_t layer = 0; layer < shape.layers; ++layer) {
        const uint64_t spread = uint64_t{1} << prng.below(17);
        for (int16_t& integer : numbers.layer(layer))
          integer = static_cast<int16_t>(prng.below(spread) * (round % 3 == 0 ? prng.below(200) / 199 : 1));
      }
      const KvNumbers zero = [&] {
        KvNumbers made(grid);
        made.set_layers(shape.layers);
        return made;
      }();
      EXPECT_LE(encoded(grid, numbers, &zero).size(), kv_blob_bound(grid));
    }
  }
}

// Tables are made before.
TEST(KvBlob, NothingIsAllocatedOnTheWay) {
  Prng prng(41);
  for (const DType dtype : kCacheTypes) {
    Pair pair = random_pair(prng, small_shape(dtype), 0.5f, 0.2f);
    const TestCache cache(pair.grid.shape());
    KvNumbers back(pair.grid);
    std::vector<std::byte> room(kv_blob_bound(pair.grid));
    bool good = true;
    testing_support::start_counting_allocations();
    for (const KvNumbers* anchor :
         {static_cast<const KvNumbers*>(nullptr), static_cast<const KvNumbers*>(&pair.first)}) {
      const size_t size = kv_encode(pair.grid, pair.second, anchor, room);
      good &= kv_decode(pair.grid, std::span(room).first(size), anchor, back).ok();
      kv_write(pair.grid, back, cache.view(), 0);
      good &= kv_read(pair.grid, cache.view(), 0, back);
      good &= kv_blob_info(std::span(room).first(size)).ok();
    }
    EXPECT_EQ(testing_support::stop_counting_allocations().count, 0);
    EXPECT_TRUE(good);
  }
}

struct Sample {
  KvGrid grid;
  KvNumbers anchor;
  std::vector<std::byte> blob;
  bool is_delta = false;
};
std::vector<Sample> samples(uint64_t seed) {
  Prng prng(seed);
  std::vector<Sample> all;
  for (const DType dtype : {DType::kF16, DType::kI8, DType::kF8}) {
    for (const bool is_delta : {false, true}) {
      Pair pair = random_pair(prng, small_shape(dtype), 0.5f, 0.2f);
      auto blob = encoded(pair.grid, pair.second, is_delta ? &pair.first : nullptr);
      all.push_back({pair.grid, pair.first, std::move(blob), is_delta});
    }
  }
  return all;
}

void expect_refused(const Sample& sample, std::span<const std::byte> blob, const std::string& what) {
  for (const int32_t layers : {0, 1, 2}) {
    KvNumbers numbers(sample.grid);
    const Status status = kv_decode(sample.grid, blob, &sample.anchor, layers, numbers);
    ASSERT_FALSE(status.ok()) << what;
    EXPECT_GT(status.error().message.size(), 40u);
    EXPECT_EQ(numbers.layers(), 0);
  }
}

TEST(KvBlob, CutAtAnyByteItIsRefused) {
  for (const Sample& sample : samples(36)) {
    for (size_t size = 0; size < sample.blob.size(); ++size) {
      const auto held = exact_copy(std::span(sample.blob).first(size));
      expect_refused(sample, {held.get(), size}, "cut at " + std::to_string(size));
      EXPECT_FALSE(kv_blob_info({held.get(), size}).ok());
    }
    std::vector<std::byte> longer = sample.blob;
    longer.push_back(std::byte{0});
    expect_refused(sample, longer, "a byte more");
  }
}

TEST(KvBlob, ChangedAtAnyBitItIsRefused) {
  for (const Sample& sample : samples(37)) {
    std::vector<std::byte> blob = sample.blob;
    for (size_t bit = 0; bit < 8 * blob.size(); ++bit) {
      const auto mask = static_cast<std::byte>(1 << (bit % 8));
      blob[bit / 8] ^= mask;
      expect_refused(sample, blob, "bit " + std::to_string(bit));
      EXPECT_FALSE(kv_blob_info(blob).ok());
      blob[bit / 8] ^= mask;
    }
  }
}

// With a checksum that fits, what is damaged is still read within its bounds: some
// numbers, or a refusal, the same on every path.
TEST(KvBlob, DamageUnderARightChecksumStaysWithinItsBounds) {
  Prng prng(38);
  for (const Sample& sample : samples(39)) {
    for (int round = 0; round < 3000; ++round) {
      std::vector<std::byte> blob = sample.blob;
      if (prng.below(4) == 0) blob.resize(kKvBlockTokens + prng.below(blob.size()));
      for (uint64_t changes = prng.below(4); changes-- > 0;)
        blob[prng.below(blob.size())] = static_cast<std::byte>(prng());
      if (blob.size() < 24) continue;
      const auto size = static_cast<uint32_t>(blob.size());
      std::memcpy(blob.data() + 4, &size, sizeof size);
      uint64_t seed;
      std::memcpy(&seed, blob.data(), sizeof seed);
      const uint64_t sum = fast_hash(blob.data() + 16, blob.size() - 16, seed);
      std::memcpy(blob.data() + 8, &sum, sizeof sum);
      const auto held = exact_copy(blob);
      KvNumbers expected(sample.grid), got(sample.grid);
      const auto layers = static_cast<int32_t>(prng.below(3));
      const bool ok =
          kv_decode(sample.grid, {held.get(), size}, &sample.anchor, layers, expected, kv_codec_paths().front()).ok();
      for (const KvCodecPath& path : kv_codec_paths()) {
        ASSERT_EQ(kv_decode(sample.grid, {held.get(), size}, &sample.anchor, layers, got, path).ok(), ok);
        if (ok) {
          ASSERT_TRUE(same_numbers(got, expected));
        }
      }
    }
  }
}

TEST(KvBlob, AnotherGridOrAnchorIsRefused) {
  Prng prng(40);
  const KvGridShape shape = small_shape();
  Pair pair = random_pair(prng, shape, 0.5f, 0.2f);
  const auto [grid, first, second] = pair;
  const auto delta = encoded(grid, second, &first), alone = encoded(grid, second, nullptr);
  KvNumbers back(grid);
  EXPECT_TRUE(kv_decode(grid, delta, &first, back).ok());
  EXPECT_FALSE(kv_decode(grid, delta, nullptr, back).ok());
  for (const int32_t layer : {0, 1}) {  // one integer of one layer is another
    KvNumbers other = first;
    ++other.layer(layer).back();
    for (const int32_t layers : {1, 2})
      EXPECT_EQ(kv_decode(grid, delta, &other, layers, back).ok(), layers <= layer) << layer << " " << layers;
  }
  const KvGrid finer = grid_of(shape, std::vector<float>(72, 1.0f), 0.5f);
  KvNumbers of_finer(finer), anchor_of_finer(finer);
  anchor_of_finer.set_layers(2);
  EXPECT_FALSE(kv_decode(finer, alone, nullptr, of_finer).ok());
  EXPECT_FALSE(kv_decode(finer, delta, &anchor_of_finer, of_finer).ok());
  const KvGridShape wider{.layers = 2, .kv_heads = 2, .head_dim = 18, .dtype = DType::kF16};
  const KvGrid of_wider = grid_of(wider, std::vector<float>(144, 1.0f), 0.5f);
  KvNumbers wide(of_wider);
  wide.set_layers(2);
  EXPECT_FALSE(kv_decode(grid, delta, &wide, back).ok());
}

}  // namespace
}  // namespace loralei

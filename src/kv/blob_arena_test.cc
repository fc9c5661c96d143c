// SPDX-License-Identifier: Apache-2.0
#include "kv/blob_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

std::vector<std::byte> random_bytes(Prng& random, size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

TEST(BlobArena, AllButTheLastChunkOfABlobIsFull) {
  constexpr int64_t kPage = 16384;
  std::vector<std::byte> memory(kPage * 4);
  BlobArena arena(memory.data(), kPage);
  arena.set_capacity(4, 100);
  EXPECT_EQ(arena.chunks_of_page(), 128);
  EXPECT_EQ(arena.store(std::vector<std::byte>(1), 0), kNoBlob) << "there is no page";
  arena.add_page(2);
  Prng random(1);
  const auto first = random_bytes(random, 129), second = random_bytes(random, 126 * 128);
  const int32_t a = arena.store(first, 5), b = arena.store(second, 6);
  ASSERT_NE(a, kNoBlob);
  ASSERT_NE(b, kNoBlob);
  EXPECT_EQ(arena.free_chunks(), 0) << "two chunks and 126";
  EXPECT_EQ(arena.store(std::vector<std::byte>(1), 7), kNoBlob);
  EXPECT_EQ(arena.stored_bytes(), 129 + 126 * 128);
  EXPECT_EQ(arena.release_page(), std::nullopt);
  arena.drop(b);
  EXPECT_EQ(arena.release_page(), std::nullopt) << "the other has no page to go to";
  arena.add_page(0);
  EXPECT_EQ(arena.release_page(), 0) << "the empty one";
  std::vector<std::byte> out(129);
  arena.load(a, out);
  EXPECT_EQ(out, first);
  EXPECT_EQ(arena.owner_in_emptiest(), 5);
  arena.check();
}

// Beside a map of what was stored; pages come, go, and are renamed as a pool does.
TEST(BlobArena, RandomOperationsAgreeWithAMapOfBytes) {
  constexpr int64_t kPage = 1024;
  constexpr int32_t kBlocks = 12;
  int released = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    std::vector<std::byte> memory(kPage * kBlocks);
    BlobArena arena(memory.data(), kPage);
    arena.set_capacity(kBlocks, 40);
    std::map<int32_t, std::pair<std::vector<std::byte>, int32_t>> stored;
    std::set<int32_t> pages;
    for (int step = 0; step < 400; ++step) {
      const uint64_t choice = random.below(10);
      if (choice < 2) {
        const auto block = static_cast<int32_t>(random.below(kBlocks));
        if (pages.insert(block).second) arena.add_page(block);
      } else if (choice < 4) {
        const bool room = !pages.empty() && arena.free_chunks() >= arena.chunks_of_page();
        const auto block = arena.release_page();
        ASSERT_EQ(block.has_value(), room);
        if (block) {
          ASSERT_EQ(pages.erase(*block), 1u);
          std::fill_n(memory.begin() + *block * kPage, kPage, std::byte{0xEE});  // somebody else's now
          ++released;
        }
      } else if (choice < 8) {
        auto bytes = random_bytes(random, 1 + random.below(700));
        const bool room = arena.chunks_for(std::ssize(bytes)) <= arena.free_chunks() && stored.size() < 40;
        const int32_t blob = arena.store(bytes, step);
        ASSERT_EQ(blob != kNoBlob, room);
        if (room) stored[blob] = {std::move(bytes), step};
      } else if (!stored.empty()) {
        const auto one = std::next(stored.begin(), static_cast<int64_t>(random.below(stored.size())));
        arena.drop(one->first);
        stored.erase(one);
      }
      if (random.below(30) == 0) {  // two blocks change places
        std::vector<int32_t> names(kBlocks);
        for (int32_t i = 0; i < kBlocks; ++i) names[static_cast<size_t>(i)] = i;
        const auto a = random.below(kBlocks), b = random.below(kBlocks);
        std::swap(names[a], names[b]);
        std::swap_ranges(memory.begin() + static_cast<int64_t>(a) * kPage,
                         memory.begin() + static_cast<int64_t>(a + 1) * kPage,
                         memory.begin() + static_cast<int64_t>(b) * kPage);
        arena.rename_blocks(names);
        std::set<int32_t> renamed;
        for (const int32_t block : pages) renamed.insert(names[static_cast<size_t>(block)]);
        pages = renamed;
      }
      arena.check();
      ASSERT_EQ(arena.pages(), static_cast<int32_t>(pages.size()));
      ASSERT_EQ(arena.blobs(), static_cast<int32_t>(stored.size()));
      for (const auto& [blob, kept] : stored) {
        ASSERT_EQ(arena.owner_of(blob), kept.second);
        std::vector<std::byte> out(kept.first.size());
        ASSERT_EQ(arena.size(blob), std::ssize(out));
        arena.load(blob, out);
        ASSERT_EQ(out, kept.first);
      }
    }
  }
  EXPECT_GT(released, 100);
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "kv/disk_format.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <set>
#include <string>

#include "base/prng.h"
#include "kv/disk_buffers.h"
#include "kv/disk_index.h"

namespace loralei {
namespace {

TEST(DiskFormat, AKeyIsTheHashOfItsPartsEachWithItsLength) {
  KvDiskKey before;
  for (size_t i = 0; i < before.size(); ++i) before[i] = static_cast<uint8_t>(i);
  std::array<TokenId, 16> tokens;
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = 100 + static_cast<TokenId>(i);
  using namespace std::string_view_literals;
  // By Python's hashlib.
  EXPECT_EQ(digest_hex(kv_disk_key(before, "who\0salt"sv, tokens)),
            "e24e6849a0ba28098ce187622a195d1a2054c24b6e2a83aa1e7c39a9e1b5b8a0");
  tokens[0] = -1;
  EXPECT_EQ(digest_hex(kv_disk_key({}, "", tokens)),
            "ba07c5a1cbb8ae77fc03493b6c8f6c1a5db770c6c34cf6bcbb3711a3865eb27a");
  std::set<KvDiskKey> keys;
  for (const std::string_view identity : {""sv, "\0"sv, "a"sv, "ab"sv, "a\0\0\0\0\0\0\0"sv})
    for (size_t count = 0; count < 4; ++count)
      for (const KvDiskKey& first : {KvDiskKey{}, before})
        keys.insert(kv_disk_key(first, identity, std::span(tokens).first(count)));
  EXPECT_EQ(keys.size(), 5u * 4 * 2);
}

TEST(DiskFormat, AHeaderIsReadBackAndIsOfItsFormatAlone) {
  const DiskFormat format(Digest{1}), other(Digest{2});
  DiskHeader header{
      .record = {.key = {3, 1}, .form = KvDiskForm::kDelta, .exact = true, .streams = true, .grid = 5, .anchor = {6}},
      .segment = 0xfffffffe,
      .payload_bytes = 1 << 30,
      .offset = (uint64_t{1} << 40) - kDiskAlign,
      .sum = ~uint64_t{0},
      .anchor_sum = 8};
  std::array<std::byte, kDiskHeaderBytes> bytes;
  format.write_header(header, bytes);
  EXPECT_EQ(format.read_header(bytes), header);
  EXPECT_EQ(other.read_header(bytes), std::nullopt);
  const auto refused = [&](auto change) {
    DiskHeader changed = header;
    change(changed);
    format.write_header(changed, bytes);
    return !format.read_header(bytes);
  };
  EXPECT_TRUE(refused([](DiskHeader& changed) { changed.offset += 1; }));
  EXPECT_TRUE(refused([](DiskHeader& changed) { changed.offset = 64; }));
  EXPECT_TRUE(refused([](DiskHeader& changed) { changed.offset = uint64_t{1} << 40; }));
  EXPECT_TRUE(refused([](DiskHeader& changed) { changed.payload_bytes = 0; }));
  EXPECT_TRUE(refused([](DiskHeader& changed) { changed.payload_bytes = 0x80000001; }));
  EXPECT_TRUE(refused([](DiskHeader& changed) { changed.record.form = static_cast<KvDiskForm>(3); }));
}

// Pieces beside a list of what they hold.
TEST(DiskBuffers, PiecesOfTheRingNeverLieOverEachOther) {
  constexpr size_t kBytes = 1000;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    WriteRing ring(kBytes);
    std::deque<std::pair<std::span<std::byte>, std::byte>> pieces;
    size_t refused = 0;
    for (int operation = 0; operation < 2000; ++operation) {
      const size_t bytes = 1 + random.below(random.below(20) == 0 ? kBytes : 200);
      if (random.below(2) == 0 && ring.has_room(bytes)) {
        const std::span<std::byte> piece = ring.take(bytes);
        ASSERT_EQ(piece.size(), bytes);
        const auto value = static_cast<std::byte>(operation);
        std::fill(piece.begin(), piece.end(), value);
        pieces.emplace_back(piece, value);
      } else if (!pieces.empty()) {
        refused += !ring.has_room(kBytes / 4);
        const auto [piece, value] = pieces.front();
        for (const std::byte byte : piece) ASSERT_EQ(byte, value);
        ring.give_back(piece);
        pieces.pop_front();
      }
      ASSERT_EQ(ring.empty(), pieces.empty());
      ASSERT_TRUE(!pieces.empty() || (ring.has_room(kBytes) && !ring.has_room(kBytes + 1)));
    }
    EXPECT_GT(refused, 50u);
  }
}

TEST(DiskIndex, RandomOperationsAgreeWithAListOfRecords) {
  constexpr int32_t kCapacity = 40;
  Prng random(9);
  DiskIndex index(kCapacity);
  std::vector<DiskHeader> there;
  uint32_t newest = 0;
  for (int operation = 0; operation < 5000; ++operation) {
    DiskHeader header{.segment = newest, .payload_bytes = 1, .offset = static_cast<uint64_t>(operation)};
    header.record.key[0] = static_cast<uint8_t>(random.below(60));
    const auto same = [&](const DiskHeader& other) { return other.record.key == header.record.key; };
    const auto at = std::find_if(there.begin(), there.end(), same);
    switch (random.below(6)) {
      case 0:
        if (newest > 0 && random.below(8) > 0) break;
        index.begin(++newest);
        break;
      case 1:
        if (at == there.end()) break;
        index.drop(random.below(2) == 0 ? header : *at);  // another place of the same key changes nothing
        if (index.find(header.record.key) == nullptr) there.erase(at);
        break;
      case 2: {
        if (random.below(10) > 0) break;
        const auto segment = static_cast<uint32_t>(random.below(newest + 1));
        if (segment == newest) break;
        index.drop_segment(segment);
        std::erase_if(there, [&](const DiskHeader& other) { return other.segment == segment; });
        break;
      }
      default:
        if (newest == 0 || index.full()) break;
        if (at != there.end()) there.erase(at);
        there.push_back(header);
        index.add(header, false);
    }
    index.check();
    ASSERT_EQ(static_cast<size_t>(index.size()), there.size());
    for (const DiskHeader& header_there : there) {
      const DiskIndex::Entry* const entry = index.find(header_there.record.key);
      ASSERT_TRUE(entry != nullptr && entry->header == header_there);
    }
  }
  EXPECT_GT(newest, 20u);
}

}  // namespace
}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "router/prefix_map.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "base/prng.h"

namespace loralei {
namespace {

std::string text_of(size_t pieces, char c) { return std::string(pieces * kPrefixPieceBytes, c); }

std::vector<int32_t> found(const PrefixMap& map, const std::vector<uint64_t>& hashes, size_t replicas) {
  std::vector<int32_t> most(replicas, 7);
  map.find(hashes, most);
  return most;
}

TEST(PrefixHashes, AreOfWholePiecesAndAllBeforeThem) {
  EXPECT_TRUE(prefix_hashes(1, text_of(1, 'a').substr(1)).empty());
  const auto three = prefix_hashes(1, text_of(3, 'a') + "more");
  ASSERT_EQ(three.size(), 3u);
  EXPECT_EQ(std::set<uint64_t>(three.begin(), three.end()).size(), 3u);
  const auto other_end = prefix_hashes(1, text_of(2, 'a') + text_of(1, 'b'));
  EXPECT_EQ(other_end[1], three[1]);
  EXPECT_NE(other_end[2], three[2]);
  const auto other_begin = prefix_hashes(1, text_of(1, 'b') + text_of(2, 'a'));
  EXPECT_NE(other_begin[2], three[2]);
  EXPECT_NE(prefix_hashes(2, text_of(3, 'a'))[0], three[0]);
  EXPECT_EQ(prefix_hashes(1, text_of(2 * kPrefixPiecesMost, 'a')).size(), kPrefixPiecesMost);
}

TEST(PrefixMap, KnowsWhoWasSentWhatBeginsAlike) {
  PrefixMap map;
  const auto first = prefix_hashes(0, text_of(2, 'a') + text_of(2, 'b'));
  const auto second = prefix_hashes(0, text_of(2, 'a') + text_of(3, 'c'));
  map.sent(first, 1);
  EXPECT_EQ(found(map, second, 3), (std::vector<int32_t>{0, 2, 0}));
  map.sent(second, 2);
  EXPECT_EQ(found(map, second, 3), (std::vector<int32_t>{0, 2, 5}));
  map.forget(1);
  EXPECT_EQ(found(map, second, 3), (std::vector<int32_t>{0, 0, 5}));
  EXPECT_EQ(found(map, prefix_hashes(9, text_of(5, 'a')), 3), (std::vector<int32_t>{0, 0, 0}));
}

TEST(PrefixMap, KnowsSoManyReplicasAndNoMore) {
  PrefixMap map;
  const auto hashes = prefix_hashes(0, text_of(1, 'a'));
  map.sent(hashes, kPrefixReplicas - 1);
  map.sent(hashes, kPrefixReplicas);
  const auto most = found(map, hashes, kPrefixReplicas + 2);
  EXPECT_EQ(most[kPrefixReplicas - 1], 1);
  EXPECT_EQ(most[kPrefixReplicas], 0);
  map.forget(kPrefixReplicas);
}

// Beside a plain one, in a map where nothing has to be forgotten; and one so small that
// much is: it knows less, and never what was not sent.
TEST(PrefixMap, NeverKnowsMoreThanWasSent) {
  for (const size_t entries : {size_t{1} << 16, size_t{64}}) {
    SCOPED_TRACE(entries);
    Prng random(entries);
    PrefixMap map(entries);
    const size_t bytes = map.bytes();
    std::map<std::string, std::set<size_t>> sent;  // beginnings
    for (int step = 0; step < 2000; ++step) {
      std::string text;
      for (uint64_t pieces = 1 + random.below(5); pieces > 0; --pieces)
        text += text_of(1, static_cast<char>('a' + random.below(3)));
      const auto hashes = prefix_hashes(0, text);
      if (random.below(2) == 0) {
        const size_t replica = random.below(4);
        map.sent(hashes, replica);
        for (size_t piece = 1; piece <= hashes.size(); ++piece)
          sent[text.substr(0, piece * kPrefixPieceBytes)].insert(replica);
      } else if (random.below(50) == 0) {
        const size_t replica = random.below(4);
        map.forget(replica);
        for (auto& [beginning, replicas] : sent) replicas.erase(replica);
      }
      const auto most = found(map, hashes, 4);
      for (size_t replica = 0; replica < 4; ++replica) {
        int32_t right = 0;
        while (right < std::ssize(hashes) &&
               sent[text.substr(0, (static_cast<size_t>(right) + 1) * kPrefixPieceBytes)].count(replica) != 0)
          ++right;
        if (entries > 1000) ASSERT_EQ(most[replica], right) << step;
        ASSERT_LE(most[replica], right);
      }
    }
    EXPECT_EQ(map.bytes(), bytes);
  }
}

}  // namespace
}  // namespace loralei

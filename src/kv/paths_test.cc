// SPDX-License-Identifier: Apache-2.0
// Texts and what is held on them, each against a naive model with random operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/ids.h"
#include "base/prng.h"
#include "kv/holding_table.h"
#include "kv/text_tree.h"

namespace loralei {
namespace {

std::vector<TokenId> block_of(int32_t first) {
  std::vector<TokenId> tokens(kKvBlockTokens, 7);
  tokens.front() = first;
  return tokens;
}

TEST(TextTree, ATextIsThereWhileSomebodyHoldsIt) {
  TextTree texts(3);
  const int32_t a = texts.hold(kNoText, block_of(1));
  const int32_t b = texts.hold(a, block_of(1));
  EXPECT_NE(a, b);
  EXPECT_EQ(texts.hold(a, block_of(1)), b);
  EXPECT_EQ(texts.find(kNoText, block_of(1)), a);
  EXPECT_EQ(texts.find(b, block_of(1)), kNoText);
  EXPECT_EQ(texts.depth(b), 2);
  texts.let_go(b);
  texts.check();
  EXPECT_EQ(texts.find(a, block_of(1)), b);
  texts.let_go(b);
  EXPECT_EQ(texts.find(a, block_of(1)), kNoText);
  texts.let_go(a);
  EXPECT_EQ(texts.size(), 0);
  texts.check();
}

TEST(TextTree, RandomOperationsAgreeWithAMapOfWholeTexts) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    TextTree texts(8);
    using Path = std::vector<TokenId>;                  // the first token of each block
    std::map<Path, std::pair<int32_t, int32_t>> model;  // its node, and how often it is held
    const auto at = [&](const Path& path) { return path.empty() ? kNoText : model.at(path).first; };
    for (int step = 0; step < 400; ++step) {
      auto entry = model.begin();
      std::advance(entry, static_cast<std::ptrdiff_t>(prng.below(model.size())));
      if (prng.below(3) != 0 || model.empty()) {
        Path path = model.empty() || prng.below(4) == 0 ? Path{} : entry->first;
        const int32_t parent = at(path);
        path.push_back(static_cast<TokenId>(prng.below(3)));
        const auto known = model.find(path);
        EXPECT_EQ(texts.find(parent, block_of(path.back())), known == model.end() ? kNoText : known->second.first);
        if (texts.size() == texts.capacity()) texts.set_capacity(texts.capacity() * 2);
        const int32_t text = texts.hold(parent, block_of(path.back()));
        EXPECT_EQ(texts.depth(text), std::ssize(path));
        EXPECT_EQ(texts.parent(text), parent);
        ++model.try_emplace(path, text, 0).first->second.second;
        EXPECT_EQ(model.at(path).first, text);
      } else {
        const auto behind = std::next(entry);
        const bool has_children = behind != model.end() && behind->first.size() > entry->first.size() &&
                                  std::equal(entry->first.begin(), entry->first.end(), behind->first.begin());
        if (has_children && entry->second.second == 1) continue;
        texts.let_go(entry->second.first);
        if (--entry->second.second == 0) model.erase(entry);
      }
      EXPECT_EQ(texts.size(), std::ssize(model));
      texts.check();
    }
  }
}

class Identities {
 public:
  explicit Identities(int count) {
    for (int i = 0; i < count; ++i) {
      KvIdentityPart part;
      part.digest[0] = static_cast<uint8_t>(i);
      held_.push_back(known_.intern(std::span(&part, i == 0 ? 0 : 1), ""));
    }
  }
  const KvIdentity& operator[](size_t index) const { return held_[index]; }

 private:
  KvIdentities known_;
  std::vector<KvIdentity> held_;
};

TEST(HoldingTable, OnOneTextEveryIdentityHoldsItsOwn) {
  const Identities identities(3);
  HoldingTable table(4);
  const int32_t base = table.add({.text = 5, .identity = identities[0]}, 10, 1);
  const int32_t x = table.add({.text = 5, .identity = identities[1]}, 11, 2);
  const int32_t behind = table.add({.parent = x, .text = 6, .identity = identities[1]}, 12, 3);
  EXPECT_EQ(table.find(5, identities[0]), base);
  EXPECT_EQ(table.find(5, identities[1]), x);
  EXPECT_EQ(table.find(5, identities[2]), kNoHolding);
  EXPECT_EQ(table.find(6, identities[0]), kNoHolding);
  EXPECT_EQ(table.block(x), 11);
  EXPECT_FALSE(table.is_leaf(x));
  table.unpin(behind, 1, 4);
  table.unpin(x, 1, 4);
  table.unpin(base, 0, 4);
  table.check();
  EXPECT_EQ(table.released_first(0), base);
  EXPECT_EQ(table.released_first(1), behind);
  EXPECT_EQ(table.released_next(behind), x);
  table.remove(behind);
  EXPECT_EQ(table.block(behind), 12);
  EXPECT_TRUE(table.is_leaf(x));
  EXPECT_EQ(table.size(), 2);
  table.check();
}

TEST(HoldingTable, GrowsWithoutMovingAndFollowsBlocks) {
  const Identities identities(2);
  HoldingTable table(1);
  const int32_t first = table.add({.text = 0, .identity = identities[0]}, 3, 1);
  table.set_capacity(9);
  const int32_t second = table.add({.text = 0, .identity = identities[1]}, 1, 2);
  const std::vector<int32_t> names{4, 0, 2, 1, 3};
  table.rename_blocks(names);
  EXPECT_EQ(table.find(0, identities[0]), first);
  EXPECT_EQ(table.block(first), 1);
  EXPECT_EQ(table.block(second), 0);
  table.check();
}

TEST(HoldingTableDeath, WhatIsPinnedOrHasChildrenStays) {
  const Identities identities(1);
  HoldingTable table(2);
  const int32_t parent = table.add({.text = 0, .identity = identities[0]}, 0, 1);
  const int32_t child = table.add({.parent = parent, .text = 1, .identity = identities[0]}, 1, 1);
  EXPECT_DEATH(table.remove(child), "");
  table.unpin(child, 0, 2);
  table.unpin(parent, 0, 2);
  EXPECT_DEATH(table.remove(parent), "");
  EXPECT_DEATH(table.add({.parent = parent, .text = 2, .identity = identities[0]}, 2, 3), "");
}

}  // namespace
}  // namespace loralei

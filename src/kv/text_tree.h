// SPDX-License-Identifier: Apache-2.0
// TextTree: the texts of which keys and values are held, in blocks of tokens. It knows no
// identity and no bytes: whose keys and values there are on a text is for HoldingTable.
//
//   root ── tok 0..15 ── tok 16..31 ── tok 32..47
//                     └─ tok 16..31'
//
// Thread: the engine's.
// Ownership: nodes go when the last holding on them goes. Storage grows with set_capacity
// alone: finding, holding and letting go allocate nothing.
// Invariants (check()): a node with children is held, since whoever holds a text holds
// something on each text before it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"

namespace loralei {

inline constexpr int32_t kNoText = -1;

// [kKvBlockTokens], those of a full block.
inline std::span<const TokenId> kv_block_tokens(std::span<const TokenId> tokens, int32_t block) {
  return tokens.subspan(static_cast<size_t>(block) * kKvBlockTokens, kKvBlockTokens);
}

class TextTree {
 public:
  explicit TextTree(int32_t nodes) { set_capacity(nodes); }
  // Room for so many; fewer than now changes nothing.
  void set_capacity(int32_t nodes);

  // The text that goes on behind `parent` (kNoText: the root) with these tokens, or
  // kNoText. tokens: [kKvBlockTokens]
  int32_t find(int32_t parent, std::span<const TokenId> tokens) const;
  // The same, made where it is not there; held once more. CHECKs that the parent is held
  // and that there is room.
  int32_t hold(int32_t parent, std::span<const TokenId> tokens);
  // CHECKs that the last holder goes after those of the texts behind it.
  void let_go(int32_t text);

  int32_t depth(int32_t text) const { return nodes_[static_cast<size_t>(text)].depth; }  // 1: below the root
  // [kKvBlockTokens], of the block that ends it.
  std::span<const TokenId> tokens(int32_t text) const { return nodes_[static_cast<size_t>(text)].tokens; }
  int32_t parent(int32_t text) const { return nodes_[static_cast<size_t>(text)].parent; }
  int32_t holders(int32_t text) const { return nodes_[static_cast<size_t>(text)].holders; }  // 0: there is none
  int32_t size() const { return size_; }
  int32_t capacity() const { return static_cast<int32_t>(nodes_.size()); }
  void check() const;

 private:
  struct Node {
    int32_t holders = 0;  // 0: free
    int32_t parent = kNoText;
    int32_t children = 0;
    int32_t depth = 0;
    int32_t next = kNoText;  // in its bucket, or of the free ones
    std::array<TokenId, kKvBlockTokens> tokens{};
  };

  size_t bucket_of(int32_t parent, std::span<const TokenId> tokens) const;
  void enter_bucket(int32_t text);

  std::vector<Node> nodes_;
  std::vector<int32_t> buckets_;  // power of two
  int32_t free_ = kNoText;
  int32_t size_ = 0;
};

}  // namespace loralei

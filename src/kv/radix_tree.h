// SPDX-License-Identifier: Apache-2.0
// RadixTree: which full blocks of KV exist, found by (path from the root, identity,
// the 16 token ids), compared exactly.
//
//   root ── [base: tok 0..15] ── [base: tok 16..31] ── [adapter X: tok 32..47]
//                                                   └─ [adapter Y: tok 32..47]
//
// One node a block; node i describes block i.
//
// Thread: the engine's.
// Ownership: none of the bytes; a block in the tree stays taken in the pool until
// evict() names it. All storage is sized at creation and by resize(): finding, inserting
// and evicting allocate nothing.
// Invariants (check()): whoever pins a node pins its ancestors, so pins(parent) >= sum
// of pins(children). Exactly the unpinned nodes stand in one of two lists, by whether
// they were ever found, each in the order of release. A released path is released
// deepest first, and whoever finds a node finds its ancestors. Hence a node was released
// after its descendants, and those of one that was never found were not either: so the
// first of the list of those, and the one of both firsts that was released earlier, are
// leaves.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "kv/identity.h"
#include "memory/recent_uses.h"

namespace loralei {

inline constexpr int32_t kNoNode = -1;

class RadixTree {
 public:
  explicit RadixTree(int32_t blocks);

  // The child of `parent` (kNoNode: of the root) that holds exactly these tokens under
  // this identity, or kNoNode. tokens: [kKvBlockTokens]
  int32_t find(int32_t parent, const KvIdentity& identity, std::span<const TokenId> tokens) const;
  // Adds node `block`, pinned once. CHECKs that the parent is pinned and that no equal
  // node exists. now_ns, here and below: the time, kept as that of the node's last use.
  void insert(int32_t parent, const KvIdentity& identity, std::span<const TokenId> tokens, int32_t block,
              int64_t now_ns);
  void pin(int32_t node, int64_t now_ns);
  void unpin(int32_t node, int64_t now_ns);  // call deepest node first
  // CHECKs that it is an unpinned leaf. Its times can be asked for until its block is
  // inserted again.
  void evict(int32_t node);
  // Unpinned ones that were ever found, or never: the one released first, and the one
  // released after `node`; kNoNode: no more.
  int32_t released_first(bool found) const { return lists_[found].oldest; }
  int32_t released_next(int32_t node) const { return nodes_[static_cast<size_t>(node)].newer; }
  uint64_t release_order(int32_t node) const { return nodes_[static_cast<size_t>(node)].release_order; }
  bool is_leaf(int32_t node) const { return nodes_[static_cast<size_t>(node)].children == 0; }
  // Another number of blocks; node i is names[i] from now on, which is below `blocks` for
  // those in the tree, and i where these are no fewer. [blocks before] Growing costs what
  // is added, and now and then a pass over all.
  void resize(int32_t blocks, std::span<const int32_t> names);

  int32_t size() const { return size_; }
  int32_t unpinned() const { return unpinned_; }
  int32_t pins(int32_t node) const { return nodes_[static_cast<size_t>(node)].pins; }
  int64_t stored_ns(int32_t node) const { return nodes_[static_cast<size_t>(node)].stored_ns; }  // evicted or not
  int64_t used_ns(int32_t node) const { return nodes_[static_cast<size_t>(node)].used_ns; }
  const KvIdentity& identity(int32_t node) const { return nodes_[static_cast<size_t>(node)].identity; }
  int32_t depth(int32_t node) const { return nodes_[static_cast<size_t>(node)].depth; }  // 1: below the root
  // How often it was found.
  const RecentUses& finds(int32_t node) const { return nodes_[static_cast<size_t>(node)].finds; }
  bool was_found(int32_t node) const { return nodes_[static_cast<size_t>(node)].was_found; }  // ever
  void count_find(int32_t node, int64_t now_ns);  // CHECKs that it is pinned
  bool contains(int32_t node) const { return nodes_[static_cast<size_t>(node)].in_tree; }
  void check() const;

 private:
  struct Node {
    bool in_tree = false, was_found = false;
    int32_t parent = kNoNode;
    int32_t pins = 0;
    int32_t children = 0;
    int32_t depth = 0;
    int32_t next_in_bucket = kNoNode;
    int32_t older = kNoNode, newer = kNoNode;  // in its list
    uint64_t release_order = 0;
    int64_t stored_ns = 0, used_ns = 0;
    RecentUses finds;
    KvIdentity identity;
    std::array<TokenId, kKvBlockTokens> tokens{};
  };

  struct List {
    int32_t oldest = kNoNode, newest = kNoNode;
  };

  size_t bucket_of(int32_t parent, const KvIdentity& identity, std::span<const TokenId> tokens) const;
  void enter_bucket(int32_t node);
  void rename(int32_t blocks, std::span<const int32_t> names);
  void append(int32_t node);
  void unlink(int32_t node);

  std::vector<Node> nodes_;       // [blocks]
  std::vector<int32_t> buckets_;  // power of two
  std::array<List, 2> lists_;     // never found, found
  uint64_t releases_ = 0;
  int32_t size_ = 0, unpinned_ = 0;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "kv/radix_tree.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace loralei {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

size_t buckets_for(int32_t blocks) { return std::bit_ceil(static_cast<size_t>(blocks) * 2); }

}  // namespace

RadixTree::RadixTree(int32_t blocks) : nodes_(static_cast<size_t>(blocks)), buckets_(buckets_for(blocks), kNoNode) {}

size_t RadixTree::bucket_of(int32_t parent, const KvIdentity& identity, std::span<const TokenId> tokens) const {
  uint64_t hash = mix(static_cast<uint64_t>(parent + 1), reinterpret_cast<uintptr_t>(identity.get()));
  for (const TokenId token : tokens) hash = mix(hash, static_cast<uint32_t>(token));
  return static_cast<size_t>(hash >> 7) & (buckets_.size() - 1);
}

int32_t RadixTree::find(int32_t parent, const KvIdentity& identity, std::span<const TokenId> tokens) const {
  CHECK(tokens.size() == kKvBlockTokens);
  int32_t index = buckets_[bucket_of(parent, identity, tokens)];
  while (index != kNoNode) {
    const Node& node = nodes_[static_cast<size_t>(index)];
    if (node.parent == parent && node.identity == identity &&
        std::equal(tokens.begin(), tokens.end(), node.tokens.begin())) {
      return index;
    }
    index = node.next_in_bucket;
  }
  return kNoNode;
}

void RadixTree::insert(int32_t parent, const KvIdentity& identity, std::span<const TokenId> tokens, int32_t block,
                       int64_t now_ns) {
  CHECK(find(parent, identity, tokens) == kNoNode);
  CHECK(parent == kNoNode || pins(parent) > 0);
  Node& node = nodes_[static_cast<size_t>(block)];
  CHECK(!node.in_tree);
  node.in_tree = true;
  node.parent = parent;
  node.pins = 1;
  node.children = 0;
  node.depth = parent == kNoNode ? 1 : depth(parent) + 1;
  node.finds = {};
  node.was_found = false;
  node.identity = identity;
  node.stored_ns = node.used_ns = now_ns;
  std::copy(tokens.begin(), tokens.end(), node.tokens.begin());
  enter_bucket(block);
  if (parent != kNoNode) ++nodes_[static_cast<size_t>(parent)].children;
  ++size_;
}

void RadixTree::enter_bucket(int32_t node) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  int32_t& bucket = buckets_[bucket_of(entry.parent, entry.identity, entry.tokens)];
  entry.next_in_bucket = bucket;
  bucket = node;
}

void RadixTree::append(int32_t node) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  List& list = lists_[entry.was_found];
  entry.release_order = ++releases_;
  entry.older = list.newest;
  entry.newer = kNoNode;
  (list.newest == kNoNode ? list.oldest : nodes_[static_cast<size_t>(list.newest)].newer) = node;
  list.newest = node;
  ++unpinned_;
}

void RadixTree::unlink(int32_t node) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  List& list = lists_[entry.was_found];
  (entry.older == kNoNode ? list.oldest : nodes_[static_cast<size_t>(entry.older)].newer) = entry.newer;
  (entry.newer == kNoNode ? list.newest : nodes_[static_cast<size_t>(entry.newer)].older) = entry.older;
  entry.older = entry.newer = kNoNode;
  --unpinned_;
}

void RadixTree::pin(int32_t node, int64_t now_ns) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  CHECK(entry.in_tree);
  entry.used_ns = now_ns;
  if (entry.pins++ == 0) unlink(node);
}

void RadixTree::unpin(int32_t node, int64_t now_ns) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  CHECK(entry.in_tree && entry.pins > 0);
  entry.used_ns = now_ns;
  if (--entry.pins == 0) append(node);
}

void RadixTree::count_find(int32_t node, int64_t now_ns) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  CHECK(entry.pins > 0);  // the lists do not change under it
  entry.finds.add(now_ns);
  entry.was_found = true;
}

void RadixTree::evict(int32_t block) {
  Node& node = nodes_[static_cast<size_t>(block)];
  CHECK(node.in_tree && node.pins == 0 && node.children == 0);
  unlink(block);
  int32_t* link = &buckets_[bucket_of(node.parent, node.identity, node.tokens)];
  while (*link != block) link = &nodes_[static_cast<size_t>(*link)].next_in_bucket;
  *link = node.next_in_bucket;
  if (node.parent != kNoNode) --nodes_[static_cast<size_t>(node.parent)].children;
  node.in_tree = false;
  node.identity.reset();
  --size_;
}

void RadixTree::resize(int32_t blocks, std::span<const int32_t> names) {
  CHECK(names.size() == nodes_.size());
  const size_t buckets = buckets_for(blocks);
  if (blocks < std::ssize(nodes_)) {
    rename(blocks, names);
  } else {
    nodes_.resize(static_cast<size_t>(blocks));
    if (buckets == buckets_.size()) return;
  }
  buckets_.assign(buckets, kNoNode);
  for (int32_t node = 0; node < blocks; ++node) {
    if (contains(node)) enter_bucket(node);
  }
}

// A place in the buckets follows from the parent's name: they are out of date afterwards.
void RadixTree::rename(int32_t blocks, std::span<const int32_t> names) {
  const auto change = [&](int32_t& node) {
    if (node != kNoNode) node = names[static_cast<size_t>(node)];
  };
  std::vector<Node> nodes(static_cast<size_t>(blocks));
  for (size_t index = 0; index < nodes_.size(); ++index) {
    Node& node = nodes_[index];
    if (!node.in_tree) continue;
    change(node.parent);
    change(node.older);
    change(node.newer);
    nodes[static_cast<size_t>(names[index])] = std::move(node);
  }
  nodes_ = std::move(nodes);
  for (List& list : lists_) {
    change(list.oldest);
    change(list.newest);
  }
}

void RadixTree::check() const {
  std::vector<int32_t> children(nodes_.size(), 0), child_pins(nodes_.size(), 0);
  std::vector<bool> listed(nodes_.size(), false);
  int32_t count = 0;
  for (const Node& node : nodes_) {
    if (!node.in_tree) continue;
    ++count;
    CHECK(node.identity != nullptr);
    if (node.parent == kNoNode) continue;
    CHECK(contains(node.parent) && (!node.was_found || nodes_[static_cast<size_t>(node.parent)].was_found));
    ++children[static_cast<size_t>(node.parent)];
    child_pins[static_cast<size_t>(node.parent)] += node.pins;
  }
  CHECK(count == size_);
  int32_t unpinned = 0;
  for (const bool found : {false, true}) {
    int32_t older = kNoNode;
    for (int32_t index = released_first(found); index != kNoNode; index = released_next(index)) {
      const Node& node = nodes_[static_cast<size_t>(index)];
      CHECK(node.in_tree && node.pins == 0 && node.was_found == found && node.older == older);
      CHECK(older == kNoNode || release_order(older) < node.release_order);
      older = index;
      listed[static_cast<size_t>(index)] = true;
      ++unpinned;
    }
    CHECK(lists_[found].newest == older);
  }
  CHECK(unpinned == unpinned_);
  for (size_t index = 0; index < nodes_.size(); ++index) {
    const Node& node = nodes_[index];
    if (!node.in_tree) continue;
    CHECK(node.children == children[index] && node.pins >= child_pins[index]);
    CHECK((node.pins == 0) == listed[index]);
    CHECK(node.pins == 0 || (node.older == kNoNode && node.newer == kNoNode));
    CHECK(find(node.parent, node.identity, node.tokens) == static_cast<int32_t>(index));
    if (node.parent != kNoNode && listed[static_cast<size_t>(node.parent)])
      CHECK(listed[index] && node.release_order < release_order(node.parent));
  }
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "kv/text_tree.h"

#include <algorithm>

#include "base/check.h"
#include "kv/buckets.h"

namespace loralei {

void TextTree::set_capacity(int32_t nodes) {
  const auto before = capacity();
  if (nodes <= before) return;
  nodes_.resize(static_cast<size_t>(nodes));
  for (int32_t text = nodes - 1; text >= before; --text) {
    nodes_[static_cast<size_t>(text)].next = free_;
    free_ = text;
  }
  if (buckets_for(nodes) == buckets_.size()) return;
  buckets_.assign(buckets_for(nodes), kNoText);
  for (int32_t text = 0; text < before; ++text) {
    if (holders(text) > 0) enter_bucket(text);
  }
}

size_t TextTree::bucket_of(int32_t parent, std::span<const TokenId> tokens) const {
  uint64_t hash = mix_hash(0, static_cast<uint64_t>(parent + 1));
  for (const TokenId token : tokens) hash = mix_hash(hash, static_cast<uint32_t>(token));
  return bucket_of_hash(hash, buckets_.size());
}

void TextTree::enter_bucket(int32_t text) {
  Node& node = nodes_[static_cast<size_t>(text)];
  int32_t& bucket = buckets_[bucket_of(node.parent, node.tokens)];
  node.next = bucket;
  bucket = text;
}

int32_t TextTree::find(int32_t parent, std::span<const TokenId> tokens) const {
  CHECK(tokens.size() == kKvBlockTokens);
  int32_t text = buckets_[bucket_of(parent, tokens)];
  while (text != kNoText) {
    const Node& node = nodes_[static_cast<size_t>(text)];
    if (node.parent == parent && std::equal(tokens.begin(), tokens.end(), node.tokens.begin())) return text;
    text = node.next;
  }
  return kNoText;
}

int32_t TextTree::hold(int32_t parent, std::span<const TokenId> tokens) {
  CHECK(parent == kNoText || holders(parent) > 0);
  int32_t text = find(parent, tokens);
  if (text == kNoText) {
    CHECK(free_ != kNoText);
    text = free_;
    Node& node = nodes_[static_cast<size_t>(text)];
    free_ = node.next;
    node.parent = parent;
    node.depth = parent == kNoText ? 1 : depth(parent) + 1;
    std::copy(tokens.begin(), tokens.end(), node.tokens.begin());
    enter_bucket(text);
    if (parent != kNoText) ++nodes_[static_cast<size_t>(parent)].children;
    ++size_;
  }
  ++nodes_[static_cast<size_t>(text)].holders;
  return text;
}

void TextTree::let_go(int32_t text) {
  Node& node = nodes_[static_cast<size_t>(text)];
  CHECK(node.holders > 0);
  if (--node.holders > 0) return;
  CHECK(node.children == 0);
  int32_t* link = &buckets_[bucket_of(node.parent, node.tokens)];
  while (*link != text) link = &nodes_[static_cast<size_t>(*link)].next;
  *link = node.next;
  if (node.parent != kNoText) --nodes_[static_cast<size_t>(node.parent)].children;
  node.next = free_;
  free_ = text;
  --size_;
}

void TextTree::check() const {
  std::vector<int32_t> children(nodes_.size(), 0);
  int32_t count = 0;
  for (int32_t text = 0; text < capacity(); ++text) {
    const Node& node = nodes_[static_cast<size_t>(text)];
    if (node.holders == 0) continue;
    ++count;
    CHECK(find(node.parent, node.tokens) == text);
    if (node.parent == kNoText) continue;
    CHECK(holders(node.parent) > 0 && node.depth == depth(node.parent) + 1);
    ++children[static_cast<size_t>(node.parent)];
  }
  CHECK(count == size_);
  int32_t free = 0;
  for (int32_t text = free_; text != kNoText; text = nodes_[static_cast<size_t>(text)].next) {
    CHECK(holders(text) == 0);
    ++free;
  }
  CHECK(free + size_ == capacity());
  for (size_t index = 0; index < nodes_.size(); ++index) {
    if (nodes_[index].holders > 0) CHECK(nodes_[index].children == children[index]);
  }
}

}  // namespace loralei

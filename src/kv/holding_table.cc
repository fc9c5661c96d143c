// SPDX-License-Identifier: Apache-2.0
#include "kv/holding_table.h"

#include "base/check.h"
#include "kv/buckets.h"

namespace loralei {

void HoldingTable::set_capacity(int32_t holdings) {
  const int32_t before = capacity();
  if (holdings <= before) return;
  holdings_.resize(static_cast<size_t>(holdings));
  for (int32_t holding = holdings - 1; holding >= before; --holding) {
    at(holding).next = free_;
    free_ = holding;
  }
  if (buckets_for(holdings) == buckets_.size()) return;
  buckets_.assign(buckets_for(holdings), kNoHolding);
  for (int32_t holding = 0; holding < before; ++holding) {
    if (contains(holding)) enter_bucket(holding);
  }
}

size_t HoldingTable::bucket_of(int32_t text, const KvIdentity& identity) const {
  const uint64_t hash = mix_hash(mix_hash(0, static_cast<uint64_t>(text)), reinterpret_cast<uintptr_t>(identity.get()));
  return bucket_of_hash(hash, buckets_.size());
}

void HoldingTable::enter_bucket(int32_t holding) {
  Holding& entry = at(holding);
  int32_t& bucket = buckets_[bucket_of(entry.place.text, entry.place.identity)];
  entry.next = bucket;
  bucket = holding;
}

int32_t HoldingTable::find(int32_t text, const KvIdentity& identity) const {
  int32_t holding = buckets_[bucket_of(text, identity)];
  while (holding != kNoHolding && (at(holding).place.text != text || at(holding).place.identity != identity))
    holding = at(holding).next;
  return holding;
}

int32_t HoldingTable::add(const Place& place, int32_t block, int64_t now_ns) {
  CHECK(find(place.text, place.identity) == kNoHolding);
  CHECK(place.parent == kNoHolding || pins(place.parent) > 0);
  CHECK(free_ != kNoHolding);
  const int32_t holding = free_;
  free_ = at(holding).next;
  at(holding) = {.used = true, .place = place, .block = block, .pins = 1, .stored_ns = now_ns, .used_ns = now_ns};
  enter_bucket(holding);
  if (place.parent != kNoHolding) ++at(place.parent).children;
  ++size_;
  return holding;
}

void HoldingTable::append(int32_t holding) {
  at(holding).release_order = ++releases_;
  link_behind(holding, lists_[static_cast<size_t>(at(holding).group)].newest);
}

// In the list of its group.
void HoldingTable::link_behind(int32_t holding, int32_t older) {
  Holding& entry = at(holding);
  List& list = lists_[static_cast<size_t>(entry.group)];
  entry.older = older;
  entry.newer = older == kNoHolding ? list.oldest : at(older).newer;
  (older == kNoHolding ? list.oldest : at(older).newer) = holding;
  (entry.newer == kNoHolding ? list.newest : at(entry.newer).older) = holding;
  ++list.count;
  ++unpinned_;
  unpinned_blocks_ += entry.block == kNoBlock ? 0 : 1;
}

void HoldingTable::enter_list(int32_t holding, int32_t group) {
  CHECK(group >= 0);
  if (group >= groups()) lists_.resize(static_cast<size_t>(group) + 1);
  at(holding).group = group;
}

void HoldingTable::move(int32_t holding, int32_t group) {
  CHECK(at(holding).used && at(holding).pins == 0);
  if (group == at(holding).group) return;
  unlink(holding);
  enter_list(holding, group);
  int32_t older = lists_[static_cast<size_t>(group)].newest;
  while (older != kNoHolding && release_order(older) > release_order(holding)) older = at(older).older;
  link_behind(holding, older);
}

void HoldingTable::touch(int32_t holding) {
  for (; holding != kNoHolding && at(holding).pins == 0; holding = parent(holding)) {
    unlink(holding);
    append(holding);
  }
}

void HoldingTable::set_block(int32_t holding, int32_t block) {
  Holding& entry = at(holding);
  CHECK(entry.used);
  if (entry.pins == 0) unpinned_blocks_ += (block == kNoBlock ? 0 : 1) - (entry.block == kNoBlock ? 0 : 1);
  entry.block = block;
}

void HoldingTable::unlink(int32_t holding) {
  Holding& entry = at(holding);
  List& list = lists_[static_cast<size_t>(entry.group)];
  (entry.older == kNoHolding ? list.oldest : at(entry.older).newer) = entry.newer;
  (entry.newer == kNoHolding ? list.newest : at(entry.newer).older) = entry.older;
  entry.older = entry.newer = kNoHolding;
  --list.count;
  --unpinned_;
  unpinned_blocks_ -= entry.block == kNoBlock ? 0 : 1;
}

void HoldingTable::pin(int32_t holding, int64_t now_ns) {
  Holding& entry = at(holding);
  CHECK(entry.used);
  entry.used_ns = now_ns;
  if (entry.pins++ == 0) unlink(holding);
}

void HoldingTable::unpin(int32_t holding, int32_t group, int64_t now_ns) {
  Holding& entry = at(holding);
  CHECK(entry.used && entry.pins > 0);
  entry.used_ns = now_ns;
  if (--entry.pins > 0) return;
  enter_list(holding, group);
  append(holding);
}

void HoldingTable::count_find(int32_t holding, int64_t now_ns) {
  Holding& entry = at(holding);
  entry.finds.add(now_ns);
  ++entry.times_found;
}

void HoldingTable::remove(int32_t holding) {
  Holding& entry = at(holding);
  CHECK(entry.used && entry.pins == 0 && entry.children == 0);
  unlink(holding);
  int32_t* link = &buckets_[bucket_of(entry.place.text, entry.place.identity)];
  while (*link != holding) link = &at(*link).next;
  *link = entry.next;
  if (entry.place.parent != kNoHolding) --at(entry.place.parent).children;
  entry.used = false;
  entry.place.identity.reset();
  entry.next = free_;
  free_ = holding;
  --size_;
}

void HoldingTable::rename_blocks(std::span<const int32_t> names) {
  for (Holding& entry : holdings_) {
    if (entry.used && entry.block != kNoBlock) entry.block = names[static_cast<size_t>(entry.block)];
  }
}

void HoldingTable::check_lists(std::vector<bool>& listed) const {
  int32_t unpinned = 0, blocks = 0;
  for (int32_t group = 0; group < groups(); ++group) {
    int32_t older = kNoHolding, count = 0;
    for (int32_t holding = released_first(group); holding != kNoHolding; holding = released_next(holding)) {
      const Holding& entry = at(holding);
      CHECK(entry.used && entry.pins == 0 && entry.group == group && entry.older == older);
      CHECK(older == kNoHolding || release_order(older) < entry.release_order);
      older = holding;
      listed[static_cast<size_t>(holding)] = true;
      ++unpinned;
      ++count;
      blocks += entry.block == kNoBlock ? 0 : 1;
    }
    CHECK(lists_[static_cast<size_t>(group)].newest == older && released_count(group) == count);
  }
  CHECK(unpinned == unpinned_ && blocks == unpinned_blocks_);
}

void HoldingTable::check() const {
  std::vector<int32_t> children(holdings_.size(), 0), child_pins(holdings_.size(), 0);
  std::vector<bool> listed(holdings_.size(), false);
  check_lists(listed);
  int32_t count = 0, free = 0;
  for (const Holding& entry : holdings_) {
    if (!entry.used) continue;
    ++count;
    CHECK(entry.place.identity != nullptr);
    if (entry.place.parent == kNoHolding) continue;
    CHECK(contains(entry.place.parent));
    ++children[static_cast<size_t>(entry.place.parent)];
    child_pins[static_cast<size_t>(entry.place.parent)] += entry.pins;
  }
  for (int32_t holding = free_; holding != kNoHolding; holding = at(holding).next) {
    CHECK(!contains(holding));
    ++free;
  }
  CHECK(count == size_ && free + size_ == capacity());
  for (int32_t holding = 0; holding < capacity(); ++holding) {
    const Holding& entry = at(holding);
    if (!entry.used) continue;
    const auto index = static_cast<size_t>(holding);
    CHECK(entry.children == children[index] && entry.pins >= child_pins[index]);
    CHECK((entry.pins == 0) == listed[index]);
    CHECK(entry.pins == 0 || (entry.older == kNoHolding && entry.newer == kNoHolding));
    CHECK(find(entry.place.text, entry.place.identity) == holding);
    const int32_t parent = entry.place.parent;
    if (parent != kNoHolding && listed[static_cast<size_t>(parent)])
      CHECK(listed[index] && entry.release_order < release_order(parent));
  }
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "router/prefix_map.h"

#include <algorithm>

#include "base/fast_hash.h"

namespace loralei {

std::vector<uint64_t> prefix_hashes(uint64_t identity, std::string_view text) {
  std::vector<uint64_t> hashes;
  const size_t pieces = std::min(text.size() / kPrefixPieceBytes, kPrefixPiecesMost);
  hashes.reserve(pieces);
  uint64_t before = mix64(identity);
  for (size_t piece = 0; piece < pieces; ++piece) {
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data() + piece * kPrefixPieceBytes);
    before = fast_hash(bytes, kPrefixPieceBytes, before);
    hashes.push_back(before);
  }
  return hashes;
}

PrefixMap::PrefixMap(size_t entries) : entries_(std::max<size_t>(1, entries / kWays) * kWays) {}

const PrefixMap::Entry* PrefixMap::entry_of(uint64_t hash) const {
  const size_t set = set_of(hash);
  for (size_t way = 0; way < kWays; ++way) {
    const Entry& entry = entries_[set + way];
    if (entry.replicas != 0 && entry.hash == hash) return &entry;
  }
  return nullptr;
}

void PrefixMap::find(std::span<const uint64_t> hashes, std::span<int32_t> most) const {
  std::fill(most.begin(), most.end(), 0);
  uint64_t have = ~uint64_t{0};
  for (const uint64_t hash : hashes) {
    const Entry* entry = entry_of(hash);
    have &= entry != nullptr ? entry->replicas : 0;
    if (have == 0) return;
    for (size_t replica = 0; replica < std::min(most.size(), kPrefixReplicas); ++replica)
      most[replica] += static_cast<int32_t>(have >> replica & 1);
  }
}

void PrefixMap::sent(std::span<const uint64_t> hashes, size_t replica) {
  if (replica >= kPrefixReplicas) return;
  ++now_;
  for (const uint64_t hash : hashes) {
    const auto set = entries_.begin() + static_cast<std::ptrdiff_t>(set_of(hash));
    auto oldest = set;
    for (auto entry = set; entry != set + kWays; ++entry) {
      if (entry->replicas != 0 && entry->hash == hash) {
        oldest = entry;
        break;
      }
      if (entry->used < oldest->used) oldest = entry;
    }
    if (oldest->hash != hash) *oldest = {.hash = hash};
    oldest->replicas |= uint64_t{1} << replica;
    oldest->used = now_;
  }
}

void PrefixMap::forget(size_t replica) {
  if (replica >= kPrefixReplicas) return;
  for (Entry& entry : entries_) {
    entry.replicas &= ~(uint64_t{1} << replica);
    if (entry.replicas == 0) entry = {};
  }
}

}  // namespace loralei

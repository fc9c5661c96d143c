// SPDX-License-Identifier: Apache-2.0
// WindowParts: what holdings have of layers that attend to a window (ops/kv_tables.h). A
// holding's *part* is its blocks in the sliding tables; it may go alone, and the holding
// is then only a way to those behind it.
//
// Thread: the engine's.
// Ownership: none of the bytes; blocks of a part stay taken in the pool until whoever
// calls remove() gives them back. Storage grows with set_capacity alone.
// Invariants (check()): whoever pins a part pins its holding (KvCache). Exactly the parts
// that nobody pins stand in a list, in the order of release.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/holding_table.h"

namespace loralei {

class WindowParts {
 public:
  explicit WindowParts(int32_t blocks_of_part) : width_(blocks_of_part) {}
  void set_capacity(int32_t holdings);

  bool has(int32_t holding) const { return at(holding).there; }
  int32_t pins(int32_t holding) const { return at(holding).pins; }
  std::span<const int32_t> blocks(int32_t holding) const {
    return std::span(blocks_).subspan(first_of(holding), static_cast<size_t>(width_));
  }
  // Pinned once. CHECKs that there is none.
  void add(int32_t holding, std::span<const int32_t> blocks);
  void pin(int32_t holding);
  void unpin(int32_t holding, int64_t now_ns);
  // CHECKs that nobody pins it.
  void remove(int32_t holding);
  // Block b is names[b] from now on. [blocks before]
  void rename_blocks(std::span<const int32_t> names);

  // Of those that nobody pins the one that was released first; kNoHolding: there is none.
  int32_t released_first() const { return oldest_; }
  int64_t released_ns(int32_t holding) const { return at(holding).released_ns; }
  int32_t unpinned_blocks() const { return unpinned_ * width_; }
  void check() const;

 private:
  struct Part {
    bool there = false;
    int32_t pins = 0;
    int32_t older = kNoHolding, newer = kNoHolding;
    int64_t released_ns = 0;
  };
  const Part& at(int32_t holding) const { return parts_[static_cast<size_t>(holding)]; }
  Part& at(int32_t holding) { return parts_[static_cast<size_t>(holding)]; }
  size_t first_of(int32_t holding) const { return static_cast<size_t>(holding) * static_cast<size_t>(width_); }
  void unlink(int32_t holding);

  const int32_t width_;
  std::vector<Part> parts_;      // by holding
  std::vector<int32_t> blocks_;  // [holdings][width]
  int32_t oldest_ = kNoHolding, newest_ = kNoHolding;
  int32_t unpinned_ = 0;
};

}  // namespace loralei

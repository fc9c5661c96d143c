// SPDX-License-Identifier: Apache-2.0
// RangeAllocator: which parts of one long piece of memory are taken. It deals in offsets
// and never touches the memory.
//
// Thread: one.
// Ownership: plain values.
// Invariants (check()): taken and free ranges are multiples of kAlign that cover
// everything without overlap, and no two free ranges touch. Best fit: the smallest free
// range that is long enough, the first of equal ones.
// Failure: nullopt when no free range is long enough, which may be so
// although enough is free.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace loralei {

class RangeAllocator {
 public:
  static constexpr int64_t kAlign = 256;
  static constexpr int64_t rounded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  explicit RangeAllocator(int64_t bytes = 0);  // what lies beyond the last multiple of kAlign is left out
  std::optional<int64_t> allocate(int64_t bytes);
  void release(int64_t offset);  // what allocate() gave

  int64_t size_bytes() const { return size_; }
  int64_t free_bytes() const { return size_ - taken_bytes_; }
  int64_t taken_bytes() const { return taken_bytes_; }
  void check() const;

 private:
  int64_t size_ = 0, taken_bytes_ = 0;
  std::map<int64_t, int64_t> free_, taken_;  // offset -> bytes
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "device/range_allocator.h"

#include <iterator>

#include "base/check.h"

namespace loralei {

RangeAllocator::RangeAllocator(int64_t bytes) : size_(bytes / kAlign * kAlign) {
  CHECK(bytes >= 0);
  if (size_ > 0) free_[0] = size_;
}

std::optional<int64_t> RangeAllocator::allocate(int64_t bytes) {
  CHECK(bytes > 0);
  const int64_t wanted = rounded(bytes);
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second >= wanted && (best == free_.end() || range->second < best->second)) best = range;
  }
  if (best == free_.end()) return std::nullopt;
  const auto [offset, length] = *best;
  free_.erase(best);
  if (length > wanted) free_[offset + wanted] = length - wanted;
  taken_[offset] = wanted;
  taken_bytes_ += wanted;
  return offset;
}

void RangeAllocator::release(int64_t offset) {
  const auto taken = taken_.find(offset);
  CHECK(taken != taken_.end());
  int64_t begin = offset, end = offset + taken->second;
  taken_bytes_ -= taken->second;
  taken_.erase(taken);
  auto after = free_.lower_bound(begin);
  if (after != free_.end() && after->first == end) {
    end += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      before->second = end - before->first;
      return;
    }
  }
  free_[begin] = end - begin;
}

void RangeAllocator::check() const {
  auto free = free_.begin();
  auto taken = taken_.begin();
  int64_t at = 0, taken_bytes = 0;
  bool after_free = false;
  while (at < size_) {
    const bool is_free = free != free_.end() && free->first == at;
    CHECK(is_free || (taken != taken_.end() && taken->first == at));
    CHECK(!(is_free && after_free));
    const int64_t length = is_free ? (free++)->second : (taken++)->second;
    CHECK(length > 0 && length % kAlign == 0);
    taken_bytes += is_free ? 0 : length;
    after_free = is_free;
    at += length;
  }
  CHECK(at == size_ && free == free_.end() && taken == taken_.end() && taken_bytes == taken_bytes_);
}

}  // namespace loralei

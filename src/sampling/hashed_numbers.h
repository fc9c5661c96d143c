// SPDX-License-Identifier: Apache-2.0
// HashedNumbers: finds the numbers of things that are kept elsewhere, in one flat table,
// so that many are added without an allocation each and forgotten at once.
//
// Thread: one at a time. Ownership: numbers only. Invariant: at most half of the
// places are taken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace loralei {

class HashedNumbers {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  void clear() {
    places_ = {};
    used_ = 0;
  }
  // The number of those added with `hash` for which same(number) holds; kNone:
  // there is none.
  template <typename Same>
  uint32_t find(uint64_t hash, Same&& same) const {
    if (places_.empty()) return kNone;
    const uint32_t mark = mark_of(hash);
    for (size_t at = mark & (places_.size() - 1); places_[at].number != kNone; at = (at + 1) & (places_.size() - 1)) {
      if (places_[at].mark == mark && same(places_[at].number)) return places_[at].number;
    }
    return kNone;
  }
  void add(uint64_t hash, uint32_t number) {
    if (2 * (used_ + 1) > places_.size()) grow();
    put({mark_of(hash), number});
    ++used_;
  }

 private:
  struct Place {
    uint32_t mark = 0;
    uint32_t number = kNone;
  };
  static uint32_t mark_of(uint64_t hash) {
    return static_cast<uint32_t>((hash ^ (hash >> 29)) * 0x9e3779b97f4a7c15ULL >> 32);
  }
  void put(Place place) {
    size_t at = place.mark & (places_.size() - 1);
    while (places_[at].number != kNone) at = (at + 1) & (places_.size() - 1);
    places_[at] = place;
  }
  void grow() {
    const std::vector<Place> old = std::exchange(places_, std::vector<Place>(std::max<size_t>(64, 2 * places_.size())));
    for (const Place& place : old) {
      if (place.number != kNone) put(place);
    }
  }

  std::vector<Place> places_;  // a power of two of them, or none
  size_t used_ = 0;
};

}  // namespace loralei

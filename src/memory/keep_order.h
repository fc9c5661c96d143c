// SPDX-License-Identifier: Apache-2.0
// KeepOrder: which of the cached objects that nobody uses leaves first when memory is
// wanted (mechanisms §3, §8). A pure function of plain values.
//
// Those that nobody waits for go before those that somebody waits with, and of these the
// one wanted last goes first, whatever the policy. Of the others those go first that will
// be wanted later, and those last that will be wanted soon, as far as that is foreseen.
// Of those alike in that the lowest score goes:
//
//   kLru        when it was last used
//   kChameleon  F * frequency + R * recency + S * size   (Chameleon, §4.1)
//   kFairShare  the same with three equal weights        (Chameleon, §5.3)
//   kDensity    expected_per_s * recreate_s / bytes: the seconds that a byte kept saves
//               in a second
//
// Frequency, recency and size lie between 0 and 1, over the objects that are sorted
// together: uses a second and bytes as parts of the largest, the last use between the
// oldest and the newest. Equal scores: the least recently used first, then the smaller
// id; so the order is strict, and the same for the same objects however they were listed.
//
// Thread-safe (a plain value). Cost: a sort. No failure: numbers that are not finite
// count as 0.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace loralei {

enum class KeepPolicy : uint8_t { kLru, kFairShare, kChameleon, kDensity };

// When an object will be wanted next.
enum class Foreseen : uint8_t { kLater, kUnknown, kSoon };

// A cached object that may leave.
struct CacheItem {
  static constexpr uint64_t kUnwanted = UINT64_MAX;
  uint64_t id = 0;
  int64_t bytes = 0;
  int64_t last_use_ns = 0;
  double uses_per_s = 0;        // lately
  double expected_per_s = 0;    // from now on (RecentUses::expected_per_s)
  double recreate_s = 0;        // what it takes to have it again
  uint64_t wanted = kUnwanted;  // the order of the oldest that waits with it
  Foreseen foreseen = Foreseen::kUnknown;
  double score = 0;  // KeepOrder::sort() writes it
};

// Of kChameleon: the paper's, found by its authors on traces (§4.1).
struct KeepWeights {
  double frequency = 0.45, recency = 0.10, size = 0.45;
  friend bool operator==(const KeepWeights&, const KeepWeights&) = default;
};

class KeepOrder {
 public:
  KeepOrder() : KeepOrder(KeepPolicy::kLru) {}
  explicit KeepOrder(KeepPolicy policy, const KeepWeights& weights = {});
  // Scores them, and sorts: the first leaves first.
  void sort(std::span<CacheItem> items) const;
  KeepPolicy policy() const { return policy_; }

 private:
  KeepPolicy policy_;
  KeepWeights weights_;
};

// Of objects of different kinds `a` leaves first: by density, whatever the policy is
// among those of a kind. (Ages say nothing there: one kind drives out the other.)
bool is_worth_less(const CacheItem& a, const CacheItem& b);

}  // namespace loralei

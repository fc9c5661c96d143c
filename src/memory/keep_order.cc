// SPDX-License-Identifier: Apache-2.0
#include "memory/keep_order.h"

#include <algorithm>
#include <cmath>

namespace loralei {
namespace {

double finite(double number) { return std::isfinite(number) ? number : 0; }

// What the terms of a score are parts of.
struct Scale {
  double uses_most = 0, bytes_most = 0;
  int64_t oldest_ns = INT64_MAX, newest_ns = INT64_MIN;

  explicit Scale(std::span<const CacheItem> items) {
    for (const CacheItem& item : items) {
      uses_most = std::max(uses_most, finite(item.uses_per_s));
      bytes_most = std::max(bytes_most, static_cast<double>(item.bytes));
      oldest_ns = std::min(oldest_ns, item.last_use_ns);
      newest_ns = std::max(newest_ns, item.last_use_ns);
    }
  }
  double frequency(const CacheItem& item) const { return uses_most > 0 ? finite(item.uses_per_s) / uses_most : 0; }
  double size(const CacheItem& item) const { return bytes_most > 0 ? static_cast<double>(item.bytes) / bytes_most : 0; }
  double recency(const CacheItem& item) const {
    if (newest_ns <= oldest_ns) return 0;
    return static_cast<double>(item.last_use_ns - oldest_ns) / static_cast<double>(newest_ns - oldest_ns);
  }
};

double density(const CacheItem& item) {
  return finite(item.expected_per_s) * finite(item.recreate_s) / static_cast<double>(std::max<int64_t>(1, item.bytes));
}

}  // namespace

KeepOrder::KeepOrder(KeepPolicy policy, const KeepWeights& weights) : policy_(policy), weights_(weights) {
  if (policy == KeepPolicy::kFairShare) weights_ = {1.0 / 3, 1.0 / 3, 1.0 / 3};
}

void KeepOrder::sort(std::span<CacheItem> items) const {
  const Scale scale(items);
  for (CacheItem& item : items) {
    switch (policy_) {
      case KeepPolicy::kLru:
        item.score = scale.recency(item);
        break;
      case KeepPolicy::kFairShare:
      case KeepPolicy::kChameleon:
        item.score = weights_.frequency * scale.frequency(item) + weights_.recency * scale.recency(item) +
                     weights_.size * scale.size(item);
        break;
      case KeepPolicy::kDensity:
        item.score = density(item);
        break;
    }
  }
  std::sort(items.begin(), items.end(), [this](const CacheItem& a, const CacheItem& b) {
    if (a.wanted != b.wanted) return a.wanted > b.wanted;
    if (a.foreseen != b.foreseen) return a.foreseen < b.foreseen;
    if (policy_ != KeepPolicy::kLru && a.score != b.score) return a.score < b.score;
    return a.last_use_ns != b.last_use_ns ? a.last_use_ns < b.last_use_ns : a.id < b.id;
  });
}

bool is_worth_less(const CacheItem& a, const CacheItem& b) {
  if (a.wanted != b.wanted) return a.wanted > b.wanted;
  if (density(a) != density(b)) return density(a) < density(b);
  return a.last_use_ns <= b.last_use_ns;
}

}  // namespace loralei

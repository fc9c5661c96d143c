// SPDX-License-Identifier: Apache-2.0
#include "adapters/cache_policy.h"

#include <algorithm>

namespace loralei {

size_t lru_victim(std::span<const EvictionCandidate> candidates, int64_t now_ns) {
  const auto goes_before = [](const EvictionCandidate& a, const EvictionCandidate& b) {
    if (a.wanted != b.wanted) return a.wanted > b.wanted;
    if (a.last_use_ns != b.last_use_ns) return a.last_use_ns < b.last_use_ns;
    return a.version < b.version;
  };
  return static_cast<size_t>(std::min_element(candidates.begin(), candidates.end(), goes_before) - candidates.begin());
}

}  // namespace loralei

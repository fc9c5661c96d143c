// SPDX-License-Identifier: Apache-2.0
#include "adapters/cache_policy.h"

namespace loralei {

bool leaves_before(const EvictionCandidate& a, const EvictionCandidate& b) {
  if (a.wanted != b.wanted) return a.wanted > b.wanted;
  return a.last_use_ns != b.last_use_ns ? a.last_use_ns < b.last_use_ns : a.version < b.version;
}

}  // namespace loralei

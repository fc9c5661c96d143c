// SPDX-License-Identifier: Apache-2.0
// ExpertPairs: the low-rank pairs that an adapter has for a mixture of experts: for what
// scores them, and for the matrices of single experts.
//
// A plain value; what its pairs point to belongs to the adapter. Immutable after load,
// any thread. A pair of rank 0 adds nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/args.h"

namespace loralei {

struct ExpertPairs {
  static constexpr int kParts = 3;  // gate, up, down

  int32_t experts = 0;                 // of a layer
  std::vector<LoraPair> router;        // [layers], or empty: no pair
  std::vector<LoraPair> shared_gates;  // of the gate in front of the shared expert; likewise
  std::vector<LoraPair> matrices;      // [layers][experts][kParts], or empty

  bool any() const { return !router.empty() || !shared_gates.empty() || !matrices.empty(); }
  const LoraPair& matrix(int layer, int expert, int part) const {
    return matrices[(static_cast<size_t>(layer) * static_cast<size_t>(experts) + static_cast<size_t>(expert)) * kParts +
                    static_cast<size_t>(part)];
  }
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// KvEviction: which cached prefix goes first when blocks run out. Always one behind which
// nothing is held.
//
//   kLru      the one released first
//   kDensity  of the first of those that were ever found and the first of those that were
//             not, the one that is worth less: the seconds that it is expected to save
//             (KvWorth), by its uses so far; of one that was not found yet as often as
//             others are
//   kUtility  of the firsts of those that the same applications use, the one of least
//             U = state * S / (1 + S) + recency / (1 + idle / recent_s)
//                 + length * L / (1024 + L)
//             where S is the score of these applications (KvApps), idle the time since
//             its last use and L the tokens up to its end (MobiLoRA, Eq. 4; the paper
//             leaves the monotone functions open)
//
// Thread-safe (plain values). No failure.
#pragma once

#include <cstdint>

namespace loralei {

enum class KvEviction : uint8_t { kLru, kDensity, kUtility };

// The lambdas of kUtility, and what idle times are measured by.
struct KvUtility {
  double state = 0.5, recency = 0.4, length = 0.1;
  double recent_s = 300;
};

}  // namespace loralei

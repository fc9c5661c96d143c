// SPDX-License-Identifier: Apache-2.0
// KvEviction: which prefix that nobody has is evicted first when blocks run out.
//
//   kLru      the one released first
//   kDensity  of the first of those that were ever found and the first of those that were
//             not, the one that is worth less: the seconds that it is expected to save
//             (KvWorth), by its uses so far; of one that was not found yet as often as
//             others are
//
// Thread-safe (a plain value). No failure.
#pragma once

#include <cstdint>

namespace loralei {

enum class KvEviction : uint8_t { kLru, kDensity };

}  // namespace loralei

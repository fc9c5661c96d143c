// SPDX-License-Identifier: Apache-2.0
// KvSharing: what a cache may do with prefixes that nobody leases, and what a request
// takes of what it did (mechanisms §5). Each allows all that those before it do.
//
//   kExact     blocks stay as they were computed
//   kLossless  what is encoded comes back bit for bit: int8 and fp8 caches
//   kBounded   float caches too, within the steps of a KvGrid
//   kBorrow    and adapters read the base's lower layers, as deep as was measured
//
// KvDelta: what is told as differences from an anchor, in a float cache.
//
//   kSteps  differences of integers within the steps of the grid: what it is for
//   kPaper  to compare with: the absolute bounds of MobiLoRA (codec/kv_paper.h), from
//           what the anchor's blob says. What is too far from its anchor is encoded
//           alone; what was decoded is never encoded anew, so that errors do not add up;
//           and such a delta goes before its anchor, and to disk as it lies in a block
//
// Plain values; no failure.
#pragma once

#include <array>
#include <cstdint>

namespace loralei {

enum class KvSharing : uint8_t { kExact, kLossless, kBounded, kBorrow };
inline constexpr std::array<const char*, 4> kKvSharingNames = {"exact", "lossless", "bounded", "borrow"};

enum class KvDelta : uint8_t { kSteps, kPaper };
inline constexpr std::array<const char*, 2> kKvDeltaNames = {"steps", "paper"};

}  // namespace loralei

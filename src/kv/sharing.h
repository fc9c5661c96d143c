// SPDX-License-Identifier: Apache-2.0
// KvSharing: what a cache may do with prefixes that nobody leases, and what a request
// takes of what it did (mechanisms §5). Each allows all that those before it do.
//
//   kExact     blocks stay as they were computed
//   kLossless  what is encoded comes back bit for bit: int8 and fp8 caches
//   kBounded   float caches too, within the steps of a KvGrid
//   kBorrow    and adapters read the base's lower layers, as deep as was measured
//
// Plain values; no failure.
#pragma once

#include <array>
#include <cstdint>

namespace loralei {

enum class KvSharing : uint8_t { kExact, kLossless, kBounded, kBorrow };
inline constexpr std::array<const char*, 4> kKvSharingNames = {"exact", "lossless", "bounded", "borrow"};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// Byte and time units: parsing what users type ("2GiB", "1.5GB", "512M") and printing
// what they read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loralei {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;

// What no machine has: sizes that users state stay below, so that sums of them
// never overflow.
inline constexpr int64_t kMaxStatedBytes = int64_t{1} << 50;

// Accepts a non-negative number, up to kMaxStatedBytes, with an optional unit: B,
// K/KB/KiB, M.., G.., T.. (KB = 1000, KiB and the bare letter = 1024).
Result<int64_t> parse_bytes(std::string_view text);
// "1.50 GiB", "12.0 MiB", "512 B".
std::string format_bytes(int64_t bytes);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// Chains of nodes by hash, as TextTree and HoldingTable keep them: twice as many buckets
// as nodes. Pure; any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace loralei {

inline uint64_t mix_hash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

// `buckets`: a power of two.
inline size_t bucket_of_hash(uint64_t hash, size_t buckets) { return static_cast<size_t>(hash >> 7) & (buckets - 1); }

inline size_t buckets_for(int32_t nodes) { return std::bit_ceil(static_cast<size_t>(nodes) * 2); }

}  // namespace loralei

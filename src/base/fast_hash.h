// SPDX-License-Identifier: Apache-2.0
// A fast 64-bit hash of bytes, for names and checksums: it notices mix-ups and damage, not attackers. Pure function,
// any thread; the value is the same on every machine of the same byte order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loralei {

uint64_t mix64(uint64_t value);
// Four lanes, so that it keeps up with memory.
uint64_t fast_hash(const std::byte* data, size_t size, uint64_t seed);

}  // namespace loralei

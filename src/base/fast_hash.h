// SPDX-License-Identifier: Apache-2.0
// A fast 64-bit hash of bytes, for names and checksums: it notices mix-ups and damage,
// not attackers. Pure function, any thread; the value is the same on every machine of
// the same byte order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loralei {

uint64_t mix64(uint64_t value);
// Faster than memory is read, so that bytes on their way to a product can be checked.
uint64_t fast_hash(const std::byte* data, size_t size, uint64_t seed);
// The same without vector instructions, to compare with.
uint64_t fast_hash_plain(const std::byte* data, size_t size, uint64_t seed);

}  // namespace loralei

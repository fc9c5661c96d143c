// SPDX-License-Identifier: Apache-2.0
// Numbers of f16 that are numbers of bf16 too: those of at most eight significant bits.
// A model trained in bf16 and stored in f16 has no others (also where f16 rounded it:
// a subnormal f16 number has few bits of its own), and can be held as bf16 in the same
// bytes without rounding anything.
//
// Pure functions, any thread, no allocation. Sources need not be aligned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loralei {

// Whether all `count` numbers are; infinities are, a NaN is if bf16 has its bits.
bool all_bf16(const std::byte* f16, int64_t count);

// Makes bf16 numbers of f16 ones in their place. All of them are numbers of both.
void f16_to_bf16_in_place(std::byte* numbers, int64_t count);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// For tests: the bytes that this thread allocates while something runs. A program that links allocation_counter.cc has
// its operator new replaced.
//
// Thread: counts the thread that began; what others allocate is not seen, and what they free for it is. One count at a
// time.
#pragma once

#include <cstdint>

namespace loralei::test {

struct Allocated {
  int64_t bytes = 0;       // in all
  int64_t peak_bytes = 0;  // at once
  int64_t live_bytes = 0;  // still
};

void begin_counting_bytes();
Allocated end_counting_bytes();

}  // namespace loralei::test

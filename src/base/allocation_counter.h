// SPDX-License-Identifier: Apache-2.0
// For tests: what this thread allocates between two calls (allocation_counter.cc replaces
// operator new in the programs it is linked into; under the thread sanitizer it counts
// malloc). What other threads free of it, or it of theirs, goes into live_bytes all the
// same.
#pragma once

#include <cstdint>

namespace loralei::testing_support {

struct Allocated {
  int64_t count = 0, bytes = 0;            // in all
  int64_t peak_bytes = 0, live_bytes = 0;  // at once; still
};

void start_counting_allocations();
Allocated stop_counting_allocations();
void resume_counting_allocations();  // after a look in between

}  // namespace loralei::testing_support

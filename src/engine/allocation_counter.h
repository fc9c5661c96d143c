// SPDX-License-Identifier: Apache-2.0
// For tests: counts what this thread allocates between two calls (allocation_counter_test.cc replaces operator new in
// the test program).
#pragma once

#include <cstdint>

namespace loralei::testing_support {

void start_counting_allocations();
int64_t stop_counting_allocations();

}  // namespace loralei::testing_support

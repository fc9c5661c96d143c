// SPDX-License-Identifier: Apache-2.0
#include "base/allocation_counter.h"

#include <gtest/gtest.h>

#include <new>

namespace loralei::testing_support {
namespace {

TEST(AllocationCounter, SeesAllocations) {
  start_counting_allocations();
  void* const gone = ::operator new(8);  // no new-expressions: those may be left out
  void* const kept = ::operator new(800);
  ::operator delete(gone);
  const Allocated seen = stop_counting_allocations();
  EXPECT_EQ(seen.count, 2);
  EXPECT_GE(seen.live_bytes, 800);
  EXPECT_GE(seen.peak_bytes, 808);
  EXPECT_EQ(seen.bytes, seen.peak_bytes);
  EXPECT_LT(seen.live_bytes, seen.peak_bytes);
  ::operator delete(kept);
}

}  // namespace
}  // namespace loralei::testing_support

// SPDX-License-Identifier: Apache-2.0
#include "engine/allocation_counter.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>

namespace {
thread_local bool counting = false;
thread_local int64_t allocations = 0;
}  // namespace

// A plain malloc that counts. In a file of its own, so that no caller sees through it.
void* operator new(size_t bytes) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  std::abort();
}
// Sanitizers bring one of their own, whose memory std::free would not take.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace loralei::testing_support {

void start_counting_allocations() {
  allocations = 0;
  counting = true;
}

int64_t stop_counting_allocations() {
  counting = false;
  return allocations;
}

namespace {

TEST(AllocationCounter, SeesAllocations) {
  start_counting_allocations();
  const auto number = std::make_unique<int>(1);
  EXPECT_EQ(stop_counting_allocations(), 1);
}

}  // namespace
}  // namespace loralei::testing_support

// SPDX-License-Identifier: Apache-2.0
#include "support/allocation_counter.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

thread_local bool counting = false;
thread_local loralei::test::Allocated allocated;

void* counted(size_t bytes) {
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  if (counting) {
    const auto size = static_cast<int64_t>(malloc_usable_size(memory));
    allocated.bytes += size;
    allocated.live_bytes += size;
    allocated.peak_bytes = std::max(allocated.peak_bytes, allocated.live_bytes);
  }
  return memory;
}

void give_back(void* memory) {
  if (counting && memory != nullptr) allocated.live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) { return counted(bytes); }
// Sanitizers bring one of their own, whose memory std::free would not take.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, size_t) noexcept { give_back(memory); }

namespace loralei::test {

void begin_counting_bytes() {
  allocated = {};
  counting = true;
}

Allocated end_counting_bytes() {
  counting = false;
  return allocated;
}

}  // namespace loralei::test

// SPDX-License-Identifier: Apache-2.0
#include "base/allocation_counter.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

thread_local bool counting = false;
thread_local loralei::testing_support::Allocated allocated;

[[gnu::noinline]] void release(void* memory) {
  if (counting && memory != nullptr) allocated.live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// A plain malloc that counts. In a file of its own, so that no caller sees through it.
void* operator new(size_t bytes) {
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  if (counting) {
    const auto size = static_cast<int64_t>(malloc_usable_size(memory));
    ++allocated.count;
    allocated.bytes += size;
    allocated.live_bytes += size;
    allocated.peak_bytes = std::max(allocated.peak_bytes, allocated.live_bytes);
  }
  return memory;
}
// Sanitizers bring the other forms themselves, whose memory std::free would not take and
// nobody would count.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes); }
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }

namespace loralei::testing_support {

void start_counting_allocations() {
  allocated = {};
  counting = true;
}

Allocated stop_counting_allocations() {
  counting = false;
  return allocated;
}

void resume_counting_allocations() { counting = true; }

}  // namespace loralei::testing_support

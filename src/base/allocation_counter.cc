// SPDX-License-Identifier: Apache-2.0
#include "base/allocation_counter.h"

#include <malloc.h>
#if defined(LORALEI_THREAD_SANITIZER)
#include <sanitizer/allocator_interface.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

thread_local bool counting = false;
thread_local loralei::testing_support::Allocated allocated;

void count_new(int64_t bytes) {
  if (!counting) return;
  ++allocated.count;
  allocated.bytes += bytes;
  allocated.live_bytes += bytes;
  allocated.peak_bytes = std::max(allocated.peak_bytes, allocated.live_bytes);
}
void count_freed(int64_t bytes) {
  if (counting) allocated.live_bytes -= bytes;
}

}  // namespace

#if defined(LORALEI_THREAD_SANITIZER)

// Clang's thread sanitizer lets nobody else have operator new; it tells what malloc
// gives, and takes.
namespace {

const bool hooks_installed = __sanitizer_install_malloc_and_free_hooks(
                                 [](const volatile void* memory, size_t) {
                                   if (memory != nullptr)
                                     count_new(static_cast<int64_t>(__sanitizer_get_allocated_size(memory)));
                                 },
                                 [](const volatile void* memory) {
                                   if (memory != nullptr)
                                     count_freed(static_cast<int64_t>(__sanitizer_get_allocated_size(memory)));
                                 }) != 0;

}  // namespace

#else

namespace {

[[gnu::noinline]] void release(void* memory) {
  if (memory != nullptr) count_freed(static_cast<int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}

}  // namespace

// A plain malloc that counts. In a file of its own, so that no caller sees through it.
void* operator new(size_t bytes) {
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  count_new(static_cast<int64_t>(malloc_usable_size(memory)));
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

#endif

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

// SPDX-License-Identifier: Apache-2.0
#include "sys/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/units.h"

namespace loralei {
namespace {

constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;

uintptr_t round_up(uintptr_t value, uintptr_t unit) { return (value + unit - 1) / unit * unit; }
uintptr_t page_bytes() { return static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace

std::byte* map_pages(int64_t bytes, PageSize pages) {
  if (bytes <= 0 || bytes > INT64_MAX / 2) return nullptr;
  const uintptr_t size = round_up(static_cast<uintptr_t>(bytes), page_bytes());
  const bool huge = size >= kHugePageBytes;
  const uintptr_t mapped = huge ? size + kHugePageBytes : size;
  void* base = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  if (!huge) return static_cast<std::byte*>(base);
  // Cut the surplus before and after, so that exactly the aligned part remains and unmap_pages need not know more.
  const uintptr_t start = reinterpret_cast<uintptr_t>(base);
  const uintptr_t aligned = round_up(start, kHugePageBytes);
  if (aligned > start) ::munmap(base, aligned - start);
  if (const uintptr_t end = start + mapped; end > aligned + size)
    ::munmap(reinterpret_cast<void*>(aligned + size), end - aligned - size);
  // A hint: refusal costs speed only.
  ::madvise(reinterpret_cast<void*>(aligned), size, pages == PageSize::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return reinterpret_cast<std::byte*>(aligned);
}

Status lock_pages(std::byte* data, int64_t bytes) {
  if (::mlock(data, static_cast<size_t>(bytes)) == 0) return {};
  return Error{ErrorCode::kForbidden,
               "The system does not let this process lock " + format_bytes(bytes) +
                   " of memory, so it may swap weights out; allow it with 'ulimit -l unlimited' (or LimitMEMLOCK= "
                   "in a systemd unit)."};
}

void unmap_pages(std::byte* data, int64_t bytes) {
  if (data != nullptr) ::munmap(data, round_up(static_cast<uintptr_t>(bytes), page_bytes()));
}

}  // namespace loralei

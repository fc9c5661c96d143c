// SPDX-License-Identifier: Apache-2.0
#include "sys/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/units.h"

namespace loralei {
namespace {

constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;

uintptr_t round_up(uintptr_t value, uintptr_t unit) { return (value + unit - 1) / unit * unit; }
uintptr_t round_to_pages(int64_t bytes) {
  return round_up(static_cast<uintptr_t>(bytes), static_cast<uintptr_t>(page_bytes()));
}

// Page aligned, 2 MiB aligned when that large.
std::byte* map_aligned(int64_t bytes, int protection) {
  if (bytes <= 0 || bytes > INT64_MAX / 2) return nullptr;
  const uintptr_t size = round_to_pages(bytes);
  const bool huge = size >= kHugePageBytes;
  const uintptr_t mapped = huge ? size + kHugePageBytes : size;
  void* base = ::mmap(nullptr, mapped, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  if (!huge) return static_cast<std::byte*>(base);
  // Cut the surplus before and after, so that exactly the aligned part remains and
  // unmap_pages need not know more.
  const uintptr_t start = reinterpret_cast<uintptr_t>(base);
  const uintptr_t aligned = round_up(start, kHugePageBytes);
  if (aligned > start) ::munmap(base, aligned - start);
  if (const uintptr_t end = start + mapped; end > aligned + size)
    ::munmap(reinterpret_cast<void*>(aligned + size), end - aligned - size);
  return reinterpret_cast<std::byte*>(aligned);
}

// A hint: refusal costs speed only.
void advise(std::byte* data, int64_t bytes, PageSize pages) {
  const uintptr_t size = round_to_pages(bytes);
  if (size >= kHugePageBytes) ::madvise(data, size, pages == PageSize::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

}  // namespace

int64_t page_bytes() { return ::sysconf(_SC_PAGESIZE); }

std::byte* map_pages(int64_t bytes, PageSize pages) {
  std::byte* const data = map_aligned(bytes, PROT_READ | PROT_WRITE);
  if (data != nullptr) advise(data, bytes, pages);
  return data;
}

std::byte* reserve_pages(int64_t bytes) { return map_aligned(bytes, PROT_NONE); }

bool commit_pages(std::byte* data, int64_t bytes) {
  if (bytes <= 0) return bytes == 0;
  if (::mprotect(data, round_to_pages(bytes), PROT_READ | PROT_WRITE) != 0) return false;
  advise(data, bytes, PageSize::kHuge);
  return true;
}

void decommit_pages(std::byte* data, int64_t bytes) {
  if (bytes <= 0) return;
  const uintptr_t size = round_to_pages(bytes);
  ::munlock(data, size);
  ::madvise(data, size, MADV_DONTNEED);
  ::mprotect(data, size, PROT_NONE);
}

Status lock_pages(std::byte* data, int64_t bytes) {
  if (::mlock(data, static_cast<size_t>(bytes)) == 0) return {};
  return Error{ErrorCode::kForbidden,
               "The system does not let this process lock " + format_bytes(bytes) +
                   " of memory, so it may swap weights out; allow it with 'ulimit -l unlimited' (or LimitMEMLOCK= "
                   "in a systemd unit)."};
}

void unmap_pages(std::byte* data, int64_t bytes) {
  if (data != nullptr) ::munmap(data, round_to_pages(bytes));
}

}  // namespace loralei

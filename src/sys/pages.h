// SPDX-License-Identifier: Apache-2.0
// Anonymous memory straight from the system. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace loralei {

enum class PageSize : uint8_t { kHuge, kSmall };

// Zeroed, page aligned (2 MiB aligned when that large); null when the system refuses.
// kHuge advises huge pages, kSmall forbids them (for measuring what they are worth).
std::byte* map_pages(int64_t bytes, PageSize pages = PageSize::kHuge);
// Keeps the memory from being swapped out or dropped. Refused (with the command
// that raises the limit) where the process may not lock that much; the memory is as
// usable as before.
Status lock_pages(std::byte* data, int64_t bytes);
void unmap_pages(std::byte* data, int64_t bytes);  // `bytes` as given to map_pages or reserve_pages

// Addresses for memory to come, aligned as map_pages aligns: they cost nothing and may
// not be touched before commit_pages; null when the system refuses.
std::byte* reserve_pages(int64_t bytes);
// Makes [data, data + bytes) of a reservation usable, zeroed, on huge pages; false when
// the system refuses. data is page aligned.
bool commit_pages(std::byte* data, int64_t bytes);
// Gives the memory of [data, data + bytes) back and keeps the addresses.
void decommit_pages(std::byte* data, int64_t bytes);
int64_t page_bytes();

}  // namespace loralei

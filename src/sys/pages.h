// SPDX-License-Identifier: Apache-2.0
// Anonymous memory straight from the system. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loralei {

// Zeroed, page aligned (2 MiB aligned when that large), advised to use huge pages; null when the system refuses.
std::byte* map_pages(int64_t bytes);
void unmap_pages(std::byte* data, int64_t bytes);  // `bytes` as given to map_pages

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// What the system keeps of a file in memory, the page cache: told, and let go, to measure
// what reading from the disk takes.
//
// Thread: any. Failure: a sentence with the path.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace loralei {

// Of a regular file.
Result<int64_t> cached_file_bytes(const std::string& path);

// What is written goes to the disk first. What somebody has mapped stays, and where there
// is no disk (tmpfs) all does.
Status drop_cached_file(const std::string& path);

}  // namespace loralei

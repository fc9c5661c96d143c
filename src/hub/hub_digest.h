// SPDX-License-Identifier: Apache-2.0
// What a file's contents are called on a hub: the SHA-256 of a large file, the SHA-1 that
// git gives a blob ("blob SIZE\0" before its bytes) of a small one.
//
// Thread: pure but for the file. Failure: that of the file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "sys/file.h"

namespace loralei {

// `like`: 64 digits, or 40. `progress` is told how many bytes were read, perhaps null.
Result<std::string> hub_digest(const File& file, const std::string& like, const std::function<void(int64_t)>& progress);

}  // namespace loralei

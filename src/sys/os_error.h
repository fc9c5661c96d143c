// SPDX-License-Identifier: Apache-2.0
// Errors of system calls as sentences. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace loralei {

// "cannot open 'x': No such file or directory". The code follows errno: kNotFound,
// kForbidden, otherwise kIo.
Error os_error(const std::string& action, const std::string& path, int errno_value);
// The file ended before a read was complete.
Error end_of_file(const std::string& path, int64_t offset_bytes, size_t wanted_bytes, size_t got_bytes);
// The system's words for an errno value; thread-safe.
std::string errno_text(int errno_value);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// Files packed with zstd, which are published traces' usual form and not read here.
// Pure function, any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace loralei {

// An error that says how to unpack it, where the name says that the file is packed.
Status check_not_packed(const std::string& path);

}  // namespace loralei

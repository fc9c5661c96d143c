// SPDX-License-Identifier: Apache-2.0
// --registry FILE: the adapters that were loaded over HTTP, kept across restarts.
//
// Thread: one, at start.
// Ownership: the answer borrows the FileSystem, through which adapters are looked at.
// Failure: a sentence with the flag, as open_sqlite_registry() says it.
#pragma once

#include <string>

#include "base/result.h"
#include "serve/adapter_records.h"
#include "sys/file.h"

namespace loralei {

// Without `base`, which is known when the model is loaded. No path: no registry.
Result<RegistryUse> open_registry(const std::string& path, const FileSystem& adapter_files);

}  // namespace loralei

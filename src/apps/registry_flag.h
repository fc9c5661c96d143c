// SPDX-License-Identifier: Apache-2.0
// --registry FILE: the adapters that were loaded over HTTP, kept across restarts.
//
// Thread: one, at start.
// Ownership: the answer borrows the FileSystem, through which adapters are looked at.
// Failure: a sentence with the flag, as open_sqlite_registry() says it.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "serve/adapter_records.h"
#include "sys/file.h"

namespace loralei {

// Without `base`, which is known when the model is loaded. No path: no registry.
// keep_versions: of each name (--keep-versions).
Result<RegistryUse> open_registry(const std::string& path, const FileSystem& adapter_files, int64_t keep_versions = 1);

}  // namespace loralei

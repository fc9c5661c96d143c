// SPDX-License-Identifier: Apache-2.0
// A Registry in an SQLite file, for the servers of one machine: each has a file of its
// own, which nobody else can open meanwhile.
//
// Format: application_id kRegistryApplication, user_version kRegistryFormat, one table
// `versions` with a row for each version, and for each name whose newest version was
// removed one that says which number was its last (`gone`). Each row has a SHA-256 of
// itself, since SQLite checks its pages' structure only.
// Durability: WAL with synchronous FULL: a commit is on disk before it is answered.
// Writes that wait together are committed together.
// Failure: open_sqlite_registry() answers a sentence for a file that another server has
// open, that is no registry, that a newer program wrote, or that is damaged, and changes
// no file of others. A write fails for a full disk, a file that may not be written or
// that is no longer at its path.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "store/registry.h"

namespace loralei {

inline constexpr int kRegistryApplication = 0x4c524c49;  // "LRLI"
inline constexpr int kRegistryFormat = 1;

struct SqliteRegistryOptions {
  int64_t keep_versions = 1;  // of each name, >= 1
  size_t queue_limit = 1024;  // writes that wait
};

// Makes the file where there is none; its folder must be there. Reads all of it.
Result<std::unique_ptr<Registry>> open_sqlite_registry(const std::string& path,
                                                       const SqliteRegistryOptions& options = {});

}  // namespace loralei

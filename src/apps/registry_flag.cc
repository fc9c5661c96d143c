// SPDX-License-Identifier: Apache-2.0
#include "apps/registry_flag.h"

#include <utility>

#include "adapters/adapter.h"
#include "store/sqlite_registry.h"

namespace loralei {

Result<RegistryUse> open_registry(const std::string& path, const FileSystem& adapter_files, int64_t keep_versions) {
  RegistryUse use;
  if (path.empty()) return use;
  auto opened = open_sqlite_registry(path, {.keep_versions = keep_versions});
  if (!opened.ok()) return std::move(opened).error().with_context("--registry");
  use.registry = std::move(*opened);
  use.stamp = [&adapter_files](const std::string& adapter) -> Result<std::string> {
    TRY_ASSIGN(const FileStamp stamp, adapter_stamp(adapter_files, adapter));
    return std::to_string(stamp.inode) + ":" + std::to_string(stamp.size_bytes) + ":" + std::to_string(stamp.mtime_ns);
  };
  return use;
}

}  // namespace loralei

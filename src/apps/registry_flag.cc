// SPDX-License-Identifier: Apache-2.0
#include "apps/registry_flag.h"

#include <utility>

#include "adapters/adapter.h"
#include "store/etcd_registry.h"
#include "store/sqlite_registry.h"

namespace loralei {
namespace {

Result<std::unique_ptr<Registry>> open_place(const RegistryFlag& flag, LogSink& log) {
  if (!flag.place.starts_with("etcd://"))
    return open_sqlite_registry(flag.place, {.keep_versions = flag.keep_versions});
  EtcdRegistryOptions options;
  TRY_ASSIGN(options.etcd.endpoints, parse_etcd_endpoints(flag.place));
  options.prefix = "/loralei/" + flag.fleet + "/adapters/";
  options.keep_versions = flag.keep_versions;
  return open_etcd_registry(options, log);
}

}  // namespace

Result<RegistryUse> open_registry(const RegistryFlag& flag, const FileSystem& adapter_files, LogSink& log) {
  RegistryUse use;
  if (flag.place.empty()) return use;
  auto opened = open_place(flag, log);
  if (!opened.ok()) return std::move(opened).error().with_context("--registry");
  use.registry = std::move(*opened);
  use.stamp = [&adapter_files](const std::string& adapter) -> Result<std::string> {
    TRY_ASSIGN(const FileStamp stamp, adapter_stamp(adapter_files, adapter));
    return std::to_string(stamp.inode) + ":" + std::to_string(stamp.size_bytes) + ":" + std::to_string(stamp.mtime_ns);
  };
  return use;
}

}  // namespace loralei

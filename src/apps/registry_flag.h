// SPDX-License-Identifier: Apache-2.0
// --registry FILE or etcd://HOST:PORT[,...]: the adapters that were loaded over HTTP,
// kept across restarts, for this server or for all of a fleet.
//
// Thread: one, at start.
// Ownership: the answer borrows the FileSystem, through which adapters are looked at, and
// the log.
// Failure: a sentence with the flag, as open_sqlite_registry() and open_etcd_registry()
// say it.
#pragma once

#include <cstdint>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "serve/adapter_records.h"
#include "sys/file.h"

namespace loralei {

struct RegistryFlag {
  std::string place;              // as typed; empty: no registry
  int64_t keep_versions = 1;      // of each name (--keep-versions)
  std::string fleet = "default";  // whose it is, in etcd (--fleet)
};

// Without `base`, which is known when the model is loaded.
Result<RegistryUse> open_registry(const RegistryFlag& flag, const FileSystem& adapter_files, LogSink& log);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// A Registry in etcd, for the servers of a fleet: several write beside each other, and
// each reads what the others wrote, some milliseconds later.
//
// Format: under the prefix a key for each name, ever, with a RegistryValue.
// Thread: as Registry says; a thread that writes and one that watches.
// Invariants: a write is a transaction that compares the name's revision, so that of two
// servers neither writes over the other: who comes second does it again to what is there
// then. Reads are of memory, which the watch keeps.
// Failure: open_etcd_registry() answers a sentence where etcd does not answer or holds
// what is no registry. Later, while etcd is away, reads answer what was known and writes
// kUnavailable within `deadline_ms`; of one of which etcd was asked and did not tell what
// became of it, the sentence says so: it may be found there later, as if another server
// had written it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "store/etcd_client.h"
#include "store/registry.h"

namespace loralei {

struct EtcdRegistryOptions {
  EtcdOptions etcd;
  std::string prefix = "/loralei/default/adapters/";  // ends with '/'
  int64_t keep_versions = 1;                          // of each name, >= 1
  size_t queue_limit = 1024;                          // writes that wait
  int64_t deadline_ms = 5'000;                        // of a write, from when it was taken; of the first read
};

Result<std::unique_ptr<Registry>> open_etcd_registry(const EtcdRegistryOptions& options, LogSink& log);

}  // namespace loralei

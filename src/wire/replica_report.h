// SPDX-License-Identifier: Apache-2.0
// ReplicaReport: what a server tells whoever routes requests to it (GET /v1/replica):
// what it serves, how much fits, what it has to do, which adapters it has and where, and
// what its steps cost. Adapters come as changes since a cursor, a page at a time.
//
//   {"object": "replica", "boot": "5f2c...", "cursor": 17, "since": 12, "more": false,
//    "ready": true, "models": ["base"], "base": "digest",
//    "capacity": {"sequences": 8, "waiting": 256, "kv_tokens": 4096, "model_len": 2048,
//                 "adapter_bytes": 1073741824},
//    "load": {"running": 3, "waiting": 0, "kv_tokens_free": 1024},
//    "cost": {a profile} or null,
//    "adapters": [{"name", "version", "tier", "rank", "bytes", "uses", "failed"}],
//    "gone": ["name"]}
//
// `since` is 0 where the page is the first of all there is, and the reader forgets what
// it knew: another process (`boot`), or a cursor too old for its changes to be known.
//
// Thread: pure functions and plain values.
// Invariants of a parsed report: names are of at most kMaxNameBytes and not empty,
// numbers finite, not negative and below 2^53.
// Failure: a sentence that names the field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loralei {

enum class ReplicaTier : uint8_t { kDisk, kMemory, kDevice };

struct ReplicaAdapter {
  std::string name;
  std::string version;  // digest; empty: it was not loaded yet
  ReplicaTier tier = ReplicaTier::kDisk;
  int32_t rank = 0;     // the largest; 0: not known yet
  int64_t bytes = 0;    // in memory; 0: not known yet
  int64_t uses = 0;     // requests so far that it was taken for
  bool failed = false;  // its last load
  friend bool operator==(const ReplicaAdapter&, const ReplicaAdapter&) = default;
};

struct ReplicaReport {
  std::string boot;
  uint64_t cursor = 0, since = 0;
  bool more = false;  // changes behind `cursor` are there already
  bool ready = true;
  std::vector<std::string> models;  // names of the base
  std::string base;                 // its digest
  int32_t sequences_max = 0, waiting_max = 0;
  int64_t kv_tokens = 0, model_len = 0;
  int64_t adapter_bytes = 0;  // that adapters in memory may take; 0: not known
  int32_t running = 0, waiting = 0;
  int64_t kv_tokens_free = 0;
  std::string cost;  // JSON of a profile; empty: not known
  std::vector<ReplicaAdapter> adapters;
  std::vector<std::string> gone;
  friend bool operator==(const ReplicaReport&, const ReplicaReport&) = default;
};

inline constexpr size_t kReportAdaptersMost = 4096;  // of a page, those that are gone among them

std::string replica_report_body(const ReplicaReport& report);
Result<ReplicaReport> parse_replica_report(std::string_view body);
// The names in GET /v1/models of any server of this kind of API, and of these the base's:
// those without a parent (`parent` or `root` elsewhere); at most kReportAdaptersMost.
struct ModelNames {
  std::vector<std::string> base, adapters;
};
Result<ModelNames> parse_model_list(std::string_view body);

}  // namespace loralei

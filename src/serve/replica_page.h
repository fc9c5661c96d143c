// SPDX-License-Identifier: Apache-2.0
// ReplicaPage: GET /v1/replica, what this server tells whoever routes requests to it
// (wire/replica_report). It finds out what changed of the adapters when it is asked, so
// that nothing is counted while nobody asks.
//
// Thread-safe.
// Ownership: values.
// Invariants: pages that are asked for one behind the other's cursor add up to what is
// there; of adapters that are gone at most kGoneKept are remembered: whoever asks with an
// older cursor is told everything once more. An answer costs what there are adapters, and
// no step anything.
// Failure: none; a cursor that is none, or another process's, is the beginning.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/api.h"
#include "http/message.h"
#include "serve/options.h"
#include "store/catalogue.h"
#include "wire/replica_report.h"

namespace loralei {

class ReplicaPage {
 public:
  static constexpr size_t kGoneKept = 16'384;

  explicit ReplicaPage(std::string boot) : boot_(std::move(boot)) {}

  // What is of this page: report.adapters, gone, cursor, since and more.
  // `now`: every adapter.
  void fill(std::vector<ReplicaAdapter> now, std::string_view boot, uint64_t since, ReplicaReport& report);
  const std::string& boot() const { return boot_; }

 private:
  struct Known {
    ReplicaAdapter adapter;
    uint64_t changed = 0;
    bool gone = false;
  };
  void note(std::vector<ReplicaAdapter> now);
  void change(const std::string& name, Known& known);

  const std::string boot_;
  std::mutex mutex_;
  std::map<std::string, Known> known_;
  std::map<uint64_t, const std::string*> changes_;  // the last of each name; names are known_'s keys
  size_t gone_ = 0;
  uint64_t last_ = 0;       // change
  uint64_t forgotten_ = 0;  // the last one of those that are not remembered
};

// Of the catalogue, with what the engine says of each.
std::vector<ReplicaAdapter> replica_adapters(const std::vector<CatalogueEntry>& entries, const AdapterList& statuses);
// The body, for "boot=...&since=..." or no query.
std::string replica_body(ReplicaPage& page, std::string_view query, const ServeOptions& options, const Engine& engine,
                         bool ready, std::vector<ReplicaAdapter> adapters);

}  // namespace loralei

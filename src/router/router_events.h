// SPDX-License-Identifier: Apache-2.0
// What GET /v1/admin/events of a router says at a tick: its replicas, and the adapters
// that they have.
//
// Thread: any; one caller, for rates.
// Ownership: borrows the fleet, which outlives it.
// Invariant: at most kAdaptersTold adapters are named, with their number in all.
// Failure: none.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "router/fleet.h"
#include "wire/json_out.h"

namespace loralei {

// The list of GET /v1/replicas.
void put_replicas(const std::vector<ReplicaState>& replicas, JsonOut& out);

class RouterEvents {
 public:
  static constexpr size_t kAdaptersTold = 200;

  RouterEvents(const Fleet& fleet, const Clock& clock, std::string version)
      : fleet_(fleet), clock_(clock), version_(std::move(version)) {}
  std::string snapshot(bool draining);

 private:
  const Fleet& fleet_;
  const Clock& clock_;
  const std::string version_;
  int64_t before_ns_ = 0;
  uint64_t picks_before_ = 0;
};

}  // namespace loralei

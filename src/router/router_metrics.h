// SPDX-License-Identifier: Apache-2.0
// RouterMetrics: what a router's /metrics shows, in Prometheus' text format.
//
// Thread-safe.
// Ownership: owns its registry; what replicas are is handed to render().
// Invariants: labels are replicas' addresses, routes and words of fixed sets; counters
// never fall.
// Failure: none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "http/server.h"
#include "http/upstream.h"
#include "router/fleet.h"
#include "router/placement.h"

namespace loralei {

// How a request on a replica ended.
enum class AttemptEnd : uint8_t { kAnswered, kRefused, kFailed, kLeft };  // kLeft: its client did

class RouterMetrics {
 public:
  RouterMetrics();
  ~RouterMetrics();

  void request_done(const char* route, int status);  // 0: its client left, or was cut off
  void attempt_done(const std::string& replica, AttemptEnd end);
  void retried();
  void hedged(bool won);             // sent to a second replica; won: which was the first to begin
  void first_bytes(double seconds);  // from a request's arrival to the first bytes of its answer
  void pick(double seconds);         // of choosing a replica

  // `placement`: null where there is none.
  std::string render(const Fleet& fleet, const PlacementController* placement, const HttpServerStats& http,
                     const UpstreamStats& upstream) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace loralei

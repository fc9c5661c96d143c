// SPDX-License-Identifier: Apache-2.0
// PickerServer: an endpoint picker: says to gateways, over gRPC, which replica of a fleet
// serves a request.
//
//   gateway ──► ext_proc: a stream for each request ──► PickExchange ──► Fleet::place()
//           ──► grpc.health.v1: is there anybody to send to?
//           ──► GET /metrics, /ready, /health on another port, where one is stated
//   ReplicaWatch ──► GET /v1/replica ──► Fleet;  etcd ──► MemberWatch ──► ReplicaWatch
//
// Thread: start and shutdown from the owner's; streams run on gRPC's threads.
// Ownership: owns servers, Upstream, fleet and watches; borrows clock and log.
// Invariants: endpoints are numeric addresses: who is known by a name is refused, since a
// gateway takes nothing else. A stream holds one message each way and its request's body;
// streams and bodies have a limit each, beyond which requests are told to come again.
// Failure: start() when an address cannot be bound, or a replica is a name.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "epp/exchange.h"
#include "http/server.h"
#include "http/upstream.h"
#include "router/fleet.h"
#include "router/placement.h"
#include "router/replica_watch.h"
#include "router/router_metrics.h"
#include "store/membership.h"

namespace loralei {

// Of the process: gRPC writes nothing to standard error; what matters is told here.
void silence_grpc();

inline constexpr int kPickerPort = 9002;  // that of llm-d's picker
inline constexpr int64_t kHeldBodies = 32;

struct PickerServerOptions {
  std::string host = "127.0.0.1";
  int port = kPickerPort;  // 0: any free one
  int metrics_port = -1;   // 0: any free one; below: none
  FleetOptions fleet;
  WatchOptions watch;
  std::vector<UpstreamAddress> replicas;      // that stay
  MembershipOptions members;                  // with endpoints of etcd: who else there is
  std::optional<PlacementOptions> placement;  // with fleet.homes
  size_t max_body_bytes = 8 * 1024 * 1024;
  int64_t max_bodies_bytes = 0;  // together; 0: kHeldBodies of the largest
  int fallbacks = 0;             // endpoints that are named behind the first
  int max_streams = 16'384;      // requests at once, from their heads to the ends of their answers
};

class PickerServer {
 public:
  static Result<std::unique_ptr<PickerServer>> start(const PickerServerOptions& options, const Clock& clock,
                                                     LogSink& log);
  ~PickerServer();  // shutdown(0)

  int port() const;
  int metrics_port() const;  // 0: there is none
  // Until every replica was looked at once, at most so long.
  void wait_for_replicas(int64_t timeout_ms);
  std::vector<ReplicaState> replicas() const;
  int64_t streams() const;  // at once, now
  // Nothing new is taken; what runs has so long. True when no stream was cut off.
  bool shutdown(int64_t timeout_ms);

 private:
  struct Core;
  explicit PickerServer(std::unique_ptr<Core> core);
  const std::unique_ptr<Core> core_;
};

}  // namespace loralei

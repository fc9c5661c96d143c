// SPDX-License-Identifier: Apache-2.0
// RouterServer: the router as its clients see it: the OpenAI and Anthropic APIs in front
// of a fleet of replicas, and pages about the fleet.
//
//   POST of the APIs         ──► relay.h ──► a replica
//   load, unload, pin        ──► fan_out.h ──► every replica
//   POST /v1/adapters        ──► upload_relay.h ──► a replica, then every other one
//   GET /v1/models           all that the fleet has
//   GET /v1/replicas, /ready, /metrics, ...   what is known of it
//
// Thread: start and shutdown from the owner's; handle() is called by http/.
// Ownership: owns listener, Upstream, fleet and watches; borrows clock and log.
// Invariants: keys of /v1 are checked by the replicas: a client's own travels with its
// request, and no answer of a replica is made up. What changes the fleet or tells of it
// asks for the admin key here, or, without one, for a client on this machine alone: to a
// replica on the same machine every request of the router is a local one.
// Failure: start() when the address cannot be bound.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "dashboard/event_feed.h"
#include "http/server.h"
#include "http/upstream.h"
#include "router/fleet.h"
#include "router/placement.h"
#include "router/relay.h"
#include "router/replica_watch.h"
#include "router/router_events.h"
#include "router/router_metrics.h"
#include "router/upload_relay.h"
#include "serve/access.h"
#include "store/membership.h"

namespace loralei {

struct RouterServerOptions {
  HttpServerOptions http;
  UpstreamOptions upstream;
  FleetOptions fleet;
  std::optional<PlacementOptions> placement;  // with fleet.homes
  WatchOptions watch;
  std::vector<UpstreamAddress> replicas;  // that stay
  MembershipOptions members;              // with endpoints of etcd: who else there is
  std::string admin_key;
  std::vector<std::string> allowed_hosts;
  int retries = 2;
  int64_t hedge_after_ms = 0;                   // of streams that have not begun; 0: no request is on two replicas
  int64_t max_upload_bytes = int64_t{4} << 30;  // of an adapter; what replicas take counts, too
  std::string version;
};

class RouterServer final : public HttpHandler {
 public:
  static Result<std::unique_ptr<RouterServer>> start(const RouterServerOptions& options, const Clock& clock,
                                                     LogSink& log);
  ~RouterServer() override;  // shutdown(0)

  int port() const { return http_->port(); }
  // Until every replica was looked at once, at most so long.
  void wait_for_replicas(int64_t timeout_ms);
  std::vector<ReplicaState> replicas() const { return fleet_.states(); }
  void serve() { http_->serve(*this); }
  // HttpServer::use_tls().
  void use_tls(std::shared_ptr<const ServerTls> tls) { http_->use_tls(std::move(tls)); }
  void begin_drain() {
    draining_ = true;
    feed_.drain();
  }
  // True when no request was cut off.
  bool shutdown(int64_t timeout_ms);

  std::shared_ptr<BodySink> body_sink(const HttpHead& head) override;
  bool wants_body(const HttpHead& head) override;
  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override;

 private:
  struct Route;
  RouterServer(const RouterServerOptions& options, const Clock& clock, LogSink& log);
  Status find_members();
  Status begin_placement();
  static const Route* find_route(const HttpHead& head);
  std::optional<ApiError> refused(const Route& route, const HttpHead& head) const;
  void show_page(const Route& route, const HttpRequest& request, const std::string& id, ResponseWriter& writer);
  void follow_events(const Route& route, const HttpRequest& request, const std::string& id,
                     std::shared_ptr<ResponseWriter> writer);
  void answer_itself(const Route& route, const std::string& id, ResponseWriter& writer);
  void send_on(const Route& route, HttpRequest request, std::string id, std::shared_ptr<ResponseWriter> writer);
  void respond(ResponseWriter& writer, const Route* route, int status, const char* type, std::string body,
               const std::string& id);
  void refuse(ResponseWriter& writer, const Route* route, const ApiError& error, const std::string& id);
  std::string index_text() const;
  std::string models_body() const;
  std::string replicas_body() const;
  std::string id_for(const HttpHead& request);

  const RouterServerOptions options_;
  const Clock& clock_;
  LogSink& log_;
  const AccessPolicy access_;
  const int64_t started_s_;
  RouterMetrics metrics_;
  Fleet fleet_;
  std::atomic<bool> draining_{false};
  RouterEvents events_;
  EventFeed feed_;  // calls events_
  std::mutex mutex_;
  Prng ids_;           // guarded by mutex_
  bool down_ = false;  // guarded by mutex_
  RelayBoard relays_;
  std::unique_ptr<Hedges> hedges_;  // null: none
  UploadTurns uploads_;
  std::unique_ptr<Upstream> upstream_;
  std::unique_ptr<ReplicaWatch> watch_;   // asks through upstream_
  std::unique_ptr<MemberWatch> members_;  // tells watch_; null: all are named
  std::unique_ptr<FleetLeader> leader_;   // null: without etcd
  std::unique_ptr<PlacementController> placement_;
  std::unique_ptr<HttpServer> http_;  // last: its threads call everything above
};

}  // namespace loralei

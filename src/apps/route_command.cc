// SPDX-License-Identifier: Apache-2.0
// loralei route: one address in front of a fleet of replicas.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <utility>

#include "apps/console_log.h"
#include "apps/key_flags.h"
#include "apps/options.h"
#include "apps/replica_url.h"
#include "apps/routing_flags.h"
#include "apps/stop_signals.h"
#include "apps/tls_flags.h"
#include "apps/version.h"
#include "router/router_server.h"
#include "sys/process.h"
#include "sys/service_manager.h"

namespace loralei {
namespace {

constexpr int64_t kFirstLookMs = 3000;  // that the start waits for replicas
constexpr int64_t kEndMs = 800;         // for threads to end in, beyond --shutdown-timeout
constexpr int kConnections = 4096;
constexpr int kOtherFiles = 64;  // descriptors beside connections

struct RouteFlags {
  RouterServerOptions router;
  RoutingFlags routing;
  TlsFlags tls;
  LogFlags log;
  std::string placement = "on", max_body, max_upload;
  int shutdown_timeout_s = 30, request_timeout_s = 3600, stall_timeout_s = 120;
};

Status finish_options(RouteFlags& flags) {
  RouterServerOptions& router = flags.router;
  TRY_ASSIGN(Routing routing, finish_routing_options(flags.routing));
  router.fleet = std::move(routing.fleet);
  router.replicas = std::move(routing.replicas);
  router.members = std::move(routing.members);
  router.watch.api_key = flags.routing.api_key;
  router.fleet.homes = flags.placement != "off";
  if (router.fleet.homes) {
    router.placement.emplace();
    router.placement->asks = flags.placement == "on";
    router.placement->admin_key = router.admin_key;
  }
  auto max_body_bytes = static_cast<int64_t>(router.http.limits.max_body_bytes);
  TRY(parse_size("--max-body", flags.max_body, max_body_bytes));
  router.http.limits.max_body_bytes = static_cast<size_t>(max_body_bytes);
  TRY(parse_size("--max-upload", flags.max_upload, router.max_upload_bytes));
  router.upstream.head_timeout_ms = int64_t{flags.request_timeout_s} * 1000;
  router.upstream.body_timeout_ms = int64_t{flags.stall_timeout_s} * 1000;
  router.version = version_string();
  return {};
}

// A client needs a descriptor, and its request one to a replica.
void limit_connections(HttpServerOptions& http, LogSink& log) {
  const int64_t files = raise_descriptor_limit(2 * int64_t{http.max_connections} + kOtherFiles);
  const int64_t most = std::max<int64_t>(1, (files - kOtherFiles) / 2);
  if (http.max_connections <= most) return;
  http.max_connections = static_cast<int>(most);
  log.log(LogLevel::kWarning, "This process may open " + std::to_string(files) + " files: at most " +
                                  std::to_string(most) + " clients at once; ulimit -n raises that.");
}

void announce(const RouterServer& server, const RouteFlags& flags, ConsoleLog& log) {
  const std::string url = server_url(flags.router.http.host, server.port(), flags.router.http.tls != nullptr);
  std::string text;
  int64_t up = 0;
  for (const ReplicaState& state : server.replicas()) {
    up += state.health == HealthState::kUp ? 1 : 0;
    text += "replica: " + state.name + " is " + health_state_name(state.health) +
            (state.why.empty() ? "" : ": " + state.why) + "\n";
  }
  log.announce("routing", {{"url", url}, {"replicas", server.replicas().size()}, {"up", up}},
               text + "Loralei " + flags.router.version + " routes to " + std::to_string(server.replicas().size()) +
                   " replicas (" + flags.routing.policy + ") at " + url + "\n");
}

Status route(RouteFlags& flags) {
  std::signal(SIGPIPE, SIG_IGN);
  ConsoleLog log(ConsoleLog::of_server(flags.log.level, flags.log.format));
  StopSignals signals(log);
  TRY(finish_options(flags));
  TRY_ASSIGN(flags.router.http.tls, read_tls(flags.tls, log));
  limit_connections(flags.router.http, log);
  const SteadyClock clock;
  TRY_ASSIGN(const std::unique_ptr<RouterServer> server, RouterServer::start(flags.router, clock, log));
  server->wait_for_replicas(kFirstLookMs);
  const int64_t timeout_ms = int64_t{flags.shutdown_timeout_s} * 1000;
  signals.serving(timeout_ms + kEndMs);
  server->serve();
  announce(*server, flags, log);
  ServiceManager service = ServiceManager::of_environment(log);
  service.ready("routes to " + std::to_string(server->replicas().size()) + " replicas on port " +
                std::to_string(server->port()));
  while (signals.wait() == StopSignals::Event::kRescan) {
    service.reloading();
    if (auto tls = read_tls_again(flags.tls, log)) server->use_tls(std::move(tls));
    service.reloaded();
  }
  service.stopping();
  log.log(LogLevel::kInfo, "draining: requests that run get " + std::to_string(flags.shutdown_timeout_s) +
                               " s; a second signal stops at once");
  const bool clean = server->shutdown(timeout_ms);
  log.log(LogLevel::kInfo, clean ? "stopped" : "stopped; requests that outlived --shutdown-timeout were cut off");
  return {};
}

void add_relay_options(CLI::App& command, RouteFlags& flags) {
  RouterServerOptions& router = flags.router;
  command
      .add_option("--placement", flags.placement,
                  "homes: each adapter has homes, where its requests rather go; on: and replicas are asked to have "
                  "it there before; off")
      ->check(CLI::IsMember({"on", "homes", "off"}))
      ->capture_default_str();
  command.add_option("--retries", router.retries, "other replicas that a request is sent to when one fails")
      ->check(CLI::Range(0, 16))
      ->capture_default_str();
  command
      .add_option("--hedge-after", router.hedge_after_ms,
                  "milliseconds without a token, after which a stream is sent to a second replica, too; at most a "
                  "tenth of them; 0: never")
      ->check(CLI::Range(int64_t{0}, int64_t{3'600'000}))
      ->capture_default_str();
  command.add_option("--request-timeout", flags.request_timeout_s, "seconds in which a replica must begin its answer")
      ->check(CLI::Range(1, 7 * 86400))
      ->capture_default_str();
  command.add_option("--stall-timeout", flags.stall_timeout_s, "seconds that a stream may rest before it is cut off")
      ->check(CLI::Range(1, 7 * 86400))
      ->capture_default_str();
}

void add_network_options(CLI::App& command, RouteFlags& flags) {
  RouterServerOptions& router = flags.router;
  command.add_option("--host", router.http.host, "address to listen on")->capture_default_str();
  command.add_option("--port", router.http.port, "port; 0 = any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  add_tls_options(command, flags.tls, "Options");
  command
      .add_option("--admin-key", router.admin_key, "key for GET /v1/replicas, and that of the replicas' admin routes")
      ->check(refuse_key);
  command
      .add_option("--allowed-host", router.allowed_hosts,
                  "name that requests may ask for beside localhost on a loopback address, or *; may be given often")
      ->allow_extra_args(false);
  command.add_option("--max-connections", router.http.max_connections, "clients at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--max-body", flags.max_body, "largest request body (default 8MiB)");
  command.add_option("--max-upload", flags.max_upload, "largest upload of an adapter (default 4GiB)");
  command.add_option("--shutdown-timeout", flags.shutdown_timeout_s, "seconds that running requests get at the end")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
}

}  // namespace

void add_route_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("route", "One address in front of many servers of the same base model.");
  auto flags = std::make_shared<RouteFlags>();
  flags->router.http.port = 8000;
  flags->router.http.max_connections = kConnections;
  add_routing_options(*command, flags->routing);
  add_relay_options(*command, *flags);
  add_network_options(*command, *flags);
  add_log_options(*command, flags->log);
  command->callback([flags, &exit_code] {
    const Status status = route(*flags);
    if (status.ok()) return;
    print_error("route", status.error());
    exit_code = status.error().code == ErrorCode::kInvalidArgument ? 2 : 1;
  });
}

}  // namespace loralei

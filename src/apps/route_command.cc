// SPDX-License-Identifier: Apache-2.0
// loralei route: one address in front of a fleet of replicas.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>

#include "apps/console_log.h"
#include "apps/fleet_flags.h"
#include "apps/key_flags.h"
#include "apps/options.h"
#include "apps/replica_url.h"
#include "apps/simulation.h"
#include "apps/stop_signals.h"
#include "apps/version.h"
#include "router/router_server.h"
#include "sys/process.h"

namespace loralei {
namespace {

constexpr int64_t kFirstLookMs = 3000;  // that the start waits for replicas
constexpr int64_t kEndMs = 800;         // for threads to end in, beyond --shutdown-timeout
constexpr int kConnections = 4096;
constexpr int kOtherFiles = 64;  // descriptors beside connections

struct RouteFlags {
  RouterServerOptions router;
  std::vector<std::string> replicas;
  FleetFlags fleet;
  std::string policy = "rank-aware", placement = "on", profile = "a10-llama2-7b", log_level = "info",
              log_format = "text", max_body;
  double slo_first_ms = 0, slo_token_ms = 0;
  int shutdown_timeout_s = 30, request_timeout_s = 3600, stall_timeout_s = 120;
};

Status finish_options(RouteFlags& flags) {
  RouterServerOptions& router = flags.router;
  for (const std::string& text : flags.replicas) {
    TRY_ASSIGN(const UpstreamAddress address, parse_replica_url(text));
    for (const UpstreamAddress& known : router.replicas) {
      if (known == address) return invalid_argument("the replica " + address_text(address) + " is named twice");
    }
    router.replicas.push_back(address);
  }
  TRY_ASSIGN(router.members, membership_options(flags.fleet));
  const auto policy = std::find(kRoutePolicyNames.begin(), kRoutePolicyNames.end(), flags.policy);
  router.fleet.policy = static_cast<RoutePolicy>(policy - kRoutePolicyNames.begin());
  TRY_ASSIGN(router.fleet.profile, find_profile(flags.profile));
  router.fleet.homes = flags.placement != "off";
  if (router.fleet.homes) {
    router.placement.emplace();
    router.placement->asks = flags.placement == "on";
    router.placement->admin_key = router.admin_key;
  }
  if (flags.slo_first_ms > 0) router.fleet.objectives.first_token_s = flags.slo_first_ms * 1e-3;
  if (flags.slo_token_ms > 0) router.fleet.objectives.token_s = flags.slo_token_ms * 1e-3;
  auto max_body_bytes = static_cast<int64_t>(router.http.limits.max_body_bytes);
  TRY(parse_size("--max-body", flags.max_body, max_body_bytes));
  router.http.limits.max_body_bytes = static_cast<size_t>(max_body_bytes);
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
  const std::string url = server_url(flags.router.http.host, server.port());
  std::string text;
  int64_t up = 0;
  for (const ReplicaState& state : server.replicas()) {
    up += state.health == HealthState::kUp ? 1 : 0;
    text += "replica: " + state.name + " is " + health_state_name(state.health) +
            (state.why.empty() ? "" : ": " + state.why) + "\n";
  }
  log.announce("routing", {{"url", url}, {"replicas", server.replicas().size()}, {"up", up}},
               text + "Loralei " + flags.router.version + " routes to " + std::to_string(server.replicas().size()) +
                   " replicas (" + flags.policy + ") at " + url + "\n");
}

Status route(RouteFlags& flags) {
  std::signal(SIGPIPE, SIG_IGN);
  ConsoleLog log(ConsoleLog::of_server(flags.log_level, flags.log_format));
  StopSignals signals(log);
  TRY(finish_options(flags));
  limit_connections(flags.router.http, log);
  const SteadyClock clock;
  TRY_ASSIGN(const std::unique_ptr<RouterServer> server, RouterServer::start(flags.router, clock, log));
  server->wait_for_replicas(kFirstLookMs);
  const int64_t timeout_ms = int64_t{flags.shutdown_timeout_s} * 1000;
  signals.serving(timeout_ms + kEndMs);
  server->serve();
  announce(*server, flags, log);
  while (signals.wait() == StopSignals::Event::kRescan) {
  }
  log.log(LogLevel::kInfo, "draining: requests that run get " + std::to_string(flags.shutdown_timeout_s) +
                               " s; a second signal stops at once");
  const bool clean = server->shutdown(timeout_ms);
  log.log(LogLevel::kInfo, clean ? "stopped" : "stopped; requests that outlived --shutdown-timeout were cut off");
  return {};
}

void add_routing_options(CLI::App& command, RouteFlags& flags) {
  RouterServerOptions& router = flags.router;
  command.add_option("--replica", flags.replicas, "http://HOST:PORT of a replica; may be given often")
      ->allow_extra_args(false);
  command.add_option("--etcd", flags.fleet.etcd,
                     "HOST:PORT[,HOST:PORT...] of etcd, where replicas are found (serve --etcd)");
  command.add_option("--fleet", flags.fleet.fleet, "name of the fleet in etcd")
      ->check(refuse_fleet)
      ->capture_default_str();
  command.add_option("--policy", flags.policy, "which replica serves a request")
      ->check(CLI::IsMember(std::vector<std::string>(kRoutePolicyNames.begin(), kRoutePolicyNames.end())))
      ->capture_default_str();
  command
      .add_option("--placement", flags.placement,
                  "homes: each adapter has homes, where its requests rather go; on: and replicas are asked to have "
                  "it there before; off")
      ->check(CLI::IsMember({"on", "homes", "off"}))
      ->capture_default_str();
  command.add_option("--profile", flags.profile, "what steps cost on replicas that do not say so (serve --cost-file)")
      ->capture_default_str();
  command.add_option("--slo-ttft", flags.slo_first_ms, "milliseconds to the first token, wanted of every request")
      ->check(CLI::Range(0.0, 3.6e6));
  command.add_option("--slo-tpot", flags.slo_token_ms, "milliseconds between tokens, likewise")
      ->check(CLI::Range(0.0, 3.6e6));
  command.add_flag("--shed", router.fleet.shed, "refuse (429) what no replica can serve within its objectives");
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
  command.add_option("--replica-api-key", router.watch.api_key, "key with which replicas are asked how they are")
      ->check(refuse_key);
}

void add_network_options(CLI::App& command, RouteFlags& flags) {
  RouterServerOptions& router = flags.router;
  command.add_option("--host", router.http.host, "address to listen on")->capture_default_str();
  command.add_option("--port", router.http.port, "port; 0 = any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
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
  command.add_option("--shutdown-timeout", flags.shutdown_timeout_s, "seconds that running requests get at the end")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  command.add_option("--log-level", flags.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  command.add_option("--log-format", flags.log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

}  // namespace

void add_route_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("route", "One address in front of many servers of the same base model.");
  auto flags = std::make_shared<RouteFlags>();
  flags->router.http.port = 8000;
  flags->router.http.max_connections = kConnections;
  add_routing_options(*command, *flags);
  add_network_options(*command, *flags);
  command->callback([flags, &exit_code] {
    const Status status = route(*flags);
    if (status.ok()) return;
    print_error("route", status.error());
    exit_code = status.error().code == ErrorCode::kInvalidArgument ? 2 : 1;
  });
}

}  // namespace loralei

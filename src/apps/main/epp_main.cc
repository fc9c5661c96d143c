// SPDX-License-Identifier: Apache-2.0
// loralei-epp: says to gateways which replica serves a request. A program of its own, for
// it needs gRPC.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "apps/console_log.h"
#include "apps/options.h"
#include "apps/replica_url.h"
#include "apps/routing_flags.h"
#include "apps/stop_signals.h"
#include "apps/version.h"
#include "epp/picker_server.h"

namespace loralei {
namespace {

constexpr int64_t kFirstLookMs = 3000;  // that the start waits for replicas
constexpr int64_t kEndMs = 800;         // for threads to end in, beyond --shutdown-timeout
constexpr int kUsage = 2;               // the exit status of what was typed wrong

struct PickerFlags {
  PickerServerOptions picker;
  RoutingFlags routing;
  LogFlags log;
  std::string placement = "homes", max_body, max_bodies;
  int shutdown_timeout_s = 30;
};

Status finish_options(PickerFlags& flags) {
  PickerServerOptions& picker = flags.picker;
  TRY_ASSIGN(Routing routing, finish_routing_options(flags.routing));
  picker.fleet = std::move(routing.fleet);
  picker.replicas = std::move(routing.replicas);
  picker.members = std::move(routing.members);
  picker.watch.api_key = flags.routing.api_key;
  picker.fleet.homes = flags.placement != "off";
  if (picker.fleet.homes) picker.placement.emplace().asks = false;
  auto max_body_bytes = static_cast<int64_t>(picker.max_body_bytes);
  TRY(parse_size("--max-body", flags.max_body, max_body_bytes));
  picker.max_body_bytes = static_cast<size_t>(max_body_bytes);
  TRY(parse_size("--max-bodies", flags.max_bodies, picker.max_bodies_bytes));
  return {};
}

void announce(const PickerServer& server, const PickerFlags& flags, ConsoleLog& log) {
  const std::string at = address_text({flags.picker.host, server.port()});
  std::string text;
  int64_t up = 0;
  for (const ReplicaState& state : server.replicas()) {
    up += state.health == HealthState::kUp ? 1 : 0;
    text += "replica: " + state.name + " is " + health_state_name(state.health) +
            (state.why.empty() ? "" : ": " + state.why) + "\n";
  }
  if (server.metrics_port() > 0)
    text += "figures: " + server_url(flags.picker.host, server.metrics_port()) + "/metrics\n";
  log.announce(
      "picking",
      {{"grpc", at}, {"metrics_port", server.metrics_port()}, {"replicas", server.replicas().size()}, {"up", up}},
      text + "Loralei " + version_string() + " picks among " + std::to_string(server.replicas().size()) +
          " replicas (" + flags.routing.policy + ") for gateways at grpc://" + at + "\n");
}

Status pick(PickerFlags& flags) {
  std::signal(SIGPIPE, SIG_IGN);
  silence_grpc();
  ConsoleLog log(ConsoleLog::of_server(flags.log.level, flags.log.format));
  StopSignals signals(log);
  TRY(finish_options(flags));
  const SteadyClock clock;
  TRY_ASSIGN(const std::unique_ptr<PickerServer> server, PickerServer::start(flags.picker, clock, log));
  server->wait_for_replicas(kFirstLookMs);
  const int64_t timeout_ms = int64_t{flags.shutdown_timeout_s} * 1000;
  signals.serving(timeout_ms + kEndMs);
  announce(*server, flags, log);
  while (signals.wait() == StopSignals::Event::kRescan) {
  }
  log.log(LogLevel::kInfo, "draining: requests that run get " + std::to_string(flags.shutdown_timeout_s) +
                               " s; a second signal stops at once");
  const bool clean = server->shutdown(timeout_ms);
  log.log(LogLevel::kInfo, clean ? "stopped" : "stopped; requests that outlived --shutdown-timeout were cut off");
  return {};
}

void add_options(CLI::App& app, PickerFlags& flags) {
  PickerServerOptions& picker = flags.picker;
  add_routing_options(app, flags.routing);
  app.add_option("--placement", flags.placement, "homes: each adapter has homes, where its requests rather go; off")
      ->check(CLI::IsMember({"homes", "off"}))
      ->capture_default_str();
  app.add_option("--host", picker.host, "address to listen on")->capture_default_str();
  app.add_option("--port", picker.port, "port of gRPC (ext_proc, health); 0 = any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--metrics-port", picker.metrics_port,
                 "port of GET /metrics, /ready and /health; 0 = any free one (default: none)")
      ->check(CLI::Range(0, 65535));
  app.add_option("--fallbacks", picker.fallbacks, "endpoints named behind the first, for gateways that try again")
      ->check(CLI::Range(0, 8))
      ->capture_default_str();
  app.add_option("--max-streams", picker.max_streams, "requests at once, until their answers end")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-body", flags.max_body, "largest request body (default 8MiB)");
  app.add_option("--max-bodies", flags.max_bodies,
                 "bodies that are held at once, in bytes (default 32 of the largest)");
  app.add_option("--shutdown-timeout", flags.shutdown_timeout_s, "seconds that running requests get at the end")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  add_log_options(app, flags.log);
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) {
  using namespace loralei;
  CLI::App app("Loralei's endpoint picker for gateways of the Kubernetes Gateway API Inference Extension.",
               "loralei-epp");
  app.set_version_flag("--version",
                       std::string(version_string()) + " (" + commit_string() + ", " + build_string() + ")");
  app.get_formatter()->column_width(46);  // most options on one line
  PickerFlags flags;
  try {
    add_options(app, flags);
    add_environment(app);
    app.parse(argc, argv);
    const Status status = pick(flags);
    if (status.ok()) return 0;
    std::fprintf(stderr, "loralei-epp: %s\n", status.error().message.c_str());
    return status.error().code == ErrorCode::kInvalidArgument ? kUsage : 1;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loralei-epp: %s\n", error.what());
    return 1;
  }
}

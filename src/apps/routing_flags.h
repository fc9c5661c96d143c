// SPDX-License-Identifier: Apache-2.0
// The options of everything that chooses replicas (loralei route, loralei-epp): who they
// are, and how one is chosen.
// Thread: one, at start. Failure: a sentence that names the flag.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "apps/fleet_flags.h"
#include "base/result.h"
#include "http/upstream.h"
#include "router/fleet.h"
#include "store/membership.h"

namespace loralei {

struct RoutingFlags {
  std::vector<std::string> replicas;
  FleetFlags fleet;
  std::string policy = "rank-aware", profile = "a10-llama2-7b";
  double slo_first_ms = 0, slo_token_ms = 0;
  bool shed = false;
  std::string api_key;  // with which replicas are asked how they are
};

// --replica, --etcd, --fleet, --policy, --profile, --slo-ttft, --slo-tpot, --shed and
// --replica-api-key.
void add_routing_options(CLI::App& command, RoutingFlags& flags);

struct Routing {
  FleetOptions fleet;
  std::vector<UpstreamAddress> replicas;
  MembershipOptions members;
};
Result<Routing> finish_routing_options(const RoutingFlags& flags);

// --log-level and --log-format, as ConsoleLog::of_server() takes them.
struct LogFlags {
  std::string level = "info", format = "text";
};
void add_log_options(CLI::App& command, LogFlags& flags);

}  // namespace loralei

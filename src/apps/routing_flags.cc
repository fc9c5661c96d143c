// SPDX-License-Identifier: Apache-2.0
#include "apps/routing_flags.h"

#include <algorithm>

#include "apps/key_flags.h"
#include "apps/replica_url.h"
#include "apps/simulation.h"

namespace loralei {

void add_routing_options(CLI::App& command, RoutingFlags& flags) {
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
  command.add_option("--profile", flags.profile, "what steps cost on replicas that do not say so (serve --cost-file)")
      ->capture_default_str();
  command.add_option("--slo-ttft", flags.slo_first_ms, "milliseconds to the first token, wanted of every request")
      ->check(CLI::Range(0.0, 3.6e6));
  command.add_option("--slo-tpot", flags.slo_token_ms, "milliseconds between tokens, likewise")
      ->check(CLI::Range(0.0, 3.6e6));
  command.add_flag("--shed", flags.shed, "refuse (429) what no replica can serve within its objectives");
  command.add_option("--replica-api-key", flags.api_key, "key with which replicas are asked how they are")
      ->check(refuse_key);
}

Result<Routing> finish_routing_options(const RoutingFlags& flags) {
  Routing routing;
  for (const std::string& text : flags.replicas) {
    TRY_ASSIGN(const UpstreamAddress address, parse_replica_url(text));
    for (const UpstreamAddress& known : routing.replicas) {
      if (known == address) return invalid_argument("the replica " + address_text(address) + " is named twice");
    }
    routing.replicas.push_back(address);
  }
  TRY_ASSIGN(routing.members, membership_options(flags.fleet));
  const auto policy = std::find(kRoutePolicyNames.begin(), kRoutePolicyNames.end(), flags.policy);
  routing.fleet.policy = static_cast<RoutePolicy>(policy - kRoutePolicyNames.begin());
  routing.fleet.shed = flags.shed;
  TRY_ASSIGN(routing.fleet.profile, find_profile(flags.profile));
  if (flags.slo_first_ms > 0) routing.fleet.objectives.first_token_s = flags.slo_first_ms * 1e-3;
  if (flags.slo_token_ms > 0) routing.fleet.objectives.token_s = flags.slo_token_ms * 1e-3;
  return routing;
}

void add_log_options(CLI::App& command, LogFlags& flags) {
  command.add_option("--log-level", flags.level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  command.add_option("--log-format", flags.format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

}  // namespace loralei

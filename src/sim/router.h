// SPDX-License-Identifier: Apache-2.0
// Router: what stands in front of simulated replicas. It knows what a router of a fleet
// knows: what it sent where, what came back, and which adapters each replica says it has.
// How long an answer will be it expects from those that have ended.
//
// Thread: one. Ownership: borrows the profile. Failure: none.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cost/profile.h"
#include "engine/api.h"
#include "route/adapter_homes.h"
#include "route/policy.h"

namespace loralei::sim {

struct RouterOptions {
  RoutePolicy policy = RoutePolicy::kRankAware;
  RouteObjectives objectives;
  uint64_t seed = 1;
  std::optional<HomesOptions> placement;  // nothing: adapters go where requests take them
};

class Router {
 public:
  Router(const RouterOptions& options, const Profile& profile)
      : options_(options), profile_(profile), picker_(options.policy, options.seed) {
    if (options.placement) placement_.emplace(*options.placement);
  }

  // Before the first request, in order. Its batch, KV cache and adapters in memory have
  // so much room.
  void add_replica(int32_t requests_max, int64_t context_tokens_max, int64_t adapter_bytes = INT64_MAX) {
    replicas_.push_back(
        {.requests_max = requests_max, .context_tokens_max = context_tokens_max, .adapter_bytes = adapter_bytes});
  }
  // Which replica the request goes to; it has been sent there then.
  size_t route(RequestId id, RoutedRequest request, int64_t now_ns = 0);
  void take(size_t replica, const EngineOutput& output);
  // What replicas are to be asked to have in memory; with placement.
  std::vector<PlacementMove> place(int64_t now_ns);

  uint64_t missed() const { return missed_; }  // requests that nobody could serve within the objectives, as predicted

 private:
  struct Places {
    bool in_memory = false, on_device = false;
  };
  struct Known {
    int32_t requests_max = 0;
    int64_t context_tokens_max = 0, adapter_bytes = 0;
    ReplicaLoad load;
    std::unordered_map<AdapterSourceId, Places> adapters;
  };
  double adapter_s(const Known& replica, const RoutedRequest& request) const;
  double bringing_s(int32_t rank) const;  // an adapter from disk to where it computes
  const std::vector<PlacedReplica>& rooms();

  const RouterOptions options_;
  const Profile& profile_;
  RoutePicker picker_;
  std::optional<AdapterHomes> placement_;
  std::vector<Known> replicas_;
  std::vector<RouteCandidate> candidates_;
  std::vector<PlacedReplica> rooms_;
  std::unordered_map<RequestId, int32_t> tokens_;  // of answers so far
  int64_t answers_ = 0, answer_tokens_ = 0;        // that have ended
  uint64_t missed_ = 0;
};

}  // namespace loralei::sim

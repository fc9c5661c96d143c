// SPDX-License-Identifier: Apache-2.0
// Router: what stands in front of simulated replicas. It knows what a router of a fleet
// knows: what it sent where, what came back, which adapters each replica says it has, who
// is a member and who answers. How long an answer will be it expects from those that have
// ended.
//
// Thread: one. Ownership: borrows the profile. Failure: none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cost/profile.h"
#include "engine/api.h"
#include "route/adapter_homes.h"
#include "route/policy.h"
#include "route/replica_health.h"

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
  // Which replica the request goes to, but for those that were tried; it has been sent
  // there then. None: nobody can take it now.
  std::optional<size_t> route(RequestId id, RoutedRequest request, int64_t now_ns = 0,
                              std::span<const size_t> tried = {});
  void take(size_t replica, const EngineOutput& output);
  void take(size_t replica, const AdapterNews& news);
  void take(size_t replica, const TokenEvent& event);

  // Of a fleet whose replicas come and go. From now on this one is asked only while it is
  // a member and answers.
  void leave(size_t replica) { replicas_.at(replica).watched = true, replicas_.at(replica).member = false; }
  void join(size_t replica) { replicas_.at(replica).watched = replicas_.at(replica).member = true; }
  // What a look at it finds; anew: another process than before.
  void heard(size_t replica, int64_t now_ns, bool anew) { replicas_.at(replica).health.heard(true, now_ns, anew); }
  void failed(size_t replica, int64_t now_ns) { replicas_.at(replica).health.failed(now_ns); }
  // A request that was sent there comes to nothing.
  void broke_off(size_t replica, RequestId id);
  void forget_adapters(size_t replica) { replicas_.at(replica).adapters.clear(); }  // its process has ended
  bool usable(size_t replica, int64_t now_ns) const;
  // With placement: a request that another router sends, as replicas report it.
  void asked(RoutedRequest request, int64_t now_ns);
  std::vector<GivenHomes> given() const { return placement_->given(); }
  void take_given(std::span<const GivenHomes> given, int64_t now_ns) {
    placement_->take_given(given, static_cast<double>(now_ns) * 1e-9);
  }
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
    bool watched = false, member = true;
    ReplicaHealth health = ReplicaHealth();  // while it is watched
    int64_t usable_ns = 0;                   // when it was, as of the last plan
  };
  double adapter_s(const Known& replica, const RoutedRequest& request) const;
  int32_t expected_tokens() const;        // of an answer
  double bringing_s(int32_t rank) const;  // an adapter from disk to where it computes
  const std::vector<PlacedReplica>& rooms(int64_t now_ns);

  const RouterOptions options_;
  const Profile& profile_;
  RoutePicker picker_;
  std::optional<AdapterHomes> placement_;
  std::vector<Known> replicas_;
  std::vector<RouteCandidate> candidates_;
  std::vector<size_t> candidate_replicas_;
  std::vector<PlacedReplica> rooms_;
  std::unordered_map<RequestId, int32_t> tokens_;  // of answers so far
  int64_t answers_ = 0, answer_tokens_ = 0;        // that have ended
  uint64_t missed_ = 0;
};

}  // namespace loralei::sim

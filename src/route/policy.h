// SPDX-License-Identifier: Apache-2.0
// Which replica of a fleet serves a request (CaraServe §5).
//
//   kRankAware        that on which it costs all requests together the least time a token
//   kRankAwarePaper   Algorithm 1 as printed
//   kMostIdle         the fewest requests
//   kFirstFit         the first that has room
//   kRandom
//   kRoundRobin
//   kAdapterAffinity  one where the adapter is already, and of these the most idle
//   kPrefixAffinity   where the most of the prompt is cached, and of these the most idle
//
// With W the requests that wait on a replica, S all of them, i the new one, t the tokens
// of an answer, P and D the seconds of a step that computes prompts or decodes (its
// StepModel), Algorithm 1's cost is
//
//   |S| * ((P(W + i) - P(W)) / t + D(S + i) - D(S))
//
// and more where D(S + i) is beyond the objective. It takes prompts to be computed in
// steps of their own. Where they share the steps of those that decode, what a prompt
// costs is what it adds to such a step: with N(W) the step of the prompts that wait and a
// row of each that decodes (ReplicaLoad::next_step), kRankAware's cost is
//
//   |S| * ((N(W + i) - N(W)) / t + D(S + i) - D(S))
//     + (N(W) + N(W + i) + a + h) / t + D(S + i)
//
// what all others wait longer for a token, and what the request itself waits for one of
// its own: the step that is under way, the one with its prompt, a that its adapter takes
// to come, and the steps behind; h is what its adapter takes from others where it has no
// home (adapter_homes.h). (As printed an idle replica costs 0, so that it is taken
// whatever its machine.) Cached tokens are not in N: affinity to adapters and prefixes is
// worth the seconds that it saves. Objectives come first: a replica that misses one costs
// more than any that does not.
//
// Replicas without room are asked only where none has any. Among equals the one with the
// fewest tokens left to compute is taken, then the first.
// Thread: one. Failure: none; no candidate, no answer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "base/prng.h"
#include "cost/step_model.h"
#include "route/replica_load.h"

namespace loralei {

enum class RoutePolicy : uint8_t {
  kRankAware,
  kRankAwarePaper,
  kMostIdle,
  kFirstFit,
  kRandom,
  kRoundRobin,
  kAdapterAffinity,
  kPrefixAffinity
};
inline constexpr std::array<const char*, 8> kRoutePolicyNames = {"rank-aware",       "rank-aware-paper", "most-idle",
                                                                 "first-fit",        "random",           "round-robin",
                                                                 "adapter-affinity", "prefix-affinity"};

// What a request is to keep; infinite: whatever.
struct RouteObjectives {
  double first_token_s = std::numeric_limits<double>::infinity();
  double token_s = std::numeric_limits<double>::infinity();  // of a step in which it decodes
};

// A replica that could serve the request.
struct RouteCandidate {
  const ReplicaLoad* load = nullptr;
  const StepModel* step = nullptr;
  int32_t requests_max = 0;        // that decode together
  int64_t context_tokens_max = 0;  // of the KV cache
  double adapter_s = 0;            // until steps can use the request's adapter; 0: it is there
  double stray_s = 0;              // what it takes from others there, having no home
  int32_t cached_tokens = 0;       // of the request's prompt
};

struct RouteChoice {
  size_t index = 0;              // of the candidates
  bool meets_objectives = true;  // as predicted; known of every policy
};

class RoutePicker {
 public:
  explicit RoutePicker(RoutePolicy policy, uint64_t seed = 0) : policy_(policy), random_(seed) {}

  // `request.cached_tokens` is what the candidates say.
  std::optional<RouteChoice> pick(RoutedRequest request, const RouteObjectives& objectives,
                                  std::span<const RouteCandidate> candidates);

 private:
  const RoutePolicy policy_;
  Prng random_;
  size_t turn_ = 0;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "route/policy.h"

#include <algorithm>
#include <compare>

#include "base/check.h"

namespace loralei {
namespace {

// Beyond whatever a token may cost all requests of a replica together, in seconds.
constexpr double kMissed = 1e6;

double prefill_s(const StepModel& step, const LoadSum& load, const RoutedRequest* more = nullptr) {
  return load.requests() == 0 && more == nullptr ? 0 : step.predict_s(load.prefill_step(more));
}

double decode_s(const StepModel& step, const LoadSum& load, const RoutedRequest* more = nullptr) {
  return load.requests() == 0 && more == nullptr ? 0 : step.predict_s(load.decode_step(more));
}

// Of a request on a replica.
struct Outlook {
  double others_s = 0;       // a token of each of the others comes so much later, all together
  double first_token_s = 0;  // until its first token, from now on
  double token_s = 0;        // between its tokens
  double over = 0;           // by how much it misses its objectives, as a part of them

  bool meets() const { return over <= 0; }
};

double excess(double seconds, double objective_s) { return seconds > objective_s ? seconds / objective_s - 1 : 0; }

// Algorithm 1's: prompts are computed in steps of their own.
Outlook outlook_as_printed(const RoutedRequest& request, const RouteCandidate& candidate) {
  const StepModel& step = *candidate.step;
  const LoadSum &waiting = candidate.load->waiting(), &all = candidate.load->all();
  const double prefill = prefill_s(step, waiting, &request), decode = decode_s(step, all);
  Outlook outlook{.first_token_s = prefill + candidate.adapter_s, .token_s = decode_s(step, all, &request)};
  // Of a replica where nobody decodes a step of one row is not what it took before.
  const double slower = all.requests() == 0 ? 0 : outlook.token_s - decode;
  outlook.others_s = all.requests() * ((prefill - prefill_s(step, waiting)) / request.answer_tokens + slower);
  return outlook;
}

// Prompts share their steps with those that decode.
Outlook outlook_of(RoutePolicy policy, const RoutedRequest& request, const RouteObjectives& objectives,
                   const RouteCandidate& candidate) {
  const StepModel& step = *candidate.step;
  const ReplicaLoad& load = *candidate.load;
  Outlook outlook;
  if (policy == RoutePolicy::kRankAwarePaper) {
    outlook = outlook_as_printed(request, candidate);
  } else {
    const int32_t others = load.all().requests();
    const double first = step.predict_s(load.next_step(&request));
    const double before = others == 0 ? 0 : step.predict_s(load.next_step());
    const double decode = decode_s(step, load.all());
    outlook = {.first_token_s = before + first + candidate.adapter_s, .token_s = decode_s(step, load.all(), &request)};
    if (others > 0) outlook.others_s = others * ((first - before) / request.answer_tokens + outlook.token_s - decode);
  }
  outlook.over = excess(outlook.first_token_s, objectives.first_token_s) + excess(outlook.token_s, objectives.token_s);
  return outlook;
}

double cost_of(RoutePolicy policy, const RoutedRequest& request, const RouteCandidate& candidate,
               const Outlook& outlook) {
  const double idleness = candidate.load->all().requests();
  switch (policy) {
    case RoutePolicy::kRankAware: {
      const double own_s = (outlook.first_token_s + candidate.stray_s) / request.answer_tokens + outlook.token_s;
      return outlook.others_s + own_s + (outlook.meets() ? 0 : kMissed * (1 + outlook.over));
    }
    case RoutePolicy::kRankAwarePaper:
      return outlook.others_s + (outlook.meets() ? 0 : kMissed * idleness);
    case RoutePolicy::kMostIdle:
      return idleness;
    case RoutePolicy::kAdapterAffinity:
      return idleness + candidate.adapter_s * kMissed;
    case RoutePolicy::kPrefixAffinity:
      return idleness - candidate.cached_tokens * kMissed;
    case RoutePolicy::kFirstFit:
    case RoutePolicy::kRandom:
    case RoutePolicy::kRoundRobin:
      break;
  }
  return 0;
}

bool has_room(const RoutedRequest& request, const RouteCandidate& candidate) {
  const LoadSum& all = candidate.load->all();
  return all.requests() < candidate.requests_max &&
         all.context_tokens() + request.prompt_tokens + request.answer_tokens <= candidate.context_tokens_max;
}

// The first of what is compared is what counts most.
struct Rank {
  bool full = true;
  double cost = 0;
  int64_t tokens_left = 0;
  friend auto operator<=>(const Rank&, const Rank&) = default;
};

}  // namespace

std::optional<RouteChoice> RoutePicker::pick(RoutedRequest request, const RouteObjectives& objectives,
                                             std::span<const RouteCandidate> candidates) {
  if (candidates.empty()) return std::nullopt;
  request.answer_tokens = std::max(1, request.answer_tokens);
  const auto outlook = [&](const RouteCandidate& candidate) {
    RoutedRequest here = request;
    here.cached_tokens = std::min(candidate.cached_tokens, request.prompt_tokens);
    return outlook_of(policy_, here, objectives, candidate);
  };
  const auto chosen = [&](size_t index) { return RouteChoice{index, outlook(candidates[index]).meets()}; };
  if (policy_ == RoutePolicy::kRandom) return chosen(random_.below(candidates.size()));
  if (policy_ == RoutePolicy::kRoundRobin) return chosen(turn_++ % candidates.size());

  RouteChoice best;
  Rank least;
  for (size_t index = 0; index < candidates.size(); ++index) {
    const RouteCandidate& candidate = candidates[index];
    CHECK(candidate.load != nullptr && candidate.step != nullptr);
    const Outlook seen = outlook(candidate);
    const bool full = !has_room(request, candidate);
    if (policy_ == RoutePolicy::kFirstFit && !full) return RouteChoice{index, seen.meets()};
    // Where nobody has room first-fit takes the most idle.
    const RoutePolicy by = policy_ == RoutePolicy::kFirstFit ? RoutePolicy::kMostIdle : policy_;
    const Rank rank{full, cost_of(by, request, candidate, seen), candidate.load->all().tokens_left()};
    if (index > 0 && !(rank < least)) continue;
    least = rank;
    best = {index, seen.meets()};
  }
  return best;
}

}  // namespace loralei

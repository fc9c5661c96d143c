// SPDX-License-Identifier: Apache-2.0
#include "workload/generate.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "workload/adapters.h"
#include "workload/agents.h"
#include "workload/arrivals.h"
#include "workload/csv.h"
#include "workload/documents.h"
#include "workload/draws.h"
#include "workload/lengths.h"
#include "workload/workload_rules.h"

namespace loralei {
namespace {

constexpr double kScaleMin = 1e-6, kScaleMax = 1e6;

Status check_scale(const char* what, double scale) {
  if (scale >= kScaleMin && scale <= kScaleMax) return {};
  return invalid_argument(std::string("the ") + what + " scale is " + number_text(scale) + "; it must be from " +
                          number_text(kScaleMin) + " to " + number_text(kScaleMax) + ".");
}

Status check_limit(const char* what, double limit, double most) {
  if (limit >= 0 && limit <= most) return {};
  return invalid_argument(std::string("the ") + what + " are " + number_text(limit) + "; they must be from 0 to " +
                          number_text(most) + ".");
}

Status check_options(const WorkloadOptions& options) {
  TRY(check_scale("rate", options.rate_scale));
  TRY(check_scale("length", options.length_scale));
  TRY(check_limit("seconds", options.seconds, static_cast<double>(kWorkloadSecondsMax)));
  TRY(check_limit("requests", static_cast<double>(options.count), static_cast<double>(kWorkloadLinesMax)));
  for (const int64_t limit : {options.prompt_max, options.output_max}) {
    if (limit < 1 || limit > kMaxModelLen)
      return invalid_argument("a limit of lengths is " + std::to_string(limit) + "; it must be from 1 to " +
                              std::to_string(kMaxModelLen) + ".");
  }
  return {};
}

Result<Workload> agents_workload(const WorkloadOptions& options, const std::vector<WorkloadArrival>& arrivals,
                                 const LengthOptions& lengths) {
  if (!options.lengths.empty() || options.adapters != "none")
    return invalid_argument("prefixes '" + options.prefixes +
                            "' state lengths and adapters themselves. Leave those of your own out.");
  return agent_requests(options.prefixes, arrivals, lengths, options.seconds, options.count);
}

Result<Workload> drawn_workload(const WorkloadOptions& options, const std::vector<WorkloadArrival>& arrivals,
                                const LengthOptions& length_options) {
  if (options.lengths.empty()) return invalid_argument("no lengths are stated. Write fixed:IN:OUT or draw:FILE.");
  TRY_ASSIGN(WorkloadLengths lengths, WorkloadLengths::open(length_options));
  TRY_ASSIGN(AdapterMix adapters, AdapterMix::open(options.adapters, options.seed));
  if (!(options.adapters_shift_s >= 0 && options.adapters_shift_s <= 1e9))
    return invalid_argument("--adapters-shift is a number of seconds, 0 or more.");
  adapters.shift_every(options.adapters_shift_s);
  if (adapters.by_client() && !options.arrivals.starts_with("servegen:"))
    return invalid_argument("adapters 'servegen' are clients of servegen arrivals, and the arrivals are '" +
                            options.arrivals + "'. Choose others, or servegen arrivals.");
  std::optional<SharedDocuments> documents;
  if (!options.prefixes.empty()) {
    TRY_ASSIGN(documents, SharedDocuments::open(options.prefixes, options.prompt_max));
  }
  Prng adapter_draws(stream_seed(options.seed, "adapters")), document_draws(stream_seed(options.seed, "documents"));
  Workload requests;
  requests.reserve(arrivals.size());
  for (const WorkloadArrival& arrival : arrivals) {
    const WorkloadLength length = lengths.next(arrival);
    AdapterMix::Named adapter = adapters.draw(arrival, adapter_draws);
    requests.push_back({.at_ns = arrival.at_ns,
                        .adapter = std::move(adapter.name),
                        .rank = adapter.rank,
                        .prompt_tokens = length.prompt,
                        .output_tokens = length.output});
    if (documents) documents->add(document_draws, requests.back());
  }
  return requests;
}

// Names come from files, too.
Status check_requests(const Workload& requests) {
  WorkloadRules rules;
  int64_t line = 0;
  for (const WorkloadRequest& request : requests) {
    if (const Status status = rules.check(request, ++line); !status.ok())
      return Error{status.error()}.with_context("request " + std::to_string(line));
  }
  return {};
}

}  // namespace

Result<Workload> make_workload(const WorkloadOptions& options) {
  TRY(check_options(options));
  const bool agents = options.prefixes.starts_with("agents:");
  if (!options.prefixes.empty() && !agents && !options.prefixes.starts_with("documents:"))
    return invalid_argument("prefixes '" + options.prefixes +
                            "': write documents:N:TOKENS:ALPHA or agents:THINK:FILE.");
  TRY_ASSIGN(const std::vector<WorkloadArrival> arrivals, make_arrivals({.spec = options.arrivals,
                                                                         .rate_scale = options.rate_scale,
                                                                         .seconds = options.seconds,
                                                                         .count = options.count,
                                                                         .seed = options.seed}));
  const LengthOptions lengths{.spec = options.lengths,
                              .scale = options.length_scale,
                              .prompt_max = options.prompt_max,
                              .output_max = options.output_max,
                              .seed = options.seed};
  TRY_ASSIGN(Workload requests,
             agents ? agents_workload(options, arrivals, lengths) : drawn_workload(options, arrivals, lengths));
  if (options.seconds == 0 && static_cast<int64_t>(requests.size()) < options.count)
    return invalid_argument("the arrivals '" + options.arrivals + "' give " + std::to_string(requests.size()) +
                            " requests, fewer than the " + std::to_string(options.count) +
                            " asked for. Ask for at most so many, or for seconds.");
  if (requests.empty())
    return invalid_argument("there is no request in that time. Ask for more seconds or a higher rate.");
  TRY(check_requests(requests));
  return requests;
}

}  // namespace loralei

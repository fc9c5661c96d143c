// SPDX-License-Identifier: Apache-2.0
// What bench coldstart tells of each way to start: times of its requests, those over the
// times of `cached` in percent, and what became of the cold ones.
//
// Plain values and pure functions, any thread. A request's clock starts when it is due.
// The time per token is that of the whole request over the tokens of its answer.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "bench/report.h"
#include "sched/cold_start.h"
#include "workload/served.h"
#include "workload/workload.h"

namespace loralei {

// Of the distribution of times to the first token, in percent.
inline constexpr std::array<int, 10> kColdPoints = {10, 20, 30, 40, 50, 60, 70, 80, 90, 99};

struct ColdFigures {
  double first_mean_ms = 0, token_mean_ms = 0, request_mean_ms = 0;
  std::array<double, kColdPoints.size()> first_ms{};
};
// Every request has ended well.
ColdFigures cold_figures(std::span<const WorkloadRequest> workload, std::span<const ServedRequest> served);

// What one way took, by round.
struct ColdWay {
  ColdStart way = ColdStart::kCached;
  std::vector<ColdFigures> rounds = {};
  std::vector<ColdStarts> starts = {};
  std::vector<double> first_ms = {};  // of the last round's requests
  const char* name() const { return kColdStartNames[static_cast<size_t>(way)]; }
};

// What happened between two looks; helpers as they are at the second.
ColdStarts cold_starts_since(const ColdStarts& before, const ColdStarts& after);

// By how many percent a time is longer than `cached` took.
double percent_over(double time, double cached);

// The rows of all ways, with the targets of those with helpers, and the plot of their
// times to the first token. ways[0] is `cached`; each has as many rounds.
void add_cold_rows(const std::string& prefix, std::span<const ColdWay> ways, BenchReport& report);

}  // namespace loralei

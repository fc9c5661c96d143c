// SPDX-License-Identifier: Apache-2.0
// bench lengths: how well --predict-length history and learned tell the lengths of
// answers that are known, in the order of a file: each is predicted before it is learned.
//
// A class of k is the part of the true lengths between two of their k-quantiles; the
// class of a prediction is that of its length. Rows named `late` are of the second half
// alone.
//
// One thread; a pure function of its arguments, but for the row of its processor time.
// Failure: fewer answers than kAnswersLeast.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "bench/report.h"
#include "sched/length_predictor.h"

namespace loralei {

struct AnsweredPrompt {
  std::string adapter;  // empty: the base
  std::vector<TokenId> prompt;
  int32_t answer_tokens = 0;
};
inline constexpr size_t kAnswersLeast = 20;

// As classed by k - 1 ascending edges: those not above it.
int length_class(double length, std::span<const int32_t> edges);
std::vector<int32_t> class_edges(std::vector<int32_t> lengths, int classes);

Status bench_lengths(std::span<const AnsweredPrompt> answers, BenchReport& report);

}  // namespace loralei

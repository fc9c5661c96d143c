// SPDX-License-Identifier: Apache-2.0
// Fitting a StepModel to measured steps, and how well it tells others.
//
// Least squares of relative errors without negative parts, so that more of anything
// never makes a step shorter. Steps that something held up (another process, a page that
// was read) count less the further they are off (Huber's weights). Points of linear()
// stand close, four for every doubling of rows, as far as there are steps between them:
// kernels take rows in groups.
//
// Pure functions. Failure: fit_steps() where there are fewer steps than kFitStepsMin.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "cost/step_features.h"
#include "cost/step_model.h"

namespace loralei {

inline constexpr size_t kFitStepsMin = 16;

struct StepSample {
  StepFeatures features;
  double seconds = 0;  // above 0
};

// Of a model, on steps that it was not fitted to.
struct FitQuality {
  int64_t steps = 0;
  double r2 = 0;                         // share of the variance of seconds that the model explains
  double mean_error = 0, p90_error = 0;  // of |predicted - measured| / measured
  double mean_bias = 0;                  // of (predicted - measured) / measured
  friend bool operator==(const FitQuality&, const FitQuality&) = default;
};

Result<StepModel> fit_steps(std::span<const StepSample> samples);
FitQuality judge_fit(const StepModel& model, std::span<const StepSample> samples);

// How far steps that are alike lie from what is usual of them, on average, as a share of
// it: no function of the features is closer to these steps. Alike: the same rows, logits,
// adapters and ranks, and as many positions attended to, within 3 %. None: fewer than
// kFitStepsMin steps have one alike.
std::optional<double> noise_of(std::span<const StepSample> samples);

// The x >= 0 with the least |A x - b|^2, of gram = A^T A [n, n] and rhs = A^T b [n]
// (Lawson and Hanson 1974, chapter 23).
std::vector<double> solve_nonnegative(std::span<const double> gram, std::span<const double> rhs);

}  // namespace loralei

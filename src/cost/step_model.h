// SPDX-License-Identifier: Apache-2.0
// StepModel: the time of a step as a function of what it is.
//
//   seconds = linear(rows) + sum over terms of (seconds of one) * (how many)
//
// linear() is what the model's products take: straight lines between points, constant
// before the first, and after the last as steep as from half of its rows to there: not as
// between two neighbours, where a little noise is a slope. It need not be smooth: kernels
// change with the number of rows. The terms are what else grows with a step:
// attention, logits, adapters (CostTerm).
//
// A plain value. Invariants (check_step_model): at least one point, rows ascending;
// nothing is negative. What fit_steps() makes never falls; a device may, where more rows
// fill its tiles better. Cost of a prediction: the logarithm of the points.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cost/step_features.h"

namespace loralei {

enum class CostTerm : uint8_t {
  kPrefillAttended,  // a position that a row of a prompt attends to
  kDecodeAttended,   // a position that a row which decodes attends to
  kLogitsRow,
  kAnyAdapter,   // once where a step has adapters
  kAdapter,      // a distinct adapter
  kRankSum,      // a rank of a distinct adapter: its bytes are read once
  kRankMaxRow,   // a row with adapters, times the largest rank: kernels that pad to it
  kLoraRow,      // a pair of a row and an adapter
  kLoraRowRank,  // the same, times the adapter's rank
};
inline constexpr size_t kCostTerms = 9;
using TermValues = std::array<double, kCostTerms>;

const char* cost_term_name(CostTerm term);  // as in a profile's file: "prefill_attended"
TermValues terms_of(const StepFeatures& features);

struct LinearPoint {
  int32_t rows = 0;
  double seconds = 0;
  friend bool operator==(const LinearPoint&, const LinearPoint&) = default;
};

struct StepModel {
  std::vector<LinearPoint> linear;
  TermValues seconds{};  // of one of each term

  double linear_s(int32_t rows) const;
  double predict_s(const StepFeatures& features) const;
  // A prompt of so many tokens computed alone, in steps of at most `step_rows` rows, from
  // `cached` tokens on.
  double prefill_s(int32_t tokens, int32_t cached, int32_t step_rows) const;
  friend bool operator==(const StepModel&, const StepModel&) = default;
};

// Empty when the model is sound, else what is wrong.
std::string check_step_model(const StepModel& model);

}  // namespace loralei

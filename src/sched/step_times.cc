// SPDX-License-Identifier: Apache-2.0
#include "sched/step_times.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace loralei {
namespace {

constexpr double kNewest = 0.1;   // a step's weight in the average of its size
constexpr double kOutlier = 1.5;  // times the average: what counts of a step that was held up
constexpr double kNs = 1e-9;
constexpr int kTerms = 3;

// What the line's three terms must fulfil: the sums over all averages of x x^T and x y,
// where x and y are divided by the measured time, so that errors count by their share of
// it.
struct Normal {
  std::array<std::array<double, kTerms>, kTerms> xx{};
  std::array<double, kTerms> xy{};
};

// The terms whose bit is set in `used`, by elimination; the others are 0. False: they are
// not told apart.
bool solve(const Normal& normal, unsigned used, std::array<double, kTerms>& terms) {
  std::array<std::array<double, kTerms + 1>, kTerms> m{};
  std::array<int, kTerms> index{};
  int count = 0;
  for (int term = 0; term < kTerms; ++term)
    if (used >> term & 1) index[static_cast<size_t>(count++)] = term;
  const auto at = [](int i) { return static_cast<size_t>(i); };
  for (int row = 0; row < count; ++row) {
    for (int column = 0; column < count; ++column)
      m[at(row)][at(column)] = normal.xx[at(index[at(row)])][at(index[at(column)])];
    m[at(row)][at(count)] = normal.xy[at(index[at(row)])];
  }
  for (int pivot = 0; pivot < count; ++pivot) {
    const double most = normal.xx[at(index[at(pivot)])][at(index[at(pivot)])];
    if (m[at(pivot)][at(pivot)] <= 1e-9 * most) return false;  // what is left of it after those before
    for (int row = 0; row < count; ++row) {
      if (row == pivot) continue;
      const double factor = m[at(row)][at(pivot)] / m[at(pivot)][at(pivot)];
      for (int column = pivot; column <= count; ++column) m[at(row)][at(column)] -= factor * m[at(pivot)][at(column)];
    }
  }
  terms = {};
  for (int row = 0; row < count; ++row) terms[at(index[at(row)])] = m[at(row)][at(count)] / m[at(row)][at(row)];
  return true;
}

// The sum of squared relative errors, but for what is the same of all solutions.
double loss(const Normal& normal, const std::array<double, kTerms>& terms) {
  double sum = 0;
  for (size_t i = 0; i < kTerms; ++i) {
    sum -= 2 * terms[i] * normal.xy[i];
    for (size_t j = 0; j < kTerms; ++j) sum += terms[i] * normal.xx[i][j] * terms[j];
  }
  return sum;
}

}  // namespace

void StepTimes::learn(const StepLoad& load, int64_t ns) {
  CHECK(load.rows > 0 && load.attended >= 0);
  rows_learned_ = std::max(rows_learned_, load.rows);
  if (ns <= 0) return;  // a clock that stands still tells nothing else
  const auto bucket = static_cast<size_t>(std::bit_width(static_cast<uint32_t>(load.rows)) - 1);
  Average& average = averages_[std::min(bucket, averages_.size() - 1)];
  const double weight = average.known ? kNewest : 1.0;
  double seconds = static_cast<double>(ns) * kNs;
  if (average.known) seconds = std::min(seconds, kOutlier * average.seconds * std::max(1.0, load.rows / average.rows));
  average.known = true;
  average.rows += weight * (load.rows - average.rows);
  average.attended += weight * (static_cast<double>(load.attended) - average.attended);
  average.seconds += weight * (seconds - average.seconds);
  fit();
}

// Least squares without negative terms: the best of the solutions of all subsets that
// have none.
void StepTimes::fit() {
  Normal normal;
  for (const Average& average : averages_) {
    if (!average.known) continue;
    const std::array<double, kTerms> x = {1.0 / average.seconds, average.rows / average.seconds,
                                          average.attended / average.seconds};
    for (size_t i = 0; i < kTerms; ++i) {
      normal.xy[i] += x[i];
      for (size_t j = 0; j < kTerms; ++j) normal.xx[i][j] += x[i] * x[j];
    }
  }
  double least = std::numeric_limits<double>::infinity();
  // The plainest first: of what is told apart by nothing rows are the cause.
  for (const unsigned used : {0b010u, 0b011u, 0b110u, 0b111u, 0b001u, 0b101u, 0b100u}) {
    std::array<double, kTerms> terms{};
    if (!solve(normal, used, terms)) continue;
    if (std::any_of(terms.begin(), terms.end(), [](double term) { return !(term >= 0); })) continue;
    const double missed = loss(normal, terms);
    if (missed >= least - 1e-9) continue;
    least = missed;
    a_ = terms[0];
    b_ = terms[1];
    c_ = terms[2];
  }
}

double StepTimes::predicted_s(const StepLoad& load) const {
  return a_ + b_ * load.rows + c_ * static_cast<double>(load.attended);
}

double StepTimes::prompt_row_s() const {
  constexpr int32_t kRows = 256;
  return predicted_s({.rows = kRows, .attended = int64_t{kRows} * kRows}) / kRows;
}

// With r rows a row costs a/r + b; with all there are a/R + b.
int64_t StepTimes::bound_ns() const {
  if (bound_ns_ > 0) return bound_ns_;
  const double dearest = kDearer * (a_ / rows_max_ + b_);
  const double rows = dearest > b_ ? std::min<double>(a_ / (dearest - b_), rows_max_) : rows_max_;
  const double most_s = std::max(static_cast<double>(kStepTimeMostNs) * kNs, kFloorsMost * a_);
  return std::max(kStepTimeNs, static_cast<int64_t>(std::min(a_ + b_ * rows, most_s) / kNs));
}

double StepTimes::bound_s(double decode_s, double backlog_s) const {
  const double usual_s = static_cast<double>(bound_ns()) * kNs;
  if (bound_ns_ > 0) return usual_s;
  const double most_s = std::min(kBacklogMost * usual_s, decode_s / (1 - kBacklogShare));
  return std::max(usual_s, std::min(decode_s + backlog_s, most_s));
}

int32_t StepTimes::rows_within(double seconds, const StepLoad& decode, int32_t context, double prompt_share) const {
  const double row_s = b_ + c_ * context;
  const double decode_s = decode.rows > 0 ? predicted_s(decode) : a_;
  const double left_s =
      std::max(seconds - decode_s, decode.rows > 0 ? decode_s * prompt_share / (1 - prompt_share) : 0);
  const int32_t most = rows_learned_ == 0 ? kFirstRows : std::max(kFirstRows, kGrowth * rows_learned_);
  const double rows = row_s > 0 ? left_s / row_s : rows_max_;
  return std::clamp(static_cast<int32_t>(std::clamp<double>(rows, 0, most)), std::min(kPrefillRowsMin, rows_max_),
                    rows_max_);
}

PrefillRows StepTimes::prefill_rows(const StepLoad& decode, int32_t context, int64_t backlog, int64_t tpot_ns) const {
  if (tpot_ns < bound_ns()) {
    const int32_t rows = rows_within(static_cast<double>(tpot_ns) * kNs, decode, context, kTpotShare);
    return {.shared = rows, .alone = rows};
  }
  const double wanted_s =
      tpot_ns == INT64_MAX ? std::numeric_limits<double>::infinity() : static_cast<double>(tpot_ns) * kNs;
  const double alone_s = kAloneFactor * static_cast<double>(bound_ns()) * kNs;
  const double shared_s =
      std::min(wanted_s, bound_s(predicted_s(decode), (b_ + c_ * context) * static_cast<double>(backlog)));
  return {.shared = rows_within(shared_s, decode, context, kPromptShare),
          .alone = rows_within(std::max(alone_s, shared_s), decode, context, kPromptShare)};
}

}  // namespace loralei

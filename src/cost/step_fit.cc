// SPDX-License-Identifier: Apache-2.0
#include "cost/step_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include "base/check.h"

namespace loralei {
namespace {

constexpr int kRounds = 6;            // of weights
constexpr double kHuber = 1.5;        // times the median error
constexpr double kTolerance = 1e-10;  // of a gradient, beside what the column is

// Solves the symmetric system of the columns in `used`; false where they are not told
// apart.
bool solve_used(std::span<const double> gram, std::span<const double> rhs, const std::vector<size_t>& used,
                std::vector<double>& x) {
  const size_t n = rhs.size(), count = used.size();
  std::vector<double> factor(count * count);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = gram[used[i] * n + used[j]];
      for (size_t k = 0; k < j; ++k) sum -= factor[i * count + k] * factor[j * count + k];
      if (i != j) {
        factor[i * count + j] = sum / factor[j * count + j];
      } else if (sum <= 1e-12 * gram[used[i] * n + used[i]]) {
        return false;
      } else {
        factor[i * count + i] = std::sqrt(sum);
      }
    }
  }
  std::vector<double> y(count);
  for (size_t i = 0; i < count; ++i) {
    y[i] = rhs[used[i]];
    for (size_t k = 0; k < i; ++k) y[i] -= factor[i * count + k] * y[k];
    y[i] /= factor[i * count + i];
  }
  for (size_t i = count; i-- > 0;) {
    for (size_t k = i + 1; k < count; ++k) y[i] -= factor[k * count + i] * y[k];
    y[i] /= factor[i * count + i];
  }
  std::fill(x.begin(), x.end(), 0.0);
  for (size_t i = 0; i < count; ++i) x[used[i]] = y[i];
  return true;
}

// Rows at which linear() has its points: the smallest and the largest step, and between
// them four for every doubling, with steps above the point before.
std::vector<int32_t> choose_points(std::span<const StepSample> samples) {
  std::vector<int32_t> rows;
  for (const StepSample& sample : samples) rows.push_back(sample.features.rows());
  std::sort(rows.begin(), rows.end());
  std::vector<int32_t> points = {rows.front()};
  for (int64_t power = 1; power < rows.back(); power *= 2) {
    for (int64_t quarters = 4; quarters < 8; ++quarters) {
      const int64_t point = power * quarters / 4;
      if (point <= points.back() || point >= rows.back()) continue;
      const auto next = std::upper_bound(rows.begin(), rows.end(), points.back());
      if (next != rows.end() && *next <= point) points.push_back(static_cast<int32_t>(point));
    }
  }
  // The last point is told by as many steps as others: not by the one that was largest.
  while (points.size() > 1 && int64_t{rows.back()} * 4 < int64_t{points.back()} * 5) points.pop_back();
  if (rows.back() > points.back()) points.push_back(rows.back());
  return points;
}

// The columns of one step: what is there from the first point on, how far it goes beyond
// each, the terms.
void fill_columns(const StepFeatures& features, std::span<const int32_t> points, std::vector<double>& columns) {
  columns.clear();
  columns.push_back(1.0);
  for (size_t i = 1; i < points.size(); ++i) {
    const double part = static_cast<double>(features.rows() - points[i - 1]) / (points[i] - points[i - 1]);
    columns.push_back(i + 1 == points.size() ? std::max(0.0, part) : std::clamp(part, 0.0, 1.0));
  }
  for (const double value : terms_of(features)) columns.push_back(value);
}

StepModel model_of(std::span<const int32_t> points, std::span<const double> x) {
  StepModel model;
  double seconds = 0;
  for (size_t i = 0; i < points.size(); ++i) model.linear.push_back({points[i], seconds += x[i]});
  for (size_t term = 0; term < kCostTerms; ++term) model.seconds[term] = x[points.size() + term];
  return model;
}

double relative_error(const StepModel& model, const StepSample& sample) {
  return (model.predict_s(sample.features) - sample.seconds) / sample.seconds;
}

}  // namespace

std::vector<double> solve_nonnegative(std::span<const double> gram, std::span<const double> rhs) {
  const size_t n = rhs.size();
  CHECK(gram.size() == n * n);
  std::vector<double> x(n), trial(n);
  std::vector<bool> is_used(n), is_refused(n);
  const auto used = [&] {
    std::vector<size_t> columns;
    for (size_t i = 0; i < n; ++i)
      if (is_used[i]) columns.push_back(i);
    return columns;
  };
  for (size_t round = 0; round < 10 * n; ++round) {
    // The column whose growth helps most.
    size_t best = n;
    double most = 0;
    for (size_t i = 0; i < n; ++i) {
      if (is_used[i] || is_refused[i] || gram[i * n + i] <= 0) continue;
      double gradient = rhs[i];
      for (size_t j = 0; j < n; ++j) gradient -= gram[i * n + j] * x[j];
      const double gain = gradient / std::sqrt(gram[i * n + i]);
      if (gain > most && gradient > kTolerance * std::abs(rhs[i])) {
        most = gain;
        best = i;
      }
    }
    if (best == n) break;
    is_used[best] = true;
    if (!solve_used(gram, rhs, used(), trial) || trial[best] <= 0) {
      is_used[best] = false;
      is_refused[best] = true;  // it says what others say
      continue;
    }
    for (;;) {
      double step = 1;
      for (size_t i = 0; i < n; ++i)
        if (is_used[i] && trial[i] <= 0) step = std::min(step, x[i] / (x[i] - trial[i]));
      for (size_t i = 0; i < n; ++i) x[i] += step * (trial[i] - x[i]);
      if (step == 1) break;
      for (size_t i = 0; i < n; ++i) {
        if (!is_used[i] || x[i] > 1e-12 * std::abs(trial[i])) continue;
        is_used[i] = false;
        x[i] = 0;
      }
      if (!solve_used(gram, rhs, used(), trial)) break;
    }
    std::fill(is_refused.begin(), is_refused.end(), false);
  }
  return x;
}

Result<StepModel> fit_steps(std::span<const StepSample> samples) {
  if (samples.size() < kFitStepsMin) {
    return invalid_argument(std::to_string(samples.size()) + " steps are too few to learn from; at least " +
                            std::to_string(kFitStepsMin) + " are needed");
  }
  const std::vector<int32_t> points = choose_points(samples);
  const size_t n = points.size() + kCostTerms;
  std::vector<double> weights(samples.size(), 1.0), errors(samples.size()), columns;
  StepModel model;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> gram(n * n), rhs(n);
    for (size_t s = 0; s < samples.size(); ++s) {
      CHECK(samples[s].seconds > 0);
      fill_columns(samples[s].features, points, columns);
      for (double& column : columns) column /= samples[s].seconds;
      for (size_t i = 0; i < n; ++i) {
        rhs[i] += weights[s] * columns[i];
        for (size_t j = 0; j < n; ++j) gram[i * n + j] += weights[s] * columns[i] * columns[j];
      }
    }
    model = model_of(points, solve_nonnegative(gram, rhs));
    for (size_t s = 0; s < samples.size(); ++s) errors[s] = std::abs(relative_error(model, samples[s]));
    std::vector<double> sorted = errors;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    const double usual = std::max(kHuber * *middle, 1e-6);
    for (size_t s = 0; s < samples.size(); ++s) weights[s] = std::min(1.0, usual / std::max(errors[s], 1e-12));
  }
  return model;
}

std::optional<double> noise_of(std::span<const StepSample> samples) {
  constexpr double kAlike = 0.03;
  const auto bucket = [](int64_t attended) {
    return std::llround(std::log(static_cast<double>(attended) + 1) / std::log(1 + kAlike));
  };
  std::map<std::array<int64_t, 10>, std::vector<double>> groups;
  for (const auto& [step, seconds] : samples) {
    groups[{step.prefill_rows, step.decode_rows, bucket(step.prefill_attended), bucket(step.decode_attended),
            step.logits_rows, step.adapters, step.rank_sum, step.rank_max, step.lora_rows, step.lora_row_ranks}]
        .push_back(seconds);
  }
  double sum = 0;
  size_t count = 0;
  for (auto& [key, alike] : groups) {
    if (alike.size() < 2) continue;
    std::sort(alike.begin(), alike.end());
    const size_t middle = alike.size() / 2;
    const double median = alike.size() % 2 == 1 ? alike[middle] : (alike[middle - 1] + alike[middle]) / 2;
    // Two of them differ by the square root of two times what each is off (of the normal
    // distribution; the median of few lies too close to them).
    const auto size = static_cast<double>(alike.size());
    double differences = 0;
    for (size_t i = 0; i < alike.size(); ++i) differences += (2.0 * static_cast<double>(i) - size + 1) * alike[i];
    sum += size * differences / (size * (size - 1) / 2) / std::sqrt(2.0) / median;
    count += alike.size();
  }
  return count >= kFitStepsMin ? std::optional(sum / static_cast<double>(count)) : std::nullopt;
}

FitQuality judge_fit(const StepModel& model, std::span<const StepSample> samples) {
  FitQuality quality;
  quality.steps = static_cast<int64_t>(samples.size());
  if (samples.empty()) return quality;
  const auto count = static_cast<double>(samples.size());
  double mean = 0;
  for (const StepSample& sample : samples) mean += sample.seconds / count;
  double left = 0, all = 0;
  std::vector<double> errors;
  for (const StepSample& sample : samples) {
    const double error = relative_error(model, sample);
    left += std::pow(error * sample.seconds, 2);
    all += std::pow(sample.seconds - mean, 2);
    quality.mean_bias += error / count;
    quality.mean_error += std::abs(error) / count;
    errors.push_back(std::abs(error));
  }
  std::sort(errors.begin(), errors.end());
  quality.p90_error = errors[std::min(errors.size() - 1, errors.size() * 9 / 10)];
  quality.r2 = all > 0 ? 1 - left / all : 0;
  return quality;
}

}  // namespace loralei

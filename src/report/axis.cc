// SPDX-License-Identifier: Apache-2.0
#include "report/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace loralei {
namespace {

constexpr double kMarks = 6;  // of a linear axis, about
constexpr double kMarksMost = 10;
constexpr double kNearly = 1e-9;  // of a step: what sums of floating point numbers miss
constexpr double kLargest = 1e300;

// The smallest of 1, 2 and 5 times a power of ten that gives few enough marks.
double step_of(double span) {
  const double power = std::pow(10, std::floor(std::log10(span / kMarks)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (span / (factor * power) <= kMarks) return factor * power;
  return 10 * power;
}

std::vector<AxisMark> log_marks(double low, double high) {
  const auto first = static_cast<int>(std::floor(std::log10(low))),
             last = static_cast<int>(std::ceil(std::log10(high)));
  const std::vector<std::vector<double>> choices = {{1, 2, 5}, {1}};
  std::vector<AxisMark> marks;
  for (int stride = 1;; ++stride) {
    for (const std::vector<double>& factors : choices) {
      if (stride > 1 && factors.size() > 1) continue;
      marks.clear();
      for (int power = first; power <= last; power += stride) {
        for (const double factor : factors) {
          const double value = factor * std::pow(10, power);
          if (value >= low * (1 - kNearly) && value <= high * (1 + kNearly))
            marks.push_back({value, axis_number(value)});
        }
      }
      if (static_cast<double>(marks.size()) <= kMarksMost) return marks;
    }
  }
}

}  // namespace

std::string axis_number(double value, double most) {
  constexpr std::array<std::pair<double, const char*>, 4> kUnits = {{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  char text[40];
  if (std::fabs(most) >= 1e4 && std::fabs(most) < 1e16 && value != 0) {
    for (const auto& [size, name] : kUnits) {
      if (std::fabs(most) < size) continue;
      std::snprintf(text, sizeof text, "%.4g%s", value / size, name);
      return text;
    }
  }
  std::snprintf(text, sizeof text, "%.4g", value == 0 ? 0.0 : value);
  return text;
}

std::string axis_number(double value) { return axis_number(value, value); }

Axis Axis::linear(double least, double most, bool rounded) {
  double low = std::isfinite(least) ? std::clamp(least, -kLargest, 0.0) : 0;
  double high = std::isfinite(most) ? std::clamp(most, 0.0, kLargest) : 0;
  if (high - low < 1e-300) high = low + 1;
  const double step = step_of(high - low);
  const double first = std::floor(low / step + kNearly) * step;
  low = low < 0 ? first : 0;
  if (rounded) high = std::ceil(high / step - kNearly) * step;
  Axis axis(low, high, false);
  for (int i = 0; low + i * step <= high + step * kNearly * 10; ++i) {
    const double mark = low + i * step, value = std::fabs(mark) < step / 2 ? 0 : mark;
    axis.marks_.push_back({value, axis_number(value, std::max(-low, high))});
  }
  return axis;
}

Axis Axis::logarithmic(double least, double most) {
  double low = std::isfinite(least) ? std::clamp(least, 1e-290, 1e290) : 1;
  double high = std::isfinite(most) ? std::clamp(most, low, kLargest) : 10 * low;
  if (high / low < 1.01) {  // one value stands in the middle
    low /= 10;
    high *= 10;
  }
  Axis axis(low, high, true);
  axis.marks_ = log_marks(low, high);
  return axis;
}

bool Axis::holds(double value) const { return std::isfinite(value) && (!is_log_ || value > 0); }

double Axis::place(double value) const {
  const double place = is_log_ ? (std::log10(value) - std::log10(low_)) / (std::log10(high_) - std::log10(low_))
                               : (value - low_) / (high_ - low_);
  return std::clamp(place, 0.0, 1.0);
}

}  // namespace loralei

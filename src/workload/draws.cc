// SPDX-License-Identifier: Apache-2.0
#include "workload/draws.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace loralei {
namespace {

// Uniform in (0, 1].
double above_zero(Prng& random) { return 1 - random.uniform(); }

}  // namespace

uint64_t stream_seed(uint64_t seed, std::string_view name) {
  for (const char c : name) seed = derived_seed(seed, static_cast<unsigned char>(c));
  return seed;
}

double normal_draw(Prng& random) {
  while (true) {
    const double x = 2 * random.uniform() - 1, y = 2 * random.uniform() - 1;
    const double square = x * x + y * y;
    if (square > 0 && square < 1) return x * std::sqrt(-2 * std::log(square) / square);
  }
}

double gamma_draw(Prng& random, double shape) {
  if (shape < 1) {
    const double larger = gamma_draw(random, shape + 1);
    return larger * std::pow(above_zero(random), 1 / shape);
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal_draw(random);
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(above_zero(random)) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

double weibull_draw(Prng& random, double shape) { return std::pow(exponential_draw(random), 1 / shape); }

double exponential_draw(Prng& random) { return -std::log(above_zero(random)); }

uint64_t below_draw(Prng& random, uint64_t bound) {
  const uint64_t whole = Prng::max() - Prng::max() % bound;  // numbers from here on would favour the small ones
  while (true) {
    if (const uint64_t number = random(); number < whole) return number % bound;
  }
}

WeightedDraw::WeightedDraw(const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) sums_.push_back(sum += weight);
  CHECK(sum > 0);
}

size_t WeightedDraw::draw(Prng& random) const {
  const double at = random.uniform() * sums_.back();
  const auto found = std::upper_bound(sums_.begin(), sums_.end(), at);
  // Rounding may reach the sum itself; then it is the last one with a weight.
  const auto last = std::lower_bound(sums_.begin(), sums_.end(), sums_.back());
  return static_cast<size_t>(std::min(found, last) - sums_.begin());
}

double WeightedDraw::share(size_t index) const {
  return (sums_[index] - (index == 0 ? 0 : sums_[index - 1])) / sums_.back();
}

std::vector<double> power_law(size_t count, double exponent) {
  std::vector<double> weights;
  for (size_t i = 1; i <= count; ++i) weights.push_back(std::pow(static_cast<double>(i), -exponent));
  return weights;
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// Random draws from Prng alone: those of the standard library differ between libraries,
// and a workload is to be the same bytes everywhere.
//
// Thread: functions of the generator they are given; a WeightedDraw is immutable.
// Invariants: positive parameters, which callers check.
// Sources: gamma after Marsaglia and Tsang, "A simple method for generating gamma
// variables" (2000); normal by Marsaglia's polar method.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/prng.h"

namespace loralei {

// The seed of one stream of random numbers: streams of different names are independent,
// so that what one draws changes nothing in another.
uint64_t stream_seed(uint64_t seed, std::string_view name);

double normal_draw(Prng& random);                   // mean 0, variance 1
double gamma_draw(Prng& random, double shape);      // scale 1
double weibull_draw(Prng& random, double shape);    // scale 1
double exponential_draw(Prng& random);              // mean 1
uint64_t below_draw(Prng& random, uint64_t bound);  // uniform, without a bias

// Index i with a chance of weights[i] in their sum.
class WeightedDraw {
 public:
  explicit WeightedDraw(const std::vector<double>& weights);  // at least one above 0, none below
  size_t draw(Prng& random) const;
  size_t size() const { return sums_.size(); }
  double share(size_t index) const;

 private:
  std::vector<double> sums_;  // of the weights up to and with each
};

// weights[i] = (i + 1)^-exponent.
std::vector<double> power_law(size_t count, double exponent);

}  // namespace loralei

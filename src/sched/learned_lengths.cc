// SPDX-License-Identifier: Apache-2.0
#include "sched/learned_lengths.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/fast_hash.h"

namespace loralei {
namespace {

constexpr size_t kBins = OutputLengths::kBins;
constexpr double kDeviationLeast = 2;  // bins: a half of an octave
constexpr double kTiltMost = 20;       // of a and b: beyond that all the weight is in one bin
constexpr double kGradientMost = 3;    // an answer that nobody would have thought of is no more than that

enum class Feature : uint64_t { kAny, kPrompt, kMost, kFormed, kAdapter, kToken, kPair };

uint16_t place_of(Feature kind, uint64_t first, uint64_t second = 0) {
  const uint64_t hash = mix64(mix64(mix64(static_cast<uint64_t>(kind) + 1) ^ first) ^ (second + 1));
  return static_cast<uint16_t>(hash % LearnedLengths::kPlaces);
}

uint64_t power_of(int64_t number) {
  return static_cast<uint64_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(0, number))));
}

uint64_t number_of(TokenId token) { return static_cast<uint32_t>(token); }

// x of each bin, for a distribution with a weight.
struct Scale {
  double mean = 0, deviation = 1;
  double x(size_t bin) const { return (static_cast<double>(bin) - mean) / deviation; }
};

double sum_of(const LearnedLengths::Shares& shares) {
  double sum = 0;
  for (const double share : shares) sum += share;
  return sum;
}

Scale scale_of(const LearnedLengths::Shares& shares, double sum) {
  Scale scale;
  double squares = 0;
  for (size_t bin = 0; bin < kBins; ++bin) scale.mean += static_cast<double>(bin) * shares[bin] / sum;
  for (size_t bin = 0; bin < kBins; ++bin) {
    const double off = static_cast<double>(bin) - scale.mean;
    squares += off * off * shares[bin] / sum;
  }
  scale.deviation = std::max(kDeviationLeast, std::sqrt(squares));
  return scale;
}

double bend(double x) { return (x * x - 1) / 2; }

double value_of(std::span<const uint16_t> features) { return 1 / std::sqrt(static_cast<double>(features.size())); }

void step(float& weight, float& squares, double gradient) {
  squares = static_cast<float>(std::min(LearnedLengths::kSquaresMost, squares + gradient * gradient));
  if (squares <= 0) return;
  const double moved = weight + LearnedLengths::kStep * gradient / std::sqrt(static_cast<double>(squares));
  weight = static_cast<float>(std::clamp(moved, -LearnedLengths::kWeightMost, LearnedLengths::kWeightMost));
}

}  // namespace

LearnedLengths::Features LearnedLengths::features_of(const PromptFacts& facts) {
  const std::span<const TokenId> prompt = facts.prompt;
  Features places;
  places.reserve(kFeaturesMost);
  places.push_back(place_of(Feature::kAny, 0));
  places.push_back(place_of(Feature::kPrompt, power_of(static_cast<int64_t>(prompt.size()))));
  places.push_back(place_of(Feature::kMost, power_of(facts.output_most)));
  places.push_back(place_of(Feature::kFormed, facts.formed ? 1 : 0));
  places.push_back(place_of(Feature::kAdapter, facts.adapter));
  const size_t first_end = std::min(kEdgeTokens, prompt.size());
  const size_t last_begin = std::max(first_end, prompt.size() - std::min(kEdgeTokens, prompt.size()));
  const auto add = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      places.push_back(place_of(Feature::kToken, number_of(prompt[i])));
      if (i + 1 < end) places.push_back(place_of(Feature::kPair, number_of(prompt[i]), number_of(prompt[i + 1])));
    }
  };
  add(0, first_end);
  add(last_begin, prompt.size());
  CHECK(places.size() <= kFeaturesMost);
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

LearnedLengths::Shares LearnedLengths::tilted(const Shares& h, std::span<const uint16_t> features) const {
  const double sum = sum_of(h);
  if (sum <= 0 || features.empty()) return h;
  double a = 0, b = 0;
  for (const uint16_t place : features) {
    a += weights_[place].tilt;
    b += weights_[place].bend;
  }
  const double value = value_of(features);
  a = std::clamp(a * value, -kTiltMost, kTiltMost);
  b = std::clamp(b * value, -kTiltMost, kTiltMost);
  const Scale scale = scale_of(h, sum);
  Shares exponents;
  double most = -INFINITY;
  for (size_t bin = 0; bin < kBins; ++bin) {
    const double x = scale.x(bin);
    exponents[bin] = a * x + b * bend(x);
    if (h[bin] > 0) most = std::max(most, exponents[bin]);
  }
  Shares p{};
  for (size_t bin = 0; bin < kBins; ++bin)
    if (h[bin] > 0) p[bin] = h[bin] * std::exp(exponents[bin] - most);
  return p;
}

void LearnedLengths::learn(const Shares& h, std::span<const uint16_t> features, int32_t output, bool cut) {
  const double sum = sum_of(h);
  if (sum <= 0 || features.empty()) return;
  const Shares p = tilted(h, features);
  const Scale scale = scale_of(h, sum);
  const auto at = static_cast<size_t>(OutputLengths::bin_of(output));
  double all = 0, x_mean = 0, bend_mean = 0, longer = 0, longer_x = 0;
  for (size_t bin = 0; bin < kBins; ++bin) {
    const double x = scale.x(bin);
    all += p[bin];
    x_mean += p[bin] * x;
    bend_mean += p[bin] * bend(x);
    if (bin >= at) longer += p[bin];
    if (bin >= at) longer_x += p[bin] * x;
  }
  if (all <= 0) return;
  if (cut && longer >= all / 2) return;
  // Where h knows of none as long: at least the length of the cut.
  const double seen = !cut || longer <= 0 ? scale.x(at) : longer_x / longer;
  const double value = value_of(features);
  const double a = std::clamp(seen - x_mean / all, cut ? 0 : -kGradientMost, kGradientMost) * value;
  const double b = cut ? 0 : std::clamp(bend(seen) - bend_mean / all, -kGradientMost, kGradientMost) * value;
  for (const uint16_t place : features) {
    Weight& weight = weights_[place];
    step(weight.tilt, weight.tilt_squares, a);
    step(weight.bend, weight.bend_squares, b);
  }
}

void LearnedLengths::put_back(std::span<const Weight> weights) {
  CHECK(weights.size() == weights_.size());
  const auto within = [](float value, double least, double most) {
    return std::isfinite(value) ? static_cast<float>(std::clamp<double>(value, least, most)) : 0.0f;
  };
  for (size_t place = 0; place < weights_.size(); ++place) {
    const Weight& weight = weights[place];
    weights_[place] = {within(weight.tilt, -kWeightMost, kWeightMost), within(weight.bend, -kWeightMost, kWeightMost),
                       within(weight.tilt_squares, 0, kSquaresMost), within(weight.bend_squares, 0, kSquaresMost)};
  }
}

}  // namespace loralei

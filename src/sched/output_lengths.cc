// SPDX-License-Identifier: Apache-2.0
#include "sched/output_lengths.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace loralei {
namespace {

constexpr double kBinsPerOctave = 4;

}  // namespace

int OutputLengths::bin_of(double length) {
  return std::clamp(static_cast<int>(std::log2(std::max(1.0, length)) * kBinsPerOctave), 0, kBins - 1);
}

double OutputLengths::length_of(int bin) { return std::exp2((bin + 0.5) / kBinsPerOctave); }

size_t OutputLengths::prompt_class(int32_t prompt) {
  return std::min<size_t>(std::bit_width(static_cast<uint32_t>(std::max(0, prompt))), kPromptClasses - 1);
}

void OutputLengths::Lengths::add(const Shares& shares) {
  const auto fade = static_cast<float>(std::exp2(-1 / kHalf));
  sum = 0;
  for (size_t bin = 0; bin < kBins; ++bin) {
    weight[bin] = weight[bin] * fade + static_cast<float>(shares[bin]);
    sum += weight[bin];
  }
}

void OutputLengths::learn(const Asked& asked, int32_t output, bool cut) {
  const int at = bin_of(output);
  Shares shares{};
  shares[static_cast<size_t>(at)] = 1;
  if (cut) {
    const Shares alike = this->shares(asked);
    double longer = 0;
    for (size_t bin = static_cast<size_t>(at); bin < kBins; ++bin) longer += alike[bin];
    if (longer > 0) {
      shares = {};
      for (size_t bin = static_cast<size_t>(at); bin < kBins; ++bin) shares[bin] = alike[bin] / longer;
    }
  }
  by_source_[asked.source].add(shares);
  common_.by_prompt[prompt_class(asked.prompt)].add(shares);
  common_.all.add(shares);
}

OutputLengths::Shares OutputLengths::shares(const Asked& asked) const {
  Shares result{};
  const auto mix = [&](const Lengths& lengths) {  // what is known so far, as so many answers
    double sum = 0;
    for (const double share : result) sum += share;
    const double scale = sum > 0 ? kPrior / sum : 0;
    for (size_t bin = 0; bin < kBins; ++bin) result[bin] = result[bin] * scale + lengths.weight[bin];
  };
  mix(common_.all);
  mix(common_.by_prompt[prompt_class(asked.prompt)]);
  if (const auto own = by_source_.find(asked.source); own != by_source_.end()) mix(own->second);
  return result;
}

double OutputLengths::quantile_of(const Shares& shares, int first, double quantile) {
  double sum = 0;
  for (size_t bin = static_cast<size_t>(first); bin < kBins; ++bin) sum += shares[bin];
  if (sum <= 0) return std::max(kAtFirst, length_of(first));
  double passed = 0;
  for (int bin = first; bin < kBins; ++bin) {
    passed += shares[static_cast<size_t>(bin)];
    if (passed >= quantile * sum) return length_of(bin);
  }
  return length_of(kBins - 1);
}

double OutputLengths::predict(const Asked& asked, double quantile) const {
  return quantile_of(shares(asked), 0, quantile);
}

double OutputLengths::predict_beyond(const Asked& asked, int32_t longer, double quantile) const {
  return std::max<double>(longer, quantile_of(shares(asked), bin_of(longer), quantile));
}

}  // namespace loralei

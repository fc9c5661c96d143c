// SPDX-License-Identifier: Apache-2.0
// OutputLengths: how long an answer will be, from how long those before were: quantiles
// of the answers of its adapter, and where those are few, of prompts of about its length
// on any adapter, and of all (mechanisms §4, `history`).
//
//   own + kPrior * (like + kPrior * all)        each a distribution over lengths
//
// Lengths are counted in kBins classes, four to an octave. Older answers fade: a half
// after kHalf of the same adapter (or prompt length). An answer that was cut short (by
// max_tokens, or its client left) says no more than that it would have been longer: it
// counts as one of those that were.
//
// Thread: one. Ownership: of what it has learned; forget() drops an adapter's. What it
// has learned is a value (Learned) that may be taken and put back. Space: 350 bytes an
// adapter. No failure.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "base/ids.h"

namespace loralei {

class OutputLengths {
 public:
  static constexpr int kBins = 80;
  static constexpr double kPrior = 8, kHalf = 200;
  static constexpr double kAtFirst = 128;  // before anything has ended

  // An adapter's source, and the tokens of the prompt. No source: the base model.
  struct Asked {
    AdapterSourceId source;
    int32_t prompt = 0;
  };

  static constexpr int kPromptClasses = 24;  // by the power of two
  using Shares = std::array<double, kBins>;  // of alike answers in each class of length, not of one sum
  struct Lengths {
    std::array<float, kBins> weight{};
    float sum = 0;
    void add(const Shares& shares);
  };
  // All that was learned but for the adapters' own.
  struct Common {
    std::array<Lengths, kPromptClasses> by_prompt;
    Lengths all;
  };

  // Of an answer that ended by itself, or was `cut` at that length.
  void learn(const Asked& asked, int32_t output, bool cut);
  // Tokens; so many of alike answers are shorter. At least 1.
  double predict(const Asked& asked, double quantile = 0.5) const;
  // The length that one has that is at least `longer` already.
  double predict_beyond(const Asked& asked, int32_t longer, double quantile = 0.5) const;
  void forget(AdapterSourceId source) { by_source_.erase(source); }

  Shares shares(const Asked& asked) const;
  // Tokens; of the shares from class `first` on.
  static double quantile_of(const Shares& shares, int first, double quantile);

  const std::unordered_map<AdapterSourceId, Lengths>& by_source() const { return by_source_; }
  const Common& common() const { return common_; }
  void put_back(AdapterSourceId source, const Lengths& lengths) { by_source_[source] = lengths; }
  void put_back(const Common& common) { common_ = common; }

  static int bin_of(double length);
  static double length_of(int bin);  // in the middle of those it counts

 private:
  static size_t prompt_class(int32_t prompt);

  std::unordered_map<AdapterSourceId, Lengths> by_source_;
  Common common_;
};

}  // namespace loralei

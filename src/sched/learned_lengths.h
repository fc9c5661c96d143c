// SPDX-License-Identifier: Apache-2.0
// LearnedLengths: what a prompt says of the length of its answer beside what its adapter
// does (mechanisms §4, `learned`). Each request tilts the distribution h that
// OutputLengths has for it:
//
//   p(bin) = h(bin) exp(a x + b (x^2 - 1) / 2) / Z, x = (bin - mean of h) / its deviation
//   a, b   = sum over the request's features of their weights, by the root of how many
//
// Bins are a logarithm of length, so that `a` makes answers longer or shorter by a
// factor, and `b` their lengths more or less certain. Before anything was learned a and b
// are 0: it says what h says, to the bit. Quantiles are in order since they are of one p.
//
// Learned online, by gradients of log p(length), which is concave in the weights, with a
// step size for each weight: kStep / root of its squared gradients so far (AdaGrad:
// Duchi, Hazan, Singer, JMLR 2011). These stop growing at kSquaresMost, so that what
// changes is learned again. An answer that was cut says only that it would have been
// longer: where the median lies below, `a` follows the gradient of log p(at least that
// length), which is never negative; elsewhere nothing is learned.
//
// Features: the prompt's length and max_tokens by the power of two, whether the answer
// has a form, the adapter; the tokens and pairs of tokens among the first and the last
// kEdgeTokens. A chat's last tokens are its question, its first ones say who asks what;
// 32 are about two sentences, and twice as many predict no better
// (docs/benchmarks/output-lengths.md). Each is hashed to one of kPlaces; those that meet
// there share a weight.
//
// Thread: one. Ownership: of 512 KiB of weights. Deterministic. Cost: features_of() once
// for a request, at most kFeaturesMost of them; tilted() and learn() as many additions
// and kBins exponentials. Invariants: weights are finite and at most kWeightMost,
// whatever is learned. No failure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "sched/output_lengths.h"

namespace loralei {

// What is known of a request when it arrives.
struct PromptFacts {
  uint64_t adapter = 0;  // the same number whenever it is asked, as LengthPredictor::key_of; 0: the base
  std::span<const TokenId> prompt;
  int32_t output_most = 0;
  bool formed = false;  // a grammar says what it is made of
};

class LearnedLengths {
 public:
  static constexpr int kPlaces = 1 << 15;
  static constexpr size_t kEdgeTokens = 32;
  static constexpr size_t kFeaturesMost = 5 + 2 * (2 * kEdgeTokens);
  static constexpr double kStep = 0.3, kSquaresMost = 8, kWeightMost = 8;

  using Features = std::vector<uint16_t>;  // places, ascending, each once
  using Shares = OutputLengths::Shares;
  struct Weight {
    float tilt = 0, bend = 0;                  // of a and b
    float tilt_squares = 0, bend_squares = 0;  // of their gradients
    friend bool operator==(const Weight&, const Weight&) = default;
  };

  LearnedLengths() : weights_(kPlaces) {}

  static Features features_of(const PromptFacts& facts);
  // p, as far as h says anything, and not normalised.
  Shares tilted(const Shares& h, std::span<const uint16_t> features) const;
  // Of an answer that ended by itself, or was `cut` at that length; h as it was before
  // that was learned.
  void learn(const Shares& h, std::span<const uint16_t> features, int32_t output, bool cut);

  // Of every place; what is put back is made to fit the invariants.
  const std::vector<Weight>& weights() const { return weights_; }
  void put_back(std::span<const Weight> weights);

 private:
  std::vector<Weight> weights_;  // [kPlaces]
};

}  // namespace loralei

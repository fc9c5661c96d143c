// SPDX-License-Identifier: Apache-2.0
// Sampler: one row of logits -> one token, by the row's SamplingParams.
//
// Thread: one Sampler a thread (it owns scratch); any number work side by side.
// Ownership: none of the inputs. No allocation once the scratch has grown to the
// vocabulary and `top` to its size.
// Invariant: the token is a function of (logits, params, choice, position, texts, masks)
// alone; ties go to the lowest id; NaN counts as impossible, +inf as the largest float.
// Failure: kNoToken when nothing is possible (every logit masked or not a number).
//
// Order: repetition penalty (Keskar et al., CTRL, arXiv 1909.05858 §4.1: over prompt
// and output, l > 0 ? l / r : l * r), presence and frequency penalties over the output,
// logit bias, masks (grammar, minimum length); then temperature, top-k, top-p (nucleus,
// Holtzman et al., arXiv 1904.09751), min-p (arXiv 2407.01082: p >= min_p * p_max);
// then the inverse of the cumulated distribution at uniform_at(seed, choice, position).
// Log-probabilities are those of the logits as the model gave them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "sampling/params.h"

namespace loralei {

inline constexpr TokenId kNoToken = -1;

struct SampleInput {
  std::span<const float> logits;  // [vocab of the row]; entries may be -inf
  const SamplingParams* params = nullptr;
  uint32_t choice = 0;
  uint64_t position = 0;  // absolute position of the token to choose
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;
  std::span<const uint32_t> allowed;   // grammar: bit i of word i / 32 set when token i may come; empty: all
  std::span<const TokenId> forbidden;  // minimum length: ids that may not come yet
};

class Sampler {
 public:
  // Takes what a vocabulary of that size can need, so that no call allocates; without it
  // the first calls do.
  void reserve(size_t vocab);
  TokenId sample(const SampleInput& input);

 private:
  struct Entry {
    float logit;
    float weight;  // exp((logit - best) / temperature)
    TokenId id;
  };
  static bool better(const Entry& a, const Entry& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

  bool adjust(const SampleInput& input);
  void penalise(const SampleInput& input);
  // `top` is the best logit; maxima_ holds the blocks' ones.
  TokenId draw_from_all(std::span<const float> logits, float top, float temperature, double u);
  TokenId draw_from_best(std::span<const float> logits, float top, const SamplingParams& params, double u);
  double weigh_all(std::span<const float> logits, float top, float temperature);
  void gather(std::span<const float> logits, float least);
  void weigh_entries(float top, float temperature);
  void keep_best(std::span<const float> logits, size_t count);
  double gather_nucleus(std::span<const float> logits, float top, float temperature, double top_p);
  void keep_nucleus(double goal);
  double entries_mass() const;

  std::vector<float> work_;       // [vocab] adjusted logits
  std::vector<float> maxima_;     // [blocks of the row] (sampling/row_math.h)
  std::vector<float> ranked_;     // [blocks] the same in another order
  std::vector<float> weights_;    // [vocab]
  std::vector<double> sums_;      // [blocks] of weights_
  std::vector<Entry> entries_;    // [vocab]
  std::vector<uint32_t> counts_;  // [vocab], zero between calls
  std::vector<TokenId> touched_;
};

// log p(token) under softmax(logits) and the `top` most likely ones, descending (ties:
// lowest id first). top.size() entries are written; fewer than the vocabulary. Weights
// are f32, their sum is in double.
struct LogprobInput {
  std::span<const float> logits;
  TokenId token = 0;
};
float token_logprob(const LogprobInput& input, std::span<TokenLogprob> top);

}  // namespace loralei

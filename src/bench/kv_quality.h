// SPDX-License-Identifier: Apache-2.0
// How far the distribution of the next token moves when something is changed in K and V:
// distributions kept small, compared with logits; and what becomes of whole answers.
//
// Of a distribution the kKvTopTokens most likely tokens are kept and the mass of all
// others as one: a divergence of these is at most that of the whole, and hardly less.
//
// Thread: values; pure functions. No failure: a divergence that is no number, or larger,
// counts as kKvKlMost.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "codec/kv_steps.h"

namespace loralei {

inline constexpr size_t kKvTopTokens = 256;
inline constexpr double kKvKlMost = 1e3;          // of one position
inline constexpr double kKvDivergenceMost = 0.5;  // of one position, in KvQualityCount::divergence
// What the text goes on with, where that is no token of an answer.
inline constexpr TokenId kKvNoAnswer = -1, kKvAnswerEnds = -2;

class KvDistribution {
 public:
  explicit KvDistribution(std::span<const float> logits);

  TokenId likeliest() const { return likeliest_; }
  // KL(this || softmax(logits)) in nats; `logits` of the same vocabulary.
  double kl(std::span<const float> logits) const;
  // Of a token; of one that is not kept minus infinity.
  double log_p(TokenId id) const;

 private:
  friend class KvQualityCount;
  double kl(std::span<const float> logits, double log_sum) const;

  struct Token {
    TokenId id = 0;
    float log_p = 0;
  };
  std::vector<Token> tokens_;
  double others_ = 0;  // mass
  TokenId likeliest_ = 0;
};

// The lowest of equally likely ones.
TokenId likeliest_token(std::span<const float> logits);

// Counts positions, and knows when their agreement cannot be reached any more; and whole
// answers. What answers lose is counted in their probability: where two tokens are as
// likely the least change turns the greedy answer, one way as often as the other, and
// that says nothing.
class KvQualityCount {
 public:
  // Of `positions` the share `agreement` shall agree: of all, or (`by_answers`) of those
  // that are no answer's.
  KvQualityCount(int64_t positions, double agreement, bool by_answers = false);

  // `given`: a token of an answer; kKvAnswerEnds: the position behind its last one.
  void add(const KvDistribution& exact, std::span<const float> logits, TokenId given = kKvNoAnswer);
  void add(bool agrees);
  bool failed() const { return differing_ - not_held_ > allowed_; }
  KvQuality quality() const;
  // Mean KL, where none counts more than kKvDivergenceMost: so it is not that of the few
  // that are turned round.
  double divergence() const;
  // The sum of the probabilities of answers as they are given, exact and otherwise.
  double answers_exact() const { return exact_; }
  double answers_other() const { return other_; }

 private:
  struct Answer {
    bool same = true, right = true, other_right = true;
    double log_exact = 0, log_other = 0;
  };
  void add_given(const KvDistribution& exact, TokenId likeliest, TokenId given, double log_p);
  void end_answer();

  bool by_answers_ = false;
  int64_t allowed_ = 0, counted_ = 0, differing_ = 0;
  int64_t not_held_ = 0;  // that differ, and are held to nothing
  double kl_ = 0, divergence_ = 0;
  Answer answer_;  // that is being counted
  int64_t answers_ = 0, same_ = 0, right_ = 0, other_right_ = 0;
  double exact_ = 0, other_ = 0;
};

// Whether answers with that probability in all say something: at least kKvAnswersLeast
// and half of them are given. Else (long answers of another model, tasks the model cannot
// do) what becomes of them is chance, and their positions are held to the agreement.
inline constexpr double kKvAnswersLeast = 4;
bool answers_tell(double probability, int64_t answers);
// Whether answers that say something keep their probability, in one count for each
// adapter: together they lose at most 1 - agreement of it, and each at most twice that.
inline constexpr double kKvNothingLost = 0.0005;  // a share: the finest steps move so much
bool answers_hold(std::span<const KvQualityCount> counts, double agreement);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// How far the distribution of the next token moves when something is changed in K and V:
// distributions kept small, compared with logits.
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
inline constexpr double kKvKlMost = 1e3;  // of one position

class KvDistribution {
 public:
  explicit KvDistribution(std::span<const float> logits);

  TokenId likeliest() const { return likeliest_; }
  // KL(this || softmax(logits)) in nats; `logits` of the same vocabulary.
  double kl(std::span<const float> logits) const;

 private:
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

// Counts positions, and knows when an agreement cannot be reached any more.
class KvQualityCount {
 public:
  // `positions` in all, of which the share `agreement` shall agree.
  KvQualityCount(int64_t positions, double agreement);

  void add(const KvDistribution& exact, std::span<const float> logits);
  void add(bool agrees);
  bool failed() const { return differing_ > allowed_; }
  KvQuality quality() const;

 private:
  int64_t allowed_ = 0, counted_ = 0, differing_ = 0;
  double kl_ = 0;
};

}  // namespace loralei

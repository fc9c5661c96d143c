// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_quality.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace loralei {
namespace {

// log(sum(exp(logits))); columns of -inf are none.
double log_sum(std::span<const float> logits) {
  const double most = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return most + std::log(sum);
}

}  // namespace

TokenId likeliest_token(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

KvDistribution::KvDistribution(std::span<const float> logits) : likeliest_(likeliest_token(logits)) {
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](TokenId id) { return logits[static_cast<size_t>(id)]; };
  if (ids.size() > kKvTopTokens) {
    std::nth_element(ids.begin(), ids.begin() + kKvTopTokens, ids.end(),
                     [&](TokenId a, TokenId b) { return logit(a) > logit(b); });
    ids.resize(kKvTopTokens);
  }
  const double all = log_sum(logits);
  double mass = 0;
  for (const TokenId id : ids) {
    const double log_p = static_cast<double>(logit(id)) - all;
    if (!std::isfinite(log_p)) continue;
    tokens_.push_back({id, static_cast<float>(log_p)});
    mass += std::exp(log_p);
  }
  others_ = logits.size() > kKvTopTokens ? std::max(0.0, 1 - mass) : 0;
}

double KvDistribution::kl(std::span<const float> logits) const {
  const double all = log_sum(logits);
  double kl = 0, mass = 0;
  for (const Token& token : tokens_) {
    const double log_p = static_cast<double>(token.log_p);
    const double log_q = static_cast<double>(logits[static_cast<size_t>(token.id)]) - all;
    kl += std::exp(log_p) * (log_p - log_q);
    mass += std::exp(log_q);
  }
  if (others_ > 0) kl += others_ * std::log(others_ / std::max(1 - mass, 1e-30));
  return std::isfinite(kl) ? std::min(std::max(0.0, kl), kKvKlMost) : kKvKlMost;
}

KvQualityCount::KvQualityCount(int64_t positions, double agreement)
    : allowed_(static_cast<int64_t>(std::floor((1 - agreement) * static_cast<double>(positions) + 1e-9))) {}

void KvQualityCount::add(const KvDistribution& exact, std::span<const float> logits) {
  kl_ += exact.kl(logits);
  add(likeliest_token(logits) == exact.likeliest());
}

void KvQualityCount::add(bool agrees) {
  ++counted_;
  if (!agrees) ++differing_;
}

KvQuality KvQualityCount::quality() const {
  if (counted_ == 0) return {};
  const auto counted = static_cast<double>(counted_);
  return {.agreement = 1 - static_cast<double>(differing_) / counted, .mean_kl = kl_ / counted, .positions = counted_};
}

}  // namespace loralei

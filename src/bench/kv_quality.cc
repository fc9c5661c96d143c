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

double KvDistribution::kl(std::span<const float> logits) const { return kl(logits, log_sum(logits)); }

double KvDistribution::kl(std::span<const float> logits, double all) const {
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

double KvDistribution::log_p(TokenId id) const {
  const auto found = std::find_if(tokens_.begin(), tokens_.end(), [&](const Token& token) { return token.id == id; });
  return found == tokens_.end() ? -HUGE_VAL : static_cast<double>(found->log_p);
}

KvQualityCount::KvQualityCount(int64_t positions, double agreement, bool by_answers)
    : by_answers_(by_answers),
      allowed_(static_cast<int64_t>(std::floor((1 - agreement) * static_cast<double>(positions) + 1e-9))) {}

void KvQualityCount::add(const KvDistribution& exact, std::span<const float> logits, TokenId given) {
  const double all = log_sum(logits), kl = exact.kl(logits, all);
  kl_ += kl;
  divergence_ += std::min(kl, kKvDivergenceMost);
  const TokenId likeliest = likeliest_token(logits);
  const bool agrees = likeliest == exact.likeliest();
  add(agrees);
  if (given == kKvNoAnswer) return;
  if (!agrees && by_answers_) ++not_held_;
  answer_.same &= agrees;
  if (given == kKvAnswerEnds) {
    end_answer();
  } else {
    add_given(exact, likeliest, given, static_cast<double>(logits[static_cast<size_t>(given)]) - all);
  }
}

void KvQualityCount::add(bool agrees) {
  ++counted_;
  if (!agrees) ++differing_;
}

void KvQualityCount::add_given(const KvDistribution& exact, TokenId likeliest, TokenId given, double log_p) {
  answer_.right &= exact.likeliest() == given;
  answer_.other_right &= likeliest == given;
  answer_.log_exact += exact.log_p(given);
  answer_.log_other += log_p;
}

void KvQualityCount::end_answer() {
  const auto mass = [](double log_p) { return std::isnan(log_p) ? 0 : std::exp(log_p); };
  exact_ += mass(answer_.log_exact);
  other_ += mass(answer_.log_other);
  ++answers_;
  same_ += answer_.same ? 1 : 0;
  right_ += answer_.right ? 1 : 0;
  other_right_ += answer_.other_right ? 1 : 0;
  answer_ = {};
}

double KvQualityCount::divergence() const { return counted_ > 0 ? divergence_ / static_cast<double>(counted_) : 0; }

KvQuality KvQualityCount::quality() const {
  if (counted_ == 0) return {};
  const auto counted = static_cast<double>(counted_);
  return {.agreement = 1 - static_cast<double>(differing_) / counted,
          .mean_kl = kl_ / counted,
          .positions = counted_,
          .answers = answers_,
          .answers_same = same_,
          .answers_exact_right = right_,
          .answers_right = other_right_,
          .answers_lost = exact_ > 0 ? std::clamp(1 - other_ / exact_, -kKvKlMost, 1.0) : 0};
}

bool answers_tell(double probability, int64_t answers) {
  return probability >= std::max(kKvAnswersLeast, 0.5 * static_cast<double>(answers));
}

bool answers_hold(std::span<const KvQualityCount> counts, double agreement) {
  const double share = std::max(1 - agreement, kKvNothingLost);
  double exact = 0, lost = 0;
  for (const KvQualityCount& count : counts) {
    const double its = count.answers_exact() - count.answers_other();
    if (!answers_tell(count.answers_exact(), count.quality().answers)) continue;
    if (its > 2 * share * count.answers_exact()) return false;
    exact += count.answers_exact();
    lost += its;
  }
  return lost <= share * exact;
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();
constexpr size_t kFirstNucleus = 256;  // most nuclei are smaller; grown eightfold when not

float clean(float logit) {
  if (std::isnan(logit)) return kImpossible;
  return std::min(logit, std::numeric_limits<float>::max());
}

TokenId arg_max(std::span<const float> logits) {
  TokenId best = kNoToken;
  float best_logit = kImpossible;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > best_logit) {  // false for NaN, and for ties: the lowest id stays
      best_logit = logits[id];
      best = static_cast<TokenId>(id);
    }
  }
  return best;
}

}  // namespace

void Sampler::penalise(const SampleInput& input) {
  const SamplingParams& params = *input.params;
  counts_.resize(std::max(counts_.size(), work_.size()), 0);
  touched_.clear();
  const auto vocab = static_cast<TokenId>(work_.size());
  for (const TokenId token : input.output) {
    if (token < 0 || token >= vocab) continue;
    if (counts_[static_cast<size_t>(token)]++ == 0) touched_.push_back(token);
  }
  for (const TokenId token : touched_) {
    const auto id = static_cast<size_t>(token);
    work_[id] -= params.frequency_penalty * static_cast<float>(counts_[id]) + params.presence_penalty;
  }
  if (params.repetition_penalty != 1.0f) {
    for (const TokenId token : input.prompt) {
      if (token < 0 || token >= vocab) continue;
      if (counts_[static_cast<size_t>(token)]++ == 0) touched_.push_back(token);
    }
    for (const TokenId token : touched_) {
      // The repetition penalty scales the model's own logit; the additive penalties stand beside it.
      const auto id = static_cast<size_t>(token);
      const float raw = clean(input.logits[id]);
      work_[id] += (raw > 0 ? raw / params.repetition_penalty : raw * params.repetition_penalty) - raw;
      if (std::isnan(work_[id])) work_[id] = kImpossible;
    }
  }
  for (const TokenId token : touched_) counts_[static_cast<size_t>(token)] = 0;
}

// Fills work_ when anything changes the logits; false when they may be used as they are.
bool Sampler::adjust(const SampleInput& input) {
  const SamplingParams& params = *input.params;
  const bool penalties =
      params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f;
  if (!penalties && params.logit_bias.empty() && input.allowed.empty() && input.forbidden.empty()) return false;
  work_.resize(input.logits.size());
  std::transform(input.logits.begin(), input.logits.end(), work_.begin(), clean);
  if (penalties) penalise(input);
  const auto vocab = static_cast<TokenId>(work_.size());
  for (const auto& [token, bias] : params.logit_bias) {
    if (token >= 0 && token < vocab)
      work_[static_cast<size_t>(token)] = clean(work_[static_cast<size_t>(token)] + bias);
  }
  if (!input.allowed.empty()) {
    for (size_t id = 0; id < work_.size(); ++id) {
      const size_t word = id / 32;
      if (word >= input.allowed.size() || (input.allowed[word] >> (id % 32) & 1) == 0) work_[id] = kImpossible;
    }
  }
  for (const TokenId token : input.forbidden) {
    if (token >= 0 && token < vocab) work_[static_cast<size_t>(token)] = kImpossible;
  }
  return true;
}

TokenId Sampler::sample(const SampleInput& input) {
  const SamplingParams& params = *input.params;
  const std::span<const float> logits = adjust(input) ? std::span<const float>(work_) : input.logits;
  if (params.temperature <= 0.0f || params.top_k == 1) return arg_max(logits);
  const double u = uniform_at(params.seed, input.choice, input.position);
  const bool all = (params.top_k <= 0 || static_cast<size_t>(params.top_k) >= logits.size()) && params.top_p >= 1.0f &&
                   params.min_p <= 0.0f;
  return all ? draw_from_all(logits, params.temperature, u) : draw_from_best(logits, params, u);
}

void Sampler::reserve(size_t vocab) {
  work_.reserve(vocab);
  weights_.reserve(vocab);
  entries_.reserve(vocab);
  counts_.reserve(vocab);
  touched_.reserve(vocab);
}

TokenId Sampler::draw_from_all(std::span<const float> logits, double temperature, double u) {
  const TokenId best = arg_max(logits);
  if (best == kNoToken) return kNoToken;
  const double top = clean(logits[static_cast<size_t>(best)]);
  weights_.resize(std::max(weights_.size(), logits.size()));
  double total = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = clean(logits[id]);
    weights_[id] = logit == kImpossible ? 0.0 : std::exp((logit - top) / temperature);
    total += weights_[id];
  }
  const double target = u * total;
  double cumulated = 0;
  TokenId last = best;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (weights_[id] == 0.0) continue;
    cumulated += weights_[id];
    last = static_cast<TokenId>(id);
    if (cumulated > target) return last;
  }
  return last;  // rounding put the target at the very end
}

// Sorts entries_[0, n) best first, growing n until they hold top_p of the mass of entries_[0, kept); returns how many
// stay.
size_t Sampler::keep_nucleus(double temperature, double top_p, size_t kept) {
  const auto begin = entries_.begin(), end = begin + static_cast<int64_t>(kept);
  const double top = std::max_element(begin, end, [](const Entry& a, const Entry& b) { return better(b, a); })->logit;
  const auto weight = [&](const Entry& entry) { return std::exp((entry.logit - top) / temperature); };
  double total = 0;
  for (auto entry = begin; entry != end; ++entry) total += weight(*entry);
  double cumulated = 0;
  for (size_t from = 0, count = kFirstNucleus; from < kept; from = count, count *= 8) {
    count = std::min(count, kept);
    const auto middle = begin + static_cast<int64_t>(count);
    if (count < kept) std::nth_element(begin + static_cast<int64_t>(from), middle, end, better);
    std::sort(begin + static_cast<int64_t>(from), middle, better);
    for (size_t index = from; index < count; ++index) {
      cumulated += weight(entries_[index]);
      if (cumulated >= top_p * total) return index + 1;
    }
  }
  return kept;
}

TokenId Sampler::draw_from_best(std::span<const float> logits, const SamplingParams& params, double u) {
  const double temperature = params.temperature;
  const TokenId best = arg_max(logits);
  if (best == kNoToken) return kNoToken;
  const double top = clean(logits[static_cast<size_t>(best)]);
  entries_.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = clean(logits[id]);
    if (logit != kImpossible) entries_.push_back({logit, static_cast<TokenId>(id)});
  }
  size_t kept = entries_.size();
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < kept) {
    kept = static_cast<size_t>(params.top_k);
    std::nth_element(entries_.begin(), entries_.begin() + static_cast<int64_t>(kept), entries_.end(), better);
    std::sort(entries_.begin(), entries_.begin() + static_cast<int64_t>(kept), better);
  }
  if (params.top_p < 1.0f) kept = keep_nucleus(temperature, std::max(0.0f, params.top_p), kept);
  if (params.min_p > 0.0f) {  // keeps the order
    const double floor = top + temperature * std::log(static_cast<double>(params.min_p));
    const auto end = std::remove_if(entries_.begin(), entries_.begin() + static_cast<int64_t>(kept),
                                    [&](const Entry& entry) { return entry.logit < floor && entry.id != best; });
    kept = static_cast<size_t>(end - entries_.begin());
  }
  double total = 0;
  for (size_t index = 0; index < kept; ++index) total += std::exp((entries_[index].logit - top) / temperature);
  double cumulated = 0;
  for (size_t index = 0; index < kept; ++index) {
    cumulated += std::exp((entries_[index].logit - top) / temperature);
    if (cumulated > u * total) return entries_[index].id;
  }
  return entries_[kept - 1].id;
}

float token_logprob(const LogprobInput& input, std::span<TokenLogprob> top) {
  double highest = kImpossible;
  for (const float raw : input.logits) highest = std::max<double>(highest, clean(raw));
  double sum = 0;
  size_t filled = 0;
  for (size_t id = 0; id < input.logits.size(); ++id) {
    const float logit = clean(input.logits[id]);
    if (logit != kImpossible) sum += std::exp(logit - highest);
    if (filled == top.size() && (filled == 0 || logit <= top[filled - 1].logprob)) continue;
    // Insertion from the end; an equal logit stays behind the lower id that came before.
    size_t at = filled < top.size() ? filled++ : filled - 1;
    while (at > 0 && top[at - 1].logprob < logit) {
      top[at] = top[at - 1];
      --at;
    }
    top[at] = {static_cast<TokenId>(id), logit};
  }
  const double log_sum = highest + std::log(sum);
  const auto logprob = [&](float logit) {
    return logit == kImpossible ? kImpossible : static_cast<float>(logit - log_sum);
  };
  for (TokenLogprob& entry : top.first(filled)) entry.logprob = logprob(entry.logprob);
  if (input.token < 0 || static_cast<size_t>(input.token) >= input.logits.size()) return kImpossible;
  return logprob(clean(input.logits[static_cast<size_t>(input.token)]));
}

}  // namespace loralei

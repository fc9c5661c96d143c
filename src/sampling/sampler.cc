// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/prng.h"
#include "sampling/row_math.h"

namespace loralei {
namespace {

constexpr size_t kFirstNucleus = 256;  // most nuclei are smaller; grown eightfold when not
constexpr float kFirstDepth = 4;       // most nuclei lie within e^4 of the best; grown fourfold when not
constexpr float kNoDepth = 87;         // weights end here

TokenId arg_max(std::span<const float> logits) {
  float best = kImpossible;
  size_t best_block = 0;
  for (size_t block = 0; block < row_blocks(logits.size()); ++block) {
    float highest;
    block_maxima(row_block(logits, block), &highest);
    if (highest > best) {  // false for ties: the lowest id stays
      best = highest;
      best_block = block;
    }
  }
  if (best == kImpossible) return kNoToken;
  size_t id = best_block * kRowBlock;
  while (clean_logit(logits[id]) != best) ++id;
  return static_cast<TokenId>(id);
}

void forbid_masked(std::span<const uint32_t> allowed, std::span<float> logits) {
  for (size_t id = 0; id < logits.size(); id += 32) {
    const uint32_t word = id / 32 < allowed.size() ? allowed[id / 32] : 0;
    if (word == ~uint32_t{0}) continue;
    const size_t end = std::min(id + 32, logits.size());
    for (size_t i = id; i < end; ++i) {
      if ((word >> (i % 32) & 1) == 0) logits[i] = kImpossible;
    }
  }
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
      // The repetition penalty scales the model's own logit; the additive penalties
      // stand beside it.
      const auto id = static_cast<size_t>(token);
      const float raw = clean_logit(input.logits[id]);
      work_[id] += (raw > 0 ? raw / params.repetition_penalty : raw * params.repetition_penalty) - raw;
      if (std::isnan(work_[id])) work_[id] = kImpossible;
    }
  }
  for (const TokenId token : touched_) counts_[static_cast<size_t>(token)] = 0;
}

// Fills work_ when anything changes the logits; false when they may be used as they are.
bool Sampler::adjust(const SampleInput& input) {
  const SamplingParams& params = *input.params;
  if (!params.change_logits() && input.allowed.empty() && input.forbidden.empty()) return false;
  work_.resize(input.logits.size());
  clean_row(input.logits, work_.data());
  if (params.penalises()) penalise(input);
  const auto vocab = static_cast<TokenId>(work_.size());
  for (const auto& [token, bias] : params.logit_bias) {
    if (token >= 0 && token < vocab)
      work_[static_cast<size_t>(token)] = clean_logit(work_[static_cast<size_t>(token)] + bias);
  }
  if (!input.allowed.empty()) forbid_masked(input.allowed, work_);
  for (const TokenId token : input.forbidden) {
    if (token >= 0 && token < vocab) work_[static_cast<size_t>(token)] = kImpossible;
  }
  return true;
}

TokenId Sampler::sample(const SampleInput& input) {
  const SamplingParams& params = *input.params;
  const std::span<const float> logits = adjust(input) ? std::span<const float>(work_) : input.logits;
  if (params.temperature <= 0.0f || params.top_k == 1) return arg_max(logits);
  maxima_.resize(row_blocks(logits.size()));
  const float top = block_maxima(logits, maxima_.data());
  if (top == kImpossible) return kNoToken;
  const double u = uniform_at(params.seed, input.choice, input.position);
  const bool all = (params.top_k <= 0 || static_cast<size_t>(params.top_k) >= logits.size()) && params.top_p >= 1.0f &&
                   params.min_p <= 0.0f;
  return all ? draw_from_all(logits, top, params.temperature, u) : draw_from_best(logits, top, params, u);
}

void Sampler::reserve(size_t vocab) {
  work_.reserve(vocab);
  weights_.reserve(vocab);
  entries_.reserve(vocab);
  counts_.reserve(vocab);
  touched_.reserve(vocab);
  maxima_.reserve(row_blocks(vocab));
  ranked_.reserve(row_blocks(vocab));
  sums_.reserve(row_blocks(vocab));
}

double Sampler::weigh_all(std::span<const float> logits, float top, float temperature) {
  weights_.resize(std::max(weights_.size(), logits.size()));
  sums_.resize(std::max(sums_.size(), maxima_.size()));
  return exp_weights(logits, top, temperature, weights_.data(), sums_.data());
}

TokenId Sampler::draw_from_all(std::span<const float> logits, float top, float temperature, double u) {
  const double target = u * weigh_all(logits, top, temperature);
  const size_t blocks = row_blocks(logits.size());
  double before = 0, before_last = 0;
  size_t block = 0, last = 0;  // `last`: the last one where anything weighs; rounding may put the target behind it
  for (; block < blocks; ++block) {
    if (sums_[block] == 0) continue;
    last = block;
    before_last = before;
    before += sums_[block];
    if (before > target) break;
  }
  double cumulated = before_last;
  size_t drawn = last * kRowBlock;
  const size_t end = std::min(drawn + kRowBlock, logits.size());
  for (size_t id = drawn; id < end; ++id) {
    if (weights_[id] == 0) continue;
    cumulated += static_cast<double>(weights_[id]);
    drawn = id;
    if (cumulated > target) break;
  }
  return static_cast<TokenId>(drawn);
}

// entries_: all tokens whose logit is at least `least`, in the order of ids.
void Sampler::gather(std::span<const float> logits, float least) {
  entries_.clear();
  for (size_t block = 0; block < row_blocks(logits.size()); ++block) {
    if (maxima_[block] < least || maxima_[block] == kImpossible) continue;
    const size_t end = std::min((block + 1) * kRowBlock, logits.size());
    for (size_t id = block * kRowBlock; id < end; ++id) {
      const float logit = clean_logit(logits[id]);
      if (logit >= least && logit != kImpossible) entries_.push_back({logit, 0, static_cast<TokenId>(id)});
    }
  }
}

void Sampler::weigh_entries(float top, float temperature) {
  for (Entry& entry : entries_) {
    double sum;
    exp_weights({&entry.logit, 1}, top, temperature, &entry.weight, &sum);
  }
}

// entries_: the `count` best, best first. As many blocks as that have a maximum at or
// above the count-th highest maximum, so no better token lies below it.
void Sampler::keep_best(std::span<const float> logits, size_t count) {
  float least = kImpossible;
  if (count < maxima_.size()) {
    ranked_.assign(maxima_.begin(), maxima_.end());
    const auto nth = ranked_.begin() + static_cast<int64_t>(count) - 1;
    std::nth_element(ranked_.begin(), nth, ranked_.end(), std::greater<>());
    least = *nth;
  }
  gather(logits, least);
  if (count < entries_.size()) {
    std::nth_element(entries_.begin(), entries_.begin() + static_cast<int64_t>(count), entries_.end(), better);
    entries_.resize(count);
  }
  std::sort(entries_.begin(), entries_.end(), better);
}

// entries_: at least those that hold `top_p` of the weight of all. Returns how
// much weight that is.
double Sampler::gather_nucleus(std::span<const float> logits, float top, float temperature, double top_p) {
  const double goal = top_p * weigh_all(logits, top, temperature);
  for (float depth = kFirstDepth;; depth *= 4) {
    const bool all = depth >= kNoDepth;
    gather(logits, all ? kImpossible : top - temperature * depth);
    double mass = 0;
    for (Entry& entry : entries_) {
      entry.weight = weights_[static_cast<size_t>(entry.id)];
      mass += static_cast<double>(entry.weight);
    }
    if (all || mass > goal) return goal;
  }
}

// Sorts entries_ best first as far as needed and keeps those that reach `goal`.
void Sampler::keep_nucleus(double goal) {
  const auto begin = entries_.begin();
  double cumulated = 0;
  for (size_t from = 0, count = kFirstNucleus; from < entries_.size(); from = count, count *= 8) {
    count = std::min(count, entries_.size());
    const auto middle = begin + static_cast<int64_t>(count);
    if (count < entries_.size()) std::nth_element(begin + static_cast<int64_t>(from), middle, entries_.end(), better);
    std::sort(begin + static_cast<int64_t>(from), middle, better);
    for (size_t index = from; index < count; ++index) {
      cumulated += static_cast<double>(entries_[index].weight);
      if (cumulated >= goal) return entries_.resize(index + 1);
    }
  }
}

double Sampler::entries_mass() const {
  double mass = 0;
  for (const Entry& entry : entries_) mass += static_cast<double>(entry.weight);
  return mass;
}

TokenId Sampler::draw_from_best(std::span<const float> logits, float top, const SamplingParams& params, double u) {
  const float temperature = params.temperature;
  const double top_p = std::max(0.0f, params.top_p);
  float least = kImpossible;
  if (params.min_p > 0.0f) least = std::min(top, top + temperature * std::log(params.min_p));
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size()) {
    keep_best(logits, static_cast<size_t>(params.top_k));
    weigh_entries(top, temperature);
    if (top_p < 1.0) keep_nucleus(top_p * entries_mass());
  } else if (top_p < 1.0) {
    keep_nucleus(gather_nucleus(logits, top, temperature, top_p));
  } else {
    gather(logits, least);
    weigh_entries(top, temperature);
  }
  std::erase_if(entries_, [&](const Entry& entry) { return entry.logit < least; });
  const double target = u * entries_mass();
  double cumulated = 0;
  for (const Entry& entry : entries_) {
    cumulated += static_cast<double>(entry.weight);
    if (cumulated > target) return entry.id;
  }
  return entries_.back().id;
}

float token_logprob(const LogprobInput& input, std::span<TokenLogprob> top) {
  const size_t blocks = row_blocks(input.logits.size());
  float highest = kImpossible;
  size_t filled = 0;
  for (size_t block = 0; block < blocks; ++block) {
    float maximum;
    block_maxima(row_block(input.logits, block), &maximum);
    highest = std::max(highest, maximum);
    const auto beaten = [&](float logit) {  // by all that is in `top`: the lower id stays before an equal logit
      return filled == top.size() && (filled == 0 || logit <= top[filled - 1].logprob);
    };
    if (beaten(maximum)) continue;
    for (size_t id = block * kRowBlock; id < std::min((block + 1) * kRowBlock, input.logits.size()); ++id) {
      const float logit = clean_logit(input.logits[id]);
      if (beaten(logit)) continue;
      size_t at = filled < top.size() ? filled++ : filled - 1;  // insertion from the end
      while (at > 0 && top[at - 1].logprob < logit) {
        top[at] = top[at - 1];
        --at;
      }
      top[at] = {static_cast<TokenId>(id), logit};
    }
  }
  double sum = 0;
  for (size_t block = 0; highest != kImpossible && block < blocks; ++block) {
    float weights[kRowBlock];
    double block_sum;
    sum += exp_weights(row_block(input.logits, block), highest, 1.0f, weights, &block_sum);
  }
  const double log_sum = static_cast<double>(highest) + std::log(sum);
  const auto logprob = [&](float logit) {
    return logit == kImpossible ? kImpossible : static_cast<float>(static_cast<double>(logit) - log_sum);
  };
  for (TokenLogprob& entry : top.first(filled)) entry.logprob = logprob(entry.logprob);
  if (input.token < 0 || static_cast<size_t>(input.token) >= input.logits.size()) return kImpossible;
  return logprob(clean_logit(input.logits[static_cast<size_t>(input.token)]));
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
#include "sched/length_predictor.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/fast_hash.h"

namespace loralei {

void LengthErrors::add(double predicted, int32_t output) {
  const double error = std::abs(std::log2(std::max(1.0, predicted) / std::max(1, output)));
  const auto limit = std::lower_bound(kLimits.begin(), kLimits.end(), error);
  ++counts[static_cast<size_t>(limit - kLimits.begin())];
  sum += error;
}

LearnedLengths::Features LengthPredictor::features_of(AdapterSourceId source, PromptFacts facts) const {
  if (prediction_ != LengthPrediction::kLearned) return {};
  const auto key = keys_.find(source);
  facts.adapter = key != keys_.end() ? key->second : 0;
  return LearnedLengths::features_of(facts);
}

double LengthPredictor::of_history(const LengthAsked& asked) const {
  return asked.output_so_far > 0 ? history_.predict_beyond(asked, asked.output_so_far) : history_.predict(asked);
}

double LengthPredictor::predict(const LengthAsked& asked) const {
  const double most = asked.output_most;
  if (prediction_ == LengthPrediction::kMaxTokens || most <= 0) return most;
  if (prediction_ == LengthPrediction::kHistory) return std::min(most, of_history(asked));
  const LearnedLengths::Shares shares = learned_->tilted(history_.shares(asked), asked.features);
  const int first = asked.output_so_far > 0 ? OutputLengths::bin_of(asked.output_so_far) : 0;
  return std::min(most, std::max<double>(asked.output_so_far, OutputLengths::quantile_of(shares, first, 0.5)));
}

ForeseenLength LengthPredictor::foresee(const LengthAsked& asked) const {
  const double history = std::min<double>(asked.output_most, of_history(asked));
  return {static_cast<float>(predict(asked)), static_cast<float>(history)};
}

void LengthPredictor::ended(const LengthAsked& asked, const ForeseenLength& foreseen, int32_t output, bool cut) {
  if (output <= 0) return;
  ++answers_;
  if (prediction_ == LengthPrediction::kLearned) learned_->learn(history_.shares(asked), asked.features, output, cut);
  history_.learn(asked, output, cut);
  if (cut || foreseen.predicted <= 0) return;
  errors_[static_cast<size_t>(prediction_)].add(foreseen.predicted, output);
  if (prediction_ == LengthPrediction::kLearned)
    errors_[static_cast<size_t>(LengthPrediction::kHistory)].add(foreseen.history, output);
}

uint64_t LengthPredictor::key_of(std::string_view path) {
  const uint64_t key = fast_hash(reinterpret_cast<const std::byte*>(path.data()), path.size(), 1);
  return key == 0 ? 1 : key;
}

void LengthPredictor::introduce(AdapterSourceId source, uint64_t key) {
  keys_[source] = key;
  const auto kept = kept_.find(key);
  if (kept != kept_.end() && history_.by_source().count(source) == 0) history_.put_back(source, kept->second);
}

void LengthPredictor::forget(AdapterSourceId source) {
  const auto key = keys_.find(source);
  const auto lengths = history_.by_source().find(source);
  if (key != keys_.end() && lengths != history_.by_source().end()) keep(key->second, lengths->second);
  if (key != keys_.end()) keys_.erase(key);
  history_.forget(source);
}

// The one that is known least gives its place.
void LengthPredictor::keep(uint64_t key, const OutputLengths::Lengths& lengths) {
  kept_[key] = lengths;
  if (kept_.size() <= LengthsState::kAdaptersMost) return;
  const auto less = [](const auto& a, const auto& b) {
    return std::pair(a.second.sum, a.first) < std::pair(b.second.sum, b.first);
  };
  kept_.erase(std::min_element(kept_.begin(), kept_.end(), less));
}

// Those that are there come before those that were, and of these those that are known
// best.
LengthsState LengthPredictor::state() const {
  std::unordered_map<uint64_t, std::pair<bool, const OutputLengths::Lengths*>> all;
  for (const auto& [key, lengths] : kept_) all[key] = {false, &lengths};
  for (const auto& [source, lengths] : history_.by_source()) {
    const auto known = keys_.find(source);
    if (source != AdapterSourceId{} && known == keys_.end()) continue;
    auto& [there, best] = all[source == AdapterSourceId{} ? 0 : known->second];
    if (!there || best->sum < lengths.sum) best = &lengths;
    there = true;
  }
  LengthsState state;
  state.common = history_.common();
  if (learned_) state.learned = learned_->weights();
  state.adapters.reserve(all.size());
  for (const auto& [key, one] : all) state.adapters.push_back({key, *one.second});
  if (state.adapters.size() > LengthsState::kAdaptersMost) {
    const auto rank = [&](const LengthsState::Adapter& one) {
      return std::tuple(!all.at(one.key).first, -one.lengths.sum, one.key);
    };
    std::sort(state.adapters.begin(), state.adapters.end(),
              [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    state.adapters.resize(LengthsState::kAdaptersMost);
  }
  std::sort(state.adapters.begin(), state.adapters.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  return state;
}

void LengthPredictor::put_back(LengthsState&& state) {
  history_.put_back(state.common);
  if (!state.learned.empty()) {
    if (!learned_) learned_.emplace();
    learned_->put_back(state.learned);
  }
  for (const LengthsState::Adapter& one : state.adapters) {
    if (one.key == 0) history_.put_back(AdapterSourceId{}, one.lengths);
    if (one.key != 0) keep(one.key, one.lengths);
  }
  for (const auto& [source, key] : keys_) introduce(source, key);
}

}  // namespace loralei

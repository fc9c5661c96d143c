// SPDX-License-Identifier: Apache-2.0
// LengthPredictor: how long an answer will be, as --predict-length says, and how well
// that was predicted.
//
//   history     OutputLengths: as those of its adapter, and of prompts as long
//   learned     the same, tilted by what the prompt says (LearnedLengths)
//   max-tokens  as long as the request allows
//
// Adapters' sources are numbers of this process. What is kept beyond it (LengthsState) is
// by key_of() the path of an adapter's files. Of an adapter that is gone it stays, for
// when it comes back, among at most kAdaptersKept.
//
// Thread: one. Ownership: of what it has learned. Invariants: a prediction lies within 1
// and what the request allows (0 where that is 0). No failure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "base/ids.h"
#include "sched/learned_lengths.h"
#include "sched/lengths_state.h"
#include "sched/output_lengths.h"

namespace loralei {

enum class LengthPrediction : uint8_t { kHistory, kLearned, kMaxTokens };
inline constexpr size_t kLengthPredictions = 3;
inline constexpr std::array<const char*, kLengthPredictions> kLengthPredictionNames = {"history", "learned",
                                                                                       "max-tokens"};

// How far predictions lay from the lengths of answers that ended by themselves.
struct LengthErrors {
  static constexpr std::array<double, 6> kLimits = {0.25, 0.5, 1, 2, 3, 4};  // |log2(predicted / true)|
  std::array<uint64_t, kLimits.size() + 1> counts{};                         // the last: above all limits
  double sum = 0;
  void add(double predicted, int32_t output);
};

// What was predicted when a request arrived. 0: nothing.
struct ForeseenLength {
  float predicted = 0;
  float history = 0;  // by history, which `learned` is held against
};

// Of one that begins to wait.
struct LengthAsked : OutputLengths::Asked {
  int32_t output_most = 0, output_so_far = 0;
  std::span<const uint16_t> features;  // as features_of() said; borrowed
};

class LengthPredictor {
 public:
  explicit LengthPredictor(LengthPrediction prediction) : prediction_(prediction) {
    if (prediction == LengthPrediction::kLearned) learned_.emplace();
  }

  // Once for a request; empty where prompts say nothing.
  LearnedLengths::Features features_of(AdapterSourceId source, PromptFacts facts) const;
  double predict(const LengthAsked& asked) const;
  ForeseenLength foresee(const LengthAsked& asked) const;
  // An answer of that length ended by itself, or was `cut` there.
  void ended(const LengthAsked& asked, const ForeseenLength& foreseen, int32_t output, bool cut);
  // By kLengthPredictionNames; of `learned` its own and what history would have said.
  const std::array<LengthErrors, kLengthPredictions>& errors() const { return errors_; }
  uint64_t answers() const { return answers_; }  // learned from

  static uint64_t key_of(std::string_view path);  // not 0, which is the base
  void introduce(AdapterSourceId source, uint64_t key);
  void forget(AdapterSourceId source);
  LengthsState state() const;
  void put_back(LengthsState&& state);

  const OutputLengths& history() const { return history_; }

 private:
  double of_history(const LengthAsked& asked) const;
  void keep(uint64_t key, const OutputLengths::Lengths& lengths);

  const LengthPrediction prediction_;
  OutputLengths history_;
  std::optional<LearnedLengths> learned_;  // where it predicts, or was put back
  std::array<LengthErrors, kLengthPredictions> errors_;
  uint64_t answers_ = 0;
  std::unordered_map<AdapterSourceId, uint64_t> keys_;
  std::unordered_map<uint64_t, OutputLengths::Lengths> kept_;  // of adapters that are not there (any more)
};

}  // namespace loralei

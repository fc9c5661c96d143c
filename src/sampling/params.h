// SPDX-License-Identifier: Apache-2.0
// SamplingParams: how one sequence chooses its tokens. A plain value; ranges are
// validated by wire/ (and again by the engine's admission).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace loralei {

struct GrammarProgram;  // sampling/grammar.h
class VocabTrie;        // sampling/grammar.h

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy, ties to the lowest id
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and output
  float presence_penalty = 0.0f;    // over output
  float frequency_penalty = 0.0f;   // over output
  uint64_t seed = 0;                // serve/ draws one when the request names none
  std::vector<std::pair<TokenId, float>> logit_bias;
  // -1: none; n >= 0: the chosen token's and the n most likely ones' (of the unmodified
  // distribution).
  int32_t logprobs = -1;
  std::shared_ptr<const GrammarProgram> grammar;  // null: free
  std::shared_ptr<const VocabTrie> vocab_trie;    // set when grammar is

  bool penalises() const { return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f; }
  // Whether these parameters alone change logits before a token is chosen; a grammar or
  // a minimum length may too.
  bool change_logits() const { return penalises() || !logit_bias.empty(); }
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

}  // namespace loralei

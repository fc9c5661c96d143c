// SPDX-License-Identifier: Apache-2.0
// PromptLookup: drafts for speculative decoding out of the text itself (prompt lookup
// decoding, Saxena 2023): what followed the latest earlier occurrence of the last tokens
// is proposed to follow once more. Answers that quote their prompt (code, summaries,
// tables) and texts that repeat themselves are found; nothing else is needed, no second
// model.
//
// A step looks for the longest run of 2 to 4 last tokens in one backward scan over the
// last kWindow tokens: bounded, a few microseconds beside a pass over all weights, and
// without the memory and upkeep of an index for every sequence.
//
// Thread: the engine's; one object a sequence. Ownership: propose() answers a view of the
// object, good until the next call. No allocation. Invariant: the draft is a guess;
// whether it holds is for the model to say.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/limits.h"

namespace loralei {

class PromptLookup {
 public:
  struct Bounds {
    int32_t tokens_max = 0;         // longest draft
    int32_t vocab = 0;              // ids that may come: below this
    std::span<const TokenId> ends;  // ids that end the text: nothing after them is of use
  };

  static constexpr int32_t kWindow = 8192;

  // Tokens that may come after `text`; empty when its end occurs nowhere before.
  std::span<const TokenId> propose(std::span<const TokenId> text, const Bounds& bounds);
  // What became of the last draft. Drafts grow while they hold and shrink when they do
  // not, so that a text that does not repeat itself costs one row more now and then.
  void learn(int32_t drafted, int32_t accepted);

 private:
  std::array<TokenId, kDraftTokensMax> draft_{};
  int32_t length_ = kDraftTokensMax / 2;  // of the next draft
};

}  // namespace loralei

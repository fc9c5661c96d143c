// SPDX-License-Identifier: Apache-2.0
// TokenBound: how few tokens a text can have, known without cutting it into any.
//
// Thread: a plain value.
// Ownership: none.
// Invariants: never more than encode() gives for that text, whatever is in it: where
// a tokenizer drops characters, or makes one token of any number of them, there is no
// bound. White space that may go, or be taken along by a token, does not count.
// Failure: none.
#pragma once

#include <cstdint>
#include <string_view>

namespace loralei {

struct TokenizerCore;
class AddedTokens;

class TokenBound {
 public:
  TokenBound() = default;  // no bound
  static TokenBound of(const TokenizerCore& core);
  // With tokens that are cut out of the text before the model sees it.
  TokenBound with(const AddedTokens& added) const;

  int64_t least_tokens(std::string_view text) const;

 private:
  int64_t longest_bytes_ = 0;  // of a text that one token may stand for; 0: any number
  int64_t shrinks_ = 1;        // normalising leaves a byte of so many at least
  bool space_counts_ = true;
};

}  // namespace loralei

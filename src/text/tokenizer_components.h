// SPDX-License-Identifier: Apache-2.0
// The components of tokenizer.json (normalizer, pre_tokenizer, decoder,
// post_processor) from JSON.
//
// Thread: pure functions.
// Ownership: plain values.
// Invariants: what they build behaves as the component of the same name in Hugging
// Face tokenizers.
// Failure: any component, option or pattern that is not known is refused by name.
#pragma once

#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/tokenizer_decoder.h"
#include "text/tokenizer_json_read.h"

namespace loralei {

struct SpecialFrame {
  std::vector<TokenId> prefix, suffix;  // what the post-processor puts around the ids
};

// Each takes the value of its key, which may be null.
Result<Normalizer> parse_normalizer(const Json& value);
Result<PreTokenizer> parse_pre_tokenizer(const Json& value);
Result<TokenDecoder> parse_decoder(const Json& value);
Result<SpecialFrame> parse_post_processor(const Json& value);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// Any bytes as a SentencePiece model: a sentence, or a tokenizer whose calls stay inside
// for any text and any ids.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  const auto loaded = Tokenizer::from_sentencepiece({reinterpret_cast<const char*>(data), size});
  if (!loaded.ok()) {
    CHECK(!loaded.error().message.empty());
    return 0;
  }
  const Tokenizer::Ptr& tokenizer = *loaded;
  const auto ids = tokenizer->encode("ab <go>  bab\xC3\xA9\xE2\x96\x81</s>\n\xEF\xBC\xA1 \xF0\x9F\x98\x80");
  if (ids.ok()) {
    for (const TokenId id : *ids) CHECK(!tokenizer->is_hole(id));
    CHECK(is_valid_utf8(tokenizer->decode(*ids)));
  }
  for (TokenId id = -1; id < std::min(tokenizer->vocab_size() + 1, 200); ++id)
    CHECK(is_valid_utf8(tokenizer->token_text(id)));
  return 0;
}

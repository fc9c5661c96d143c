// SPDX-License-Identifier: Apache-2.0
// Any bytes as tokenizer.json: a sentence, or a tokenizer whose calls stay inside for
// any text and any ids.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto loaded = Tokenizer::from_json(file, file);
  if (!loaded.ok()) {
    CHECK(!loaded.error().message.empty());
    return 0;
  }
  const Tokenizer::Ptr& tokenizer = *loaded;
  constexpr std::string_view kText =
      "ab <s>Hello  world\n\xC3\xA9\xE2\x96\x81 123 don't \xF0\x9F\x98\x80</s> e\xCC\x81!";
  for (const bool special : {false, true}) {
    const auto ids = tokenizer->encode(kText, {.add_special = special, .parse_special = special});
    if (!ids.ok()) continue;
    for (const TokenId id : *ids) CHECK(!tokenizer->is_hole(id) || special);
    CHECK(is_valid_utf8(tokenizer->decode(*ids, {.skip_special = !special})));
  }
  StreamDecoder stream(tokenizer, StreamDecoder::Mode::kTextStart);
  for (TokenId id = -1; id < std::min(tokenizer->vocab_size() + 1, 200); ++id) {
    CHECK(is_valid_utf8(stream.push(id)));
    CHECK(is_valid_utf8(tokenizer->token_text(id)));
  }
  CHECK(is_valid_utf8(stream.flush()));
  return 0;
}

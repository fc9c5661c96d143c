// SPDX-License-Identifier: Apache-2.0
// Any bytes as a schema (with a first byte of '~' one that may be left open, with '/'
// a regular expression); what compiles is walked with a small vocabulary: every allowed
// token must be taken, and the mask must agree with asking for each token.
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "schema/json_schema.h"

namespace {

std::shared_ptr<const loralei::VocabTrie> small_vocabulary() {
  std::vector<loralei::GrammarToken> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back({byte, std::string(1, static_cast<char>(byte)), loralei::GrammarToken::Kind::kText});
  const char* longer[] = {"{\"", "\":", "\", \"", "\"}", "true", "null", " \n",
                          "10",  "0.5", "[[",     "]]",  "abc",  "\\u00"};
  for (const char* text : longer)
    tokens.push_back({static_cast<int32_t>(tokens.size()), text, loralei::GrammarToken::Kind::kText});
  tokens.push_back({static_cast<int32_t>(tokens.size()), "", loralei::GrammarToken::Kind::kEnd});
  const auto size = static_cast<int64_t>(tokens.size());
  return loralei::VocabTrie::build(std::move(tokens), size).value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  static const auto vocabulary = small_vocabulary();
  if (size == 0 || size > 65536) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  LeftOpen left_open;
  const auto program = text[0] == '/'   ? compile_regex(text.substr(1))
                       : text[0] == '~' ? compile_json_schema(text.substr(1), {}, SchemaReading::kOpen, &left_open)
                                        : compile_json_schema(text);
  CHECK(left_open.places.size() <= kMaxPlacesLeftOpen);
  if (!program.ok()) return 0;
  GrammarState state(program.value(), vocabulary);
  std::vector<uint32_t> mask(vocabulary->mask_words());
  uint64_t random = size * 0x9e3779b97f4a7c15ULL + data[size / 2];
  for (int step = 0; step < 24; ++step) {
    if (!state.fill_mask(mask)) break;
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary->vocab_size(); ++id) {
      const bool in_mask = (mask[id / 32] >> (id % 32) & 1) != 0;
      if (step % 8 == 0) CHECK(in_mask == state.allows(id));
      if (in_mask) allowed.push_back(id);
    }
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    CHECK(state.advance(allowed[(random >> 33) % allowed.size()]));
    if (step == 12) CHECK(state.rollback(2) && state.fill_mask(mask));
  }
  return 0;
}

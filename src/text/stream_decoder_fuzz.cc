// SPDX-License-Identifier: Apache-2.0
// Bytes as token ids and as text parts: streaming never emits invalid UTF-8 and agrees
// with decoding the whole; a stop matcher emits what a search of the whole text finds.
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/stop_strings.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace {

using namespace loralei;

Tokenizer::Ptr make_tokenizer(bool byte_level) {
  std::string vocab, decoder = R"({"type": "ByteLevel"})";
  const auto add = [&](const std::string& piece) {
    static int id = 0;
    if (vocab.empty()) id = 0;
    vocab += (vocab.empty() ? "\"" : ", \"") + piece + "\": " + std::to_string(id++);
  };
  if (byte_level) {
    for (const char* piece :
         {"a", "\xC4\xA0", "\xC3\xB0", "\xC5\x81", "\xC4\xBA", "\xC4\xA2", "\xC3\x83", "\xC2\xA9", "\xC3\xBF"})
      add(piece);
  } else {
    for (const char* piece : {"a", "\xE2\x96\x81",
                              "\xE2\x96\x81"
                              "b",
                              "<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"})
      add(piece);
    decoder = R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";
  }
  auto tokenizer = Tokenizer::from_json("{\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {" + vocab +
                                        "}}, \"decoder\": " + decoder + "}");
  CHECK(tokenizer.ok());
  return *tokenizer;
}

void check_stream(const Tokenizer::Ptr& tokenizer, const std::vector<TokenId>& ids, bool exact) {
  StreamDecoder stream(tokenizer, StreamDecoder::Mode::kTextStart);
  std::string text;
  for (const TokenId id : ids) {
    const std::string part = stream.push(id);
    CHECK(is_valid_utf8(part));
    text += part;
  }
  text += stream.flush();
  const std::string whole = tokenizer->decode(ids);
  CHECK(is_valid_utf8(whole));
  if (exact || whole.find(kReplacementUtf8) == std::string::npos) CHECK(text == whole);
}

void check_stops(const uint8_t* data, size_t size) {
  const size_t stop_length = 1 + data[0] % 4;
  if (size < 1 + stop_length) return;
  const std::string stop(reinterpret_cast<const char*>(data) + 1, stop_length);
  const std::string text(reinterpret_cast<const char*>(data) + 1 + stop_length, size - 1 - stop_length);
  StopMatcher matcher(compile_stop_strings({stop}), false);
  std::string out;
  for (size_t at = 0; at < text.size(); at += 3) out += matcher.push(std::string_view(text).substr(at, 3)).text;
  out += matcher.flush();
  CHECK(out == text.substr(0, text.find(stop)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer::Ptr byte_level = make_tokenizer(true), spm = make_tokenizer(false);
  if (size == 0 || size > 4096) return 0;
  std::vector<TokenId> ids;
  for (size_t i = 0; i < size; ++i) ids.push_back(static_cast<TokenId>(data[i] % 11) - 1);
  check_stream(byte_level, ids, true);
  check_stream(spm, ids, false);
  check_stops(data, size);
  return 0;
}

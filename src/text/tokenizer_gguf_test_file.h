// SPDX-License-Identifier: Apache-2.0
// Test helper: the tokenizer.ggml.* metadata of a trusted GGUF v3 file as a GgufVocab, so that this room's tests need no
// other reader. Thread: pure. Ownership: plain values. Invariants: none. Failure: a std::out_of_range on a damaged file.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "formats/gguf_vocab.h"

namespace loralei::test {

class GgufVocabReader {
 public:
  explicit GgufVocabReader(std::string bytes) : bytes_(std::move(bytes)) {}

  GgufVocab read() {
    at_ = 16;
    const auto pairs = number<uint64_t>();
    for (uint64_t i = 0; i < pairs; ++i) {
      const std::string key = text();
      value(key, number<uint32_t>());
    }
    return std::move(vocab_);
  }

 private:
  template <typename T>
  T number() {
    T out;
    std::memcpy(&out, bytes_.substr(at_, sizeof(T)).data(), sizeof(T));
    at_ += sizeof(T);
    return out;
  }
  std::string text() {
    const auto length = number<uint64_t>();
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }

  // One value of a scalar type as a double, or a string.
  void scalar(uint32_t type, double& out, std::string& out_text) {
    switch (type) {
      case 0: out = number<uint8_t>(); break;
      case 1: out = number<int8_t>(); break;
      case 2: out = number<uint16_t>(); break;
      case 3: out = number<int16_t>(); break;
      case 4: out = number<uint32_t>(); break;
      case 5: out = number<int32_t>(); break;
      case 6: out = number<float>(); break;
      case 7: out = number<uint8_t>(); break;
      case 8: out_text = text(); break;
      case 10: out = static_cast<double>(number<uint64_t>()); break;
      case 11: out = static_cast<double>(number<int64_t>()); break;
      default: out = number<double>(); break;
    }
  }

  void value(const std::string& key, uint32_t type) {
    double out = 0;
    std::string out_text;
    if (type != 9) {
      scalar(type, out, out_text);
      set(key, out, out_text);
      return;
    }
    const auto member = number<uint32_t>();
    const auto count = number<uint64_t>();
    for (uint64_t i = 0; i < count; ++i) {
      scalar(member, out, out_text);
      if (key == "tokenizer.ggml.tokens") vocab_.tokens.push_back(out_text);
      if (key == "tokenizer.ggml.merges") vocab_.merges.push_back(out_text);
      if (key == "tokenizer.ggml.scores") vocab_.scores.push_back(static_cast<float>(out));
      if (key == "tokenizer.ggml.token_type") vocab_.types.push_back(static_cast<int32_t>(out));
    }
  }

  void set(const std::string& key, double value, const std::string& text) {
    const auto number = static_cast<int>(value);
    if (key == "tokenizer.ggml.model") vocab_.model = text;
    if (key == "tokenizer.ggml.pre") vocab_.pre = text;
    if (key == "tokenizer.chat_template") vocab_.chat_template = text;
    if (key == "tokenizer.ggml.bos_token_id") vocab_.bos = number;
    if (key == "tokenizer.ggml.eos_token_id") vocab_.eos = number;
    if (key == "tokenizer.ggml.unknown_token_id") vocab_.unk = number;
    if (key == "tokenizer.ggml.padding_token_id") vocab_.pad = number;
    if (key == "tokenizer.ggml.add_bos_token") vocab_.add_bos = number;
    if (key == "tokenizer.ggml.add_eos_token") vocab_.add_eos = number;
    if (key == "tokenizer.ggml.add_space_prefix") vocab_.add_space_prefix = number;
  }

  std::string bytes_;
  size_t at_ = 0;
  GgufVocab vocab_;
};

}  // namespace loralei::test

// SPDX-License-Identifier: Apache-2.0
// GgufVocab: the tokenizer.ggml.* metadata of a GGUF file as plain values; formats/ fills
// it, text/ builds a tokenizer from it. Bounds are checked by the reader: every id below
// lies in [0, tokens.size()) or is -1 (absent).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace loralei {

// Values of tokenizer.ggml.token_type.
enum class GgufTokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct GgufVocab {
  std::string model;                // "llama" (SentencePiece), "gpt2" (byte-level BPE), ...
  std::string pre;                  // pre-tokeniser name: "default", "llama-bpe", "qwen2", "gpt-2", ...
  std::vector<std::string> tokens;  // [vocab]
  std::vector<float> scores;        // [vocab] or empty
  std::vector<int32_t> types;       // [vocab] GgufTokenType or empty
  std::vector<std::string> merges;  // "a b", in rank order; empty for SentencePiece
  int32_t bos = -1, eos = -1, unk = -1, sep = -1, pad = -1;
  std::vector<int32_t> ends;  // generation ends at these: eos, what other keys name, what is known by its text
  int add_bos = -1;           // -1 not stated, 0 false, 1 true
  int add_eos = -1;
  int add_space_prefix = -1;
  bool remove_extra_whitespaces = false;
  std::string chat_template, tool_template;  // empty if absent
};

}  // namespace loralei

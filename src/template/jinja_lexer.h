// SPDX-License-Identifier: Apache-2.0
// Template text to tokens, with the whitespace rules that transformers sets: trim_blocks
// and lstrip_blocks on, the last newline dropped, "-" and "+" signs at tags.
//
// Thread: a pure function. Fails with invalid_argument and the line for an unclosed tag,
// string or comment.
// Source: jinja2's lexer.py (3.1).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loralei::jinja {

enum class TokenKind : unsigned char {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // data, name, operator; a string's value; a number's digits without underscores
};

Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace loralei::jinja

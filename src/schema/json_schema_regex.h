// SPDX-License-Identifier: Apache-2.0
// Regular expressions to automata over code points: the part of ECMAScript's syntax that
// describes regular languages.
//
// Supported: characters, ., classes, \d \w \s and their opposites, escapes, groups (also
// named and non-capturing), alternation, * + ? {m,n} (lazy ones mean the same), ^ and $
// at the outer ends of an alternative.
// Refused by name (invalid_argument): look-around, back-references, word boundaries, \p,
// flags, anchors elsewhere.
// Thread: pure function.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "schema/json_schema_chars.h"

namespace loralei::schema {

enum class RegexMode : unsigned char {
  kSearch,
  kWhole
};  // JSON Schema's pattern matches anywhere; guided_regex wholly

Result<CharAutomaton> parse_regex(std::string_view pattern, RegexMode mode);

}  // namespace loralei::schema

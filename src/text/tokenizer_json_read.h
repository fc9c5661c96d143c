// SPDX-License-Identifier: Apache-2.0
// Reading JSON files of a tokenizer: bounded parsing and typed look-ups whose
// errors name the key.
//
// Thread: pure functions.
// Ownership: plain values.
// Invariants: a parsed value is at most kMaxJsonDepth deep.
// Failure: text that is too large, too deep or not JSON; a key with another type
// than asked for. A missing key or null is the default; that a key is required is for
// the caller to say.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "formats/json_util.h"
#include "sys/file.h"
#include "text/json_members.h"

namespace loralei {

Result<Json> parse_tokenizer_json(std::string_view text, const std::string& name);
// The bytes of a file of at most `limit_bytes`; nullopt when there is none.
// `take`: its memory.
Result<std::optional<std::string>> read_optional_file(const FileSystem& files, const std::string& path,
                                                      int64_t limit_bytes, const TakeMemory& take = {});

// `fallback` when the key is missing or null (json_find of formats/json_util.h).
Result<bool> field_bool(const Json& object, const char* key, bool fallback);
Result<std::string> field_string(const Json& object, const char* key, std::string_view fallback);
Result<int64_t> field_int(const Json& object, const char* key, int64_t fallback);
// The "type" of a component, which must be there.
Result<std::string> field_type(const Json& component, const char* what);
// A single code point.
Result<char32_t> field_char(const Json& object, const char* key, char32_t fallback);
// An error that names a component which is not supported.
Error refuse_component(const char* what, const std::string& name);

}  // namespace loralei

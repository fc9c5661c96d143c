// SPDX-License-Identifier: Apache-2.0
// Small helpers around nlohmann-json for the readers of this room (and adapter configs):
// bounded parsing, typed lookups.
//
// Pure functions, any thread. No exception leaves them; text is refused beyond the given
// size, beyond kMaxJsonDepth, and when it is not JSON. Of a key that stands twice in
// one object the last value counts, as in Python's json module, which wrote these files.
// A JSON null counts as an absent key in every lookup.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace loralei {

using Json = nlohmann::json;

// Whether brackets outside of strings nest beyond kMaxJsonDepth, read before parsing:
// the library's parser does not recurse, but copying and printing a value does.
bool json_too_deep(std::string_view text);

// `place` names the file in messages. The value is an object (the only top level
// these files have).
Result<Json> parse_json_object(std::string_view text, const std::string& place, int64_t bytes_max);

// The value of `key`, or null when it is absent or a JSON null.
const Json* json_find(const Json& object, const char* key);

// At most 80 characters of the value's JSON, for messages.
std::string json_brief(const Json& value);

// Each answers nullopt for an absent key and an error that names place, key and value for
// one of the wrong type or range.
Result<std::optional<int64_t>> json_int(const Json& object, const char* key, int64_t low, int64_t high,
                                        const std::string& place);
Result<std::optional<double>> json_number(const Json& object, const char* key, const std::string& place);
// Above 0; an absent key is `fallback`.
Result<double> json_positive(const Json& object, const char* key, double fallback, const std::string& place);
Result<std::optional<bool>> json_bool(const Json& object, const char* key, const std::string& place);
Result<std::optional<std::string>> json_string(const Json& object, const char* key, const std::string& place);
// One string or a list of them.
Result<std::optional<std::vector<std::string>>> json_strings(const Json& object, const char* key,
                                                             const std::string& place);
// One whole number or a list of them, each within [low, high].
Result<std::optional<std::vector<int64_t>>> json_ints(const Json& object, const char* key, int64_t low, int64_t high,
                                                      const std::string& place);

}  // namespace loralei

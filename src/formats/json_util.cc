// SPDX-License-Identifier: Apache-2.0
#include "formats/json_util.h"

#include <cmath>
#include <exception>

#include "base/limits.h"
#include "base/units.h"
#include "formats/foreign_files.h"

namespace loralei {

namespace {

Error wrong(const std::string& place, const char* key, const Json& value, const std::string& wanted) {
  return corrupt(place + ": the value of \"" + key + "\" must be " + wanted + ", but it is " + json_brief(value));
}

// Whole numbers only; a real number such as 4096.0 is one as well.
std::optional<int64_t> whole(const Json& value, int64_t low, int64_t high) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  }
  int64_t number = 0;
  if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const double real = value.get<double>();
    if (!(std::abs(real) < 9.0e15) || real != std::floor(real)) return std::nullopt;
    number = static_cast<int64_t>(real);
  } else {
    return std::nullopt;
  }
  if (number < low || number > high) return std::nullopt;
  return number;
}

std::string range_text(int64_t low, int64_t high) {
  return "between " + std::to_string(low) + " and " + std::to_string(high);
}

}  // namespace

bool json_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
      continue;
    }
    if (c == '"')
      in_string = true;
    else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

Result<Json> parse_json_object(std::string_view text, const std::string& place, int64_t bytes_max) {
  if (static_cast<int64_t>(text.size()) > bytes_max) {
    return too_large(place + ": holds " + format_bytes(static_cast<int64_t>(text.size())) + " of JSON; at most " +
                     format_bytes(bytes_max) + " are read");
  }
  if (is_lfs_pointer(text)) return lfs_pointer_error(place);
  if (json_too_deep(text)) {
    return corrupt(place + ": its JSON is nested more than " + std::to_string(kMaxJsonDepth) + " deep");
  }
  try {
    Json value = Json::parse(text);
    if (!value.is_object()) return corrupt(place + ": its JSON is not an object ({...})");
    return value;
  } catch (const std::exception& failure) {
    return corrupt(place +
                   ": is not valid JSON: " + std::string(failure.what()).substr(0, 200));  // it repeats what was read
  }
}

const Json* json_find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string json_brief(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

Result<std::optional<int64_t>> json_int(const Json& object, const char* key, int64_t low, int64_t high,
                                        const std::string& place) {
  const Json* value = json_find(object, key);
  if (!value) return std::optional<int64_t>();
  const auto number = whole(*value, low, high);
  if (!number) return wrong(place, key, *value, "a whole number " + range_text(low, high));
  return number;
}

Result<std::optional<double>> json_number(const Json& object, const char* key, const std::string& place) {
  const Json* value = json_find(object, key);
  if (!value) return std::optional<double>();
  if (!value->is_number() || !std::isfinite(value->get<double>())) return wrong(place, key, *value, "a number");
  return std::optional<double>(value->get<double>());
}

Result<double> json_positive(const Json& object, const char* key, double fallback, const std::string& place) {
  TRY_ASSIGN(const auto value, json_number(object, key, place));
  if (value && !(*value > 0))
    return corrupt(place + ": \"" + key + "\" must be above 0, but it is " + std::to_string(*value));
  return value.value_or(fallback);
}

Result<std::optional<bool>> json_bool(const Json& object, const char* key, const std::string& place) {
  const Json* value = json_find(object, key);
  if (!value) return std::optional<bool>();
  if (!value->is_boolean()) return wrong(place, key, *value, "true or false");
  return std::optional<bool>(value->get<bool>());
}

Result<std::optional<std::string>> json_string(const Json& object, const char* key, const std::string& place) {
  const Json* value = json_find(object, key);
  if (!value) return std::optional<std::string>();
  if (!value->is_string()) return wrong(place, key, *value, "a string");
  return std::optional<std::string>(value->get<std::string>());
}

Result<std::optional<std::vector<std::string>>> json_strings(const Json& object, const char* key,
                                                             const std::string& place) {
  const Json* value = json_find(object, key);
  if (!value) return std::optional<std::vector<std::string>>();
  std::vector<std::string> strings;
  if (value->is_string()) {
    strings.push_back(value->get<std::string>());
  } else {
    if (!value->is_array()) return wrong(place, key, *value, "a string or a list of strings");
    for (const Json& item : *value) {
      if (!item.is_string()) return wrong(place, key, *value, "a string or a list of strings");
      strings.push_back(item.get<std::string>());
    }
  }
  return std::optional<std::vector<std::string>>(std::move(strings));
}

Result<std::optional<std::vector<int64_t>>> json_ints(const Json& object, const char* key, int64_t low, int64_t high,
                                                      const std::string& place) {
  const Json* value = json_find(object, key);
  if (!value) return std::optional<std::vector<int64_t>>();
  const std::string wanted = "a whole number or a list of whole numbers, each " + range_text(low, high);
  std::vector<int64_t> numbers;
  const auto take = [&](const Json& item) {
    const auto number = whole(item, low, high);
    if (number) numbers.push_back(*number);
    return number.has_value();
  };
  if (value->is_array()) {
    for (const Json& item : *value) {
      if (!take(item)) return wrong(place, key, *value, wanted);
    }
  } else if (!take(*value)) {
    return wrong(place, key, *value, wanted);
  }
  return std::optional<std::vector<int64_t>>(std::move(numbers));
}

}  // namespace loralei

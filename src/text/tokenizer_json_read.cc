// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_json_read.h"

#include "base/limits.h"
#include "base/utf8.h"
#include "formats/foreign_files.h"
#include "formats/json_util.h"

namespace loralei {

namespace {

Error wrong_type(const char* key, const char* wanted) {
  return corrupt(std::string("the key '") + key + "' of the tokenizer must be " + wanted);
}

}  // namespace

Result<Json> parse_tokenizer_json(std::string_view text, const std::string& name) {
  if (static_cast<int64_t>(text.size()) > kMaxJsonBytes) {
    return too_large(name + " has " + format_bytes(static_cast<int64_t>(text.size())) + ", but at most " +
                     format_bytes(kMaxJsonBytes) + " are read");
  }
  if (json_too_deep(text)) return corrupt(name + " is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return corrupt(name + " is not valid JSON: it is damaged or cut");
  if (!value.is_object()) return corrupt(name + " is not a JSON object");
  return value;
}

Result<std::optional<std::string>> read_optional_file(const FileSystem& files, const std::string& path,
                                                      int64_t limit_bytes, const TakeMemory& take) {
  auto file = files.open(path);
  if (!file.ok() && file.error().code == ErrorCode::kNotFound) return std::optional<std::string>();
  if (!file.ok()) return std::move(file).error();
  // What is asked for is what read_all() allocates: the size does not change while
  // the file is open.
  const int64_t size_bytes = (*file)->size_bytes();
  if (take && size_bytes <= limit_bytes) TRY(take(size_bytes));
  TRY_ASSIGN(std::string text, read_all(**file, limit_bytes));
  if (is_lfs_pointer(text)) return lfs_pointer_error(path);
  return std::optional<std::string>(std::move(text));
}

Result<bool> field_bool(const Json& object, const char* key, bool fallback) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return wrong_type(key, "true or false");
  return value->get<bool>();
}

Result<std::string> field_string(const Json& object, const char* key, std::string_view fallback) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) return wrong_type(key, "a string");
  return value->get<std::string>();
}

Result<int64_t> field_int(const Json& object, const char* key, int64_t fallback) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_number_integer()) return wrong_type(key, "an integer");
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return wrong_type(key, "smaller");
  return value->get<int64_t>();
}

Result<std::string> field_type(const Json& component, const char* what) {
  if (!component.is_object()) return corrupt(std::string("the ") + what + " of the tokenizer is not an object");
  TRY_ASSIGN(std::string type, field_string(component, "type", ""));
  if (type.empty()) return corrupt(std::string("a ") + what + " of the tokenizer has no type");
  return type;
}

Result<char32_t> field_char(const Json& object, const char* key, char32_t fallback) {
  std::string standard;
  utf8_append(standard, fallback);
  TRY_ASSIGN(const std::string text, field_string(object, key, standard));
  if (text.empty()) return wrong_type(key, "one character");
  const Utf8Step step = utf8_step(text, 0);
  if (!step.valid || static_cast<size_t>(step.length) != text.size()) return wrong_type(key, "one character");
  return step.code_point;
}

Error refuse_component(const char* what, const std::string& name) {
  return unsupported(std::string("the tokenizer uses the ") + what + " '" + name.substr(0, 100) +
                     "', which is not supported");
}

}  // namespace loralei

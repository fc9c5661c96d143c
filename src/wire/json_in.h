// SPDX-License-Identifier: Apache-2.0
// JsonReader: one JSON object's fields with types and ranges checked. Private to wire/:
// the only header that knows the JSON library.
//
// Thread: one at a time.
// Ownership: borrows the tree, which outlives it.
// Invariants: the first thing that is wrong is kept, everything after it is read as
// absent, so that a parse function reads all fields in a row and asks once at the end.
// Failure: error().
#pragma once

#include <climits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wire/errors.h"

namespace loralei {

// Ordered: the keys of a tool or schema reach the template and the grammar in the order
// in which the client wrote them.
using OrderedJson = nlohmann::ordered_json;

ApiError invalid_field(std::string param, std::string message, std::string code = "invalid_value");
// Strict JSON with an object at its root: valid UTF-8, no lone surrogates, depth at most
// kMaxJsonDepth, at most kMaxJsonMembers in one object, at most kMaxJsonValues in all but
// numbers and the like.
Parsed<OrderedJson> parse_json_object(std::string_view body);
Parsed<OrderedJson> parse_json_array(std::string_view body);  // the same with an array at its root
// What a text holds, found by counting brackets and commas outside strings before a
// parser builds anything.
struct JsonShape {
  // A sentence about what is too much, or nothing: writers and many users are recursive,
  // and ordered objects are slow when large.
  std::string too_complex;
  int64_t parse_bytes = 0;            // memory that parse_json_object() takes at most
  std::vector<uint32_t> array_sizes;  // in the order of their beginnings
};
JsonShape shape_of_json(std::string_view json);
// The sentence alone, of a text inside a text.
inline std::string too_complex(std::string_view json) { return shape_of_json(json).too_complex; }
std::string compact_json(const OrderedJson& value);
const char* json_type_name(const OrderedJson& value);

class JsonReader {
 public:
  // `path` is put before field names in errors, e.g. "messages[3].".
  explicit JsonReader(const OrderedJson& object, std::string path = {}) : object_(object), path_(std::move(path)) {}

  bool failed() const { return error_.has_value(); }
  const ApiError& error() const { return *error_; }
  void fail(std::string_view field, std::string message, std::string code = "invalid_value");
  void adopt(const ApiError& error) {
    if (!error_) error_ = error;
  }
  std::string path_of(std::string_view field) const { return path_ + std::string(field); }

  // The value, nullptr when absent or null, or after an error.
  const OrderedJson* find(std::string_view field) const;
  const OrderedJson* find_array(std::string_view field, size_t max_items);
  const OrderedJson* find_object(std::string_view field);

  std::optional<std::string> string(std::string_view field, size_t max_bytes = SIZE_MAX);
  std::string required_string(std::string_view field, size_t max_bytes = SIZE_MAX);
  std::optional<bool> boolean(std::string_view field);
  std::optional<double> real(std::string_view field, double low, double high);
  std::optional<int64_t> integer(std::string_view field, int64_t low, int64_t high);

  // Of a value found otherwise; `field` is for the message.
  std::optional<int64_t> as_integer(const OrderedJson& value, std::string_view field, int64_t low, int64_t high);
  std::optional<double> as_real(const OrderedJson& value, std::string_view field, double low, double high);

 private:
  const OrderedJson& object_;
  const std::string path_;
  std::optional<ApiError> error_;
};

// Sorts every field of `object`: read by the route (in `known`), in the table, or unknown
// (appended to `unknown`, behind the reader's path).
void check_fields(JsonReader& reader, const OrderedJson& object, std::initializer_list<std::string_view> known,
                  std::vector<std::string>& unknown);
// Every name once.
void note_unknown(std::vector<std::string>& unknown, std::string name);

}  // namespace loralei

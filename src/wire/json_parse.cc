// SPDX-License-Identifier: Apache-2.0
// A body as a tree, in memory that is known before it is built.
#include <algorithm>

#include "base/limits.h"
#include "wire/json_in.h"
#include "wire/requests.h"

namespace loralei {
namespace {

// What the tree takes, by malloc's sizes: a value lies in its parent's array (sized
// beforehand) or object (which doubles). A string has a block of its own, an object a
// name for each member.
constexpr int64_t kNumberBytes = sizeof(OrderedJson) * 4;  // the library lines values up once more to destroy them
constexpr int64_t kBlockBytes = 32;                        // the least that malloc hands out, and its header
constexpr int64_t kOtherBytes = 3 * (sizeof(OrderedJson) + sizeof(std::string)) + 3 * kBlockBytes;
constexpr int64_t kStringFactor = 2;   // text grows by doubling
constexpr int64_t kLongestFactor = 4;  // the longest also lies in the parser, once as it stands and once as it reads
constexpr int64_t kFixedBytes = 16 * 1024;

// Reads on to the first error only to learn where and what it is.
class ErrorFinder final : public nlohmann::json_sax<OrderedJson> {
 public:
  std::string what;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& failure) override {
    what = std::string(failure.what()).substr(0, 200);  // it repeats what was read
    if (const size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
    return false;
  }
};

// Builds the tree, with arrays as large as they will be and strings moved in.
class TreeBuilder final : public nlohmann::json_sax<OrderedJson> {
 public:
  TreeBuilder(OrderedJson& root, const std::vector<uint32_t>& array_sizes) : root_(root), array_sizes_(array_sizes) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(OrderedJson::object()); }
  bool key(string_t& name) override {
    member_ = &parents_.back()->get_ref<OrderedJson::object_t&>()[std::move(name)];
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override {
    if (next_array_ == array_sizes_.size()) return false;
    OrderedJson array = OrderedJson::array();
    array.get_ref<OrderedJson::array_t&>().reserve(array_sizes_[next_array_++]);
    return open(std::move(array));
  }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool add(OrderedJson value) { return place(std::move(value)) != nullptr; }
  bool open(OrderedJson value) {
    parents_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    parents_.pop_back();
    return true;
  }
  OrderedJson* place(OrderedJson&& value) {
    OrderedJson* const to = parents_.empty() ? &root_ : parents_.back()->is_array() ? &append() : member_;
    *to = std::move(value);
    return to;
  }
  OrderedJson& append() { return parents_.back()->get_ref<OrderedJson::array_t&>().emplace_back(); }

  OrderedJson& root_;
  const std::vector<uint32_t>& array_sizes_;
  size_t next_array_ = 0;
  std::vector<OrderedJson*> parents_;  // stay where they are: nothing grows behind an open child
  OrderedJson* member_ = nullptr;      // of the innermost object, the one named last
};

}  // namespace

JsonShape shape_of_json(std::string_view text) {
  JsonShape shape;
  int depth = 0;
  int64_t strings = 0, others = 0, text_bytes = 0, longest = 0, values = 1;
  bool is_array[kMaxJsonDepth + 1] = {};
  int64_t members[kMaxJsonDepth + 1] = {};
  size_t array_at[kMaxJsonDepth + 1] = {};
  bool is_empty = false;  // nothing has come since the last bracket opened
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
    if (is_empty && c != ']' && c != '}') ++values, members[depth] = 1;
    is_empty = false;
    if (c == '"') {
      const size_t begin = i;
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
      const auto bytes = static_cast<int64_t>(i - begin);
      ++strings;
      text_bytes += bytes;
      longest = std::max(longest, bytes);
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) {
        shape.too_complex = "is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels";
        return shape;
      }
      ++others;
      members[depth] = 0;
      is_array[depth] = c == '[';
      if (is_array[depth]) {
        array_at[depth] = shape.array_sizes.size();
        shape.array_sizes.push_back(0);
      }
      is_empty = true;
    } else if (c == '}' || c == ']') {
      if (depth > 0 && is_array[depth]) shape.array_sizes[array_at[depth]] = static_cast<uint32_t>(members[depth]);
      depth = std::max(0, depth - 1);
    } else if (c == ',') {
      ++values;
      if (++members[depth] > kMaxJsonMembers && depth > 0 && !is_array[depth]) {
        shape.too_complex = "holds an object with more than " + std::to_string(kMaxJsonMembers) + " members";
        return shape;
      }
    }
    if (strings + others > kMaxJsonValues) {
      shape.too_complex = "holds more than " + std::to_string(kMaxJsonValues) +
                          " strings, lists and objects; send several smaller ones";
      return shape;
    }
  }
  shape.parse_bytes = kFixedBytes + values * kNumberBytes + (strings + others) * kOtherBytes +
                      text_bytes * kStringFactor + longest * kLongestFactor;
  return shape;
}

int64_t json_parse_bytes(std::string_view body) { return shape_of_json(body).parse_bytes; }

// That of one string, which a long body mostly is. Others ask for more when
// they are there.
int64_t json_parse_bytes_of_length(int64_t body_bytes) {
  return 2 * kFixedBytes + body_bytes * (kStringFactor + kLongestFactor);
}

namespace {

// `root`: what is needed at the root, "object" or "array".
Parsed<OrderedJson> parse_json(std::string_view body, std::string_view root) {
  if (body.empty())
    return invalid_field({}, "The request body is empty; a JSON " + std::string(root) + " is needed.", "invalid_json");
  // The parser takes a NUL byte for the end of the text.
  if (body.find('\0') != std::string_view::npos)
    return invalid_field({}, "The request body holds a NUL byte, so it is not JSON.", "invalid_json");
  const JsonShape shape = shape_of_json(body);
  if (!shape.too_complex.empty())
    return invalid_field({}, "The request body " + shape.too_complex + ".", "invalid_json");
  OrderedJson value;
  TreeBuilder builder(value, shape.array_sizes);
  if (!OrderedJson::sax_parse(body.begin(), body.end(), &builder)) {
    ErrorFinder finder;
    (void)OrderedJson::sax_parse(body.begin(), body.end(), &finder);
    return invalid_field({}, "The request body is not valid JSON: " + finder.what, "invalid_json");
  }
  if (root == "array" ? !value.is_array() : !value.is_object()) {
    return invalid_field(
        {}, "The request body must be a JSON " + std::string(root) + ", not " + json_type_name(value) + ".",
        "invalid_type");
  }
  return value;
}

}  // namespace

Parsed<OrderedJson> parse_json_object(std::string_view body) { return parse_json(body, "object"); }
Parsed<OrderedJson> parse_json_array(std::string_view body) { return parse_json(body, "array"); }

}  // namespace loralei

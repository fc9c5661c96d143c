// SPDX-License-Identifier: Apache-2.0
#include "template/jinja_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"

namespace loralei {

namespace {

constexpr int64_t kByteWork = 8;    // of the text, taken apart and copied
constexpr int64_t kValueWork = 64;  // a value with its place

// What the parser tells as it goes, put together from the inside outwards.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit Builder(Work& work) : work_(work) {}

  bool null() { return add(JinjaValue::none()); }
  bool boolean(bool value) { return add(JinjaValue(value)); }
  bool number_integer(number_integer_t value) { return add(JinjaValue(static_cast<int64_t>(value))); }
  bool number_unsigned(number_unsigned_t value) {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return add(JinjaValue(static_cast<double>(value)));
    return add(JinjaValue(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t&) { return add(JinjaValue(value)); }
  bool string(string_t& value) { return add(JinjaValue(std::move(value))); }
  bool binary(binary_t&) { return false; }
  bool start_object(size_t) { return open(); }
  bool start_array(size_t) { return open(); }
  bool key(string_t& name) {
    levels_.back().keys.push_back(std::move(name));
    return true;
  }
  bool end_array() {
    JinjaValue list = jinja_list(std::move(levels_.back().values));
    levels_.pop_back();
    return add(std::move(list));
  }
  bool end_object() {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    return add(dict_of(std::move(level.keys), std::move(level.values)));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) { return false; }

  std::optional<Error> error;
  JinjaValue root;

 private:
  struct Level {
    std::vector<std::string> keys;  // of an object, one for each value
    std::vector<JinjaValue> values;
  };

  bool open() {
    levels_.emplace_back();
    return fits_below(levels_.size() - 1);
  }
  bool add(JinjaValue value) {
    if (!work_.spend(kValueWork)) {
      error = work_.error();
      return false;
    }
    if (!fits_below(levels_.size())) return false;
    if (levels_.empty())
      root = std::move(value);
    else
      levels_.back().values.push_back(std::move(value));
    return true;
  }
  bool fits_below(size_t levels) {
    if (levels < static_cast<size_t>(kMaxJsonDepth)) return true;
    error = invalid_argument("JSON nested deeper than " + std::to_string(kMaxJsonDepth) +
                             " levels cannot be given to a chat template");
    return false;
  }
  static JinjaValue dict_of(std::vector<std::string> keys, std::vector<JinjaValue> values) {
    std::map<std::string_view, size_t> places;
    std::vector<std::pair<std::string, JinjaValue>> items;
    items.reserve(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto [place, fresh] = places.emplace(keys[i], items.size());
      if (fresh)
        items.emplace_back(keys[i], std::move(values[i]));
      else
        items[place->second].second = std::move(values[i]);
    }
    return jinja_dict(std::move(items));
  }

  Work& work_;
  std::vector<Level> levels_;
};

}  // namespace

Result<std::optional<JinjaValue>> jinja_from_json_text(std::string_view text, Work& work) {
  if (!work.spend(kByteWork * static_cast<int64_t>(text.size()))) return work.error();
  Builder builder(work);
  const bool whole = nlohmann::json::sax_parse(text, &builder);
  if (builder.error) return *builder.error;
  return whole ? std::optional(std::move(builder.root)) : std::nullopt;
}

}  // namespace loralei

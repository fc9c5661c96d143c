// SPDX-License-Identifier: Apache-2.0
#include "wire/route_facts.h"

#include <array>
#include <climits>
#include <optional>
#include <utility>

#include "wire/generation_fields.h"
#include "wire/json_in.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

constexpr size_t kKeyBytes = 256;
constexpr size_t kValueBytes = 64 * 1024;  // of a field that is parsed; those of clients have a few hundred

// The root object's members one by one: key and value as they stand in the text.
class MemberScan {
 public:
  explicit MemberScan(std::string_view text) : text_(text) {
    space();
    if (!take('{')) failed_ = true;
  }

  // False: there is no more, or what follows is no JSON.
  bool next(std::string_view& key, std::string_view& value) {
    if (failed_ || ended_) return false;
    space();
    if (first_ && take('}')) return end();
    if (!first_ && !take(',')) return take('}') ? end() : fail();
    first_ = false;
    space();
    if (!string(key)) return fail();
    space();
    if (!take(':')) return fail();
    space();
    const size_t begin = at_;
    if (!skip_value()) return fail();
    value = text_.substr(begin, at_ - begin);
    return true;
  }
  bool whole() const { return ended_ && !failed_; }

 private:
  bool fail() {
    failed_ = true;
    return false;
  }
  bool end() {
    space();
    ended_ = true;
    failed_ = at_ != text_.size();
    return false;
  }
  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  // Behind its opening quote and its closing one.
  bool string(std::string_view& inside) {
    if (!take('"')) return false;
    const size_t begin = at_;
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == '"') {
        inside = text_.substr(begin, at_ - begin);
        ++at_;
        return true;
      }
    }
    at_ = text_.size();
    return false;
  }
  // To the comma or bracket behind it. What stands inside brackets is not looked at.
  bool skip_value() {
    int64_t depth = 0;
    const size_t begin = at_;
    std::string_view ignored;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        if (!string(ignored)) return false;
        continue;
      }
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']' || c == ',') {
        if (depth == 0) return at_ > begin;
        if (c != ',') --depth;
      }
      ++at_;
    }
    return false;
  }

  const std::string_view text_;
  size_t at_ = 0;
  bool first_ = true, ended_ = false, failed_ = false;
};

constexpr std::array<std::string_view, 11> kParsed = {
    LORALEI_MODEL_FIELDS, "stream", "max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "n"};
constexpr std::array<std::string_view, 3> kTexts = {"messages", "prompt", "input"};

template <size_t N>
std::optional<size_t> place_of(const std::array<std::string_view, N>& names, std::string_view name) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) return i;
  }
  return std::nullopt;
}

// A key as it is read: clients may write any of its letters as an escape.
std::string key_of(std::string_view spelt) {
  if (spelt.find('\\') == std::string_view::npos || spelt.size() > kKeyBytes) return std::string(spelt);
  const OrderedJson read = OrderedJson::parse('"' + std::string(spelt) + '"', nullptr, false);
  return read.is_string() ? read.get<std::string>() : std::string(spelt);
}

// The members that count, as an object of its own.
std::string object_of(const std::array<std::string_view, kParsed.size()>& values) {
  JsonOut out;
  out.begin_object();
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].empty()) out.key(kParsed[i]).raw(values[i]);
  }
  return out.end_object().take();
}

}  // namespace

RouteFacts read_route_facts(std::string_view body) {
  RouteFacts facts;
  std::array<std::string_view, kParsed.size()> values;
  std::array<std::string_view, kTexts.size()> texts;
  MemberScan scan(body);
  std::string_view spelt, value;
  bool too_long = false;
  while (scan.next(spelt, value)) {
    const std::string key = key_of(spelt);
    if (const auto text = place_of(kTexts, key)) texts[*text] = value;
    const auto parsed = place_of(kParsed, key);
    if (!parsed) continue;
    values[*parsed] = value;
    too_long |= value.size() > kValueBytes;
  }
  for (const std::string_view text : texts) {
    if (facts.text.empty()) facts.text = text;
  }
  if (!scan.whole() || too_long) return facts;
  auto json = parse_json_object(object_of(values));
  if (!json.ok()) return facts;
  JsonReader reader(*json);
  read_model_ref(reader, facts.model);
  facts.stream = reader.boolean("stream").value_or(false);
  for (const char* field : {"max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"}) {
    if (const auto tokens = reader.integer(field, INT_MIN, INT_MAX); tokens && *tokens > 0) facts.max_tokens = *tokens;
  }
  facts.choices = static_cast<int32_t>(reader.integer("n", 1, kMaxChoices).value_or(1));
  facts.readable = !reader.failed();
  return facts;
}

}  // namespace loralei

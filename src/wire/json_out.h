// SPDX-License-Identifier: Apache-2.0
// JsonOut: writes JSON text straight into one string; answers are built token by token,
// so no tree is made.
//
// Thread: one at a time.
// Ownership: owns the text until take().
// Invariants: commas are its own business; strings are always valid UTF-8 in the output:
// each invalid byte sequence becomes one U+FFFD; numbers that JSON cannot say (NaN,
// infinity) become null.
// Failure: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace loralei {

class JsonOut {
 public:
  JsonOut& begin_object() { return open('{'); }
  JsonOut& end_object() { return close('}'); }
  JsonOut& begin_array() { return open('['); }
  JsonOut& end_array() { return close(']'); }
  JsonOut& key(std::string_view name);
  JsonOut& string(std::string_view text);
  JsonOut& string_or_null(std::string_view text) { return text.empty() ? null() : string(text); }
  JsonOut& number(int64_t value);
  JsonOut& number(int value) { return number(static_cast<int64_t>(value)); }
  JsonOut& real(double value);
  JsonOut& real(float value);  // the shortest text that reads back as the same float
  JsonOut& boolean(bool value) { return raw(value ? "true" : "false"); }
  JsonOut& null() { return raw("null"); }
  JsonOut& raw(std::string_view json);  // text that is JSON already

  const std::string& text() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  JsonOut& open(char bracket);
  JsonOut& close(char bracket);
  void separate();
  std::string out_;
  bool need_comma_ = false;
};

// Appends `text` with JSON escapes, without quotes.
void append_json_escaped(std::string& out, std::string_view text);

}  // namespace loralei

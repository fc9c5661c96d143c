// SPDX-License-Identifier: Apache-2.0
// Python's operators on template values. Every function reports errors through the run,
// and has it pay for what it touches before it touches it.
//
// Thread: one render. Nothing is kept. After run.failed() results are undefined
// values and must only be returned on.
// Source: the Python data model; error sentences follow CPython's.
#pragma once

#include <string>
#include <string_view>

#include "template/jinja_ast.h"
#include "template/jinja_value.h"

namespace loralei::jinja {

bool truthy(const JinjaValue& value);
std::string type_name(const JinjaValue& value);  // as Python's errors print it: 'str', 'NoneType' ...

bool equals(JinjaRun& run, const JinjaValue& a, const JinjaValue& b);
// a < b, for numbers, strings and lists; fails for anything else.
bool less(JinjaRun& run, const JinjaValue& a, const JinjaValue& b, const char* op = "<");
bool contains(JinjaRun& run, const JinjaValue& container, const JinjaValue& item);

std::string to_str(JinjaRun& run, const JinjaValue& value);   // str(value); '' for undefined
std::string to_repr(JinjaRun& run, const JinjaValue& value);  // repr(value)

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool has_indent = false;
  std::string indent;  // one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(JinjaRun& run, const JinjaValue& value, const JsonStyle& style);

// op as in Expr::op: + - * / % f (//) p (**).
JinjaValue binary(JinjaRun& run, char op, const JinjaValue& a, const JinjaValue& b);
JinjaValue negate(JinjaRun& run, const JinjaValue& value);
JinjaValue format_percent(JinjaRun& run, const std::string& format, const JinjaValue& arguments);

int64_t length(JinjaRun& run, const JinjaValue& value);
// The elements that iterating gives: list items, dict keys, characters.
std::vector<JinjaValue> elements(JinjaRun& run, const JinjaValue& value);

// What `change` makes of a text in time linear in it, with the tables of Unicode
// where it is not ASCII.
JinjaValue change_text(JinjaRun& run, const std::string& text, std::string (*change)(std::string_view text));

// dict[key]; null when absent, or when the run has ended.
const JinjaValue* find_in(JinjaRun& run, const JinjaDict& dict, std::string_view key);
const JinjaValue* find_in(JinjaRun& run, const JinjaDict& dict, const JinjaValue& key);
// Where `sought` begins in `text`, the first time from `from` on or the last time; npos
// when nowhere. Linear in what is searched, whatever both are, and paid for as far as
// that went. An empty `sought` is found at once.
size_t find_first(JinjaRun& run, std::string_view text, std::string_view sought, size_t from = 0);
size_t find_last(JinjaRun& run, std::string_view text, std::string_view sought);

// value[key] and value.name without the methods (jinja_call.h has those):
// undefined when absent.
JinjaValue get_item(JinjaRun& run, const JinjaValue& value, const JinjaValue& key);
// Each bound is none or an integer.
JinjaValue slice(JinjaRun& run, const JinjaValue& value, const JinjaValue& start, const JinjaValue& stop,
                 const JinjaValue& stride);

}  // namespace loralei::jinja

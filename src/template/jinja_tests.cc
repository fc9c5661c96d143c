// SPDX-License-Identifier: Apache-2.0
// jinja2's tests ("x is NAME"). Those that take no operand stand in one table, the
// others in apply_test.
#include <algorithm>

#include "template/jinja_builtin_names.h"
#include "template/jinja_call.h"
#include "template/jinja_ops.h"
#include "template/jinja_text.h"

namespace loralei::jinja {

using Kind = JinjaValue::Kind;
using Shape = JinjaList::Shape;

namespace {

constexpr std::string_view kPlainTests[] = {
    "boolean", "callable", "defined", "even", "false",    "filter", "float", "integer", "iterable",  "lower",
    "mapping", "none",     "number",  "odd",  "sequence", "string", "test",  "true",    "undefined", "upper"};
constexpr std::string_view kOperandTests[] = {
    "divisibleby", "eq", "==", "equalto", "ge", ">=",       "gt", ">",  "greaterthan",
    "in",          "le", "<=", "lt",      "<",  "lessthan", "ne", "!=", "sameas"};

bool is_odd(JinjaRun& run, const JinjaValue& value) { return truthy(binary(run, '%', value, JinjaValue(2))); }

bool plain_test(JinjaRun& run, const std::string& name, const JinjaValue& value) {
  const Kind kind = value.kind();
  if (name == "defined") return kind != Kind::kUndefined;
  if (name == "undefined") return kind == Kind::kUndefined;
  if (name == "none") return kind == Kind::kNone;
  if (name == "string") return kind == Kind::kString;
  if (name == "mapping") return kind == Kind::kDict;
  if (name == "iterable") {
    return kind == Kind::kString || kind == Kind::kList || kind == Kind::kDict || kind == Kind::kUndefined ||
           kind == Kind::kLoop;
  }
  if (name == "sequence") {
    return kind == Kind::kString || kind == Kind::kDict || kind == Kind::kUndefined ||
           (kind == Kind::kList && value.as_list().is_sequence());
  }
  if (name == "boolean") return kind == Kind::kBool;
  if (name == "true") return kind == Kind::kBool && value.as_bool();
  if (name == "false") return kind == Kind::kBool && !value.as_bool();
  if (name == "integer") return kind == Kind::kInt;
  if (name == "float") return kind == Kind::kFloat;
  if (name == "number") return value.is_number();
  if (name == "callable") return kind == Kind::kCallable || (kind == Kind::kUndefined);
  if (name == "filter") return value.is_string() && is_filter_name(value.as_string());
  if (name == "test") return value.is_string() && is_test_name(value.as_string());
  if (name == "odd") return is_odd(run, value);
  if (name == "even") return !is_odd(run, value);
  Arguments none;
  const JinjaValue text = run.make_string(to_str(run, value));
  return !run.failed() && truthy(call_method(run, text, name == "lower" ? "islower" : "isupper", none));
}

}  // namespace

std::vector<std::string_view> test_names() {
  std::vector<std::string_view> names(std::begin(kPlainTests), std::end(kPlainTests));
  names.insert(names.end(), std::begin(kOperandTests), std::end(kOperandTests));
  return names;
}

bool is_test_name(std::string_view name) {
  return std::find(std::begin(kPlainTests), std::end(kPlainTests), name) != std::end(kPlainTests) ||
         std::find(std::begin(kOperandTests), std::end(kOperandTests), name) != std::end(kOperandTests);
}

bool apply_test(JinjaRun& run, const std::string& name, const JinjaValue& value, const Arguments& arguments) {
  const JinjaRun::Operation operation(run);
  if (!run.step()) return false;
  std::vector<JinjaValue> a;
  if (std::find(std::begin(kPlainTests), std::end(kPlainTests), name) != std::end(kPlainTests)) {
    return bind(run, name, arguments, {}, 0, a) && plain_test(run, name, value);
  }
  if (!is_test_name(name)) {
    run.fail("no test named '" + name + "' is supported");
    return false;
  }
  if (!bind(run, name, arguments, {"other"}, 1, a)) return false;
  if (name == "eq" || name == "==" || name == "equalto") return equals(run, value, a[0]);
  if (name == "ne" || name == "!=") return !equals(run, value, a[0]);
  if (name == "lt" || name == "<" || name == "lessthan") return less(run, value, a[0]);
  if (name == "gt" || name == ">" || name == "greaterthan") return less(run, a[0], value, ">");
  if (name == "le" || name == "<=") return equals(run, value, a[0]) || less(run, value, a[0], "<=");
  if (name == "ge" || name == ">=") return equals(run, value, a[0]) || less(run, a[0], value, ">=");
  if (name == "in") return contains(run, a[0], value);
  if (name == "divisibleby") return !truthy(binary(run, '%', value, a[0]));
  // sameas: identity. Small scalars are one object in Python where they are equal
  // and of one type.
  if (value.kind() != a[0].kind()) return false;
  return value.identity() != nullptr ? value.identity() == a[0].identity() : equals(run, value, a[0]);
}

}  // namespace loralei::jinja

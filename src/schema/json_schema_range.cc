// SPDX-License-Identifier: Apache-2.0
// The keywords of numbers: their bounds and what they are multiples of.
#include <cmath>

#include "schema/json_schema_compiler.h"

namespace loralei::schema {

namespace {

Result<Decimal> decimal_of(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)
    return invalid_argument("a bound of 19 or more digits is not supported");
  if (value.is_number_integer()) return read_decimal(value.get<int64_t>());
  return read_decimal(value.get<double>());
}

}  // namespace

// minimum and maximum with their exclusive forms (numbers, or draft 4's booleans).
Result<NumberRange> SchemaCompiler::read_range(const Json& schema, const std::string& path) {
  NumberRange range;
  for (const bool is_low : {true, false}) {
    const char* plain = is_low ? "minimum" : "maximum";
    const char* exclusive = is_low ? "exclusiveMinimum" : "exclusiveMaximum";
    std::optional<Bound>& bound = is_low ? range.low : range.high;
    for (const char* keyword : {plain, exclusive}) {
      if (!schema.contains(keyword)) continue;
      const Json& value = schema[keyword];
      if (keyword == exclusive && value.is_boolean()) {
        if (bound) bound->exclusive = value.get<bool>();
        continue;
      }
      if (!value.is_number()) return at_path(path, std::string("'") + keyword + "' must be a number");
      Result<Decimal> decimal = decimal_of(value);
      if (!decimal.ok()) {
        if (!leave_open(path, keyword))
          return at_path(path, std::string("'") + keyword + "': " + decimal.error().message);
        continue;
      }
      const Bound fresh{std::move(decimal).value(), keyword == exclusive};
      const int order = bound ? compare(fresh.value, bound->value) : 0;
      const bool tighter = !bound || (is_low ? order > 0 : order < 0) || (order == 0 && fresh.exclusive);
      if (tighter) bound = fresh;
    }
  }
  return range;
}

Status SchemaCompiler::read_multiple(NumberRange& range, bool is_integer, const Json& schema, const std::string& path) {
  if (!schema.contains("multipleOf")) return {};
  const Json& value = schema["multipleOf"];
  if (!value.is_number() || !(value.get<double>() > 0)) return at_path(path, "'multipleOf' must be a number above 0");
  const double step = value.get<double>();
  if (step == 1 && is_integer) return {};
  if (step == std::floor(step) && step < 1e17 && is_writable_multiple(static_cast<int64_t>(step))) {
    range.multiple_of = static_cast<int64_t>(step);
    return {};
  }
  if (leave_open(path, "multipleOf")) return {};
  return at_path(path, "'multipleOf' is supported for whole numbers up to " + std::to_string(kMaxMultiple) +
                           ", also times a power of ten; leave it out, or move what it says into the "
                           "description");
}

}  // namespace loralei::schema

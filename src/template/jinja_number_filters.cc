// SPDX-License-Identifier: Apache-2.0
// Filters of numbers, and those that read or write one as text: int, float,
// filesizeformat.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "template/jinja_filters.h"
#include "template/jinja_ops.h"
#include "template/jinja_text.h"

namespace loralei::jinja {

using Kind = JinjaValue::Kind;

namespace {

// Reads all of `text` as int() or float() do: outer space and underscores between
// digits are allowed.
template <typename Number>
bool read_all(const std::string& text, Number& out, int base) {
  std::string digits = strip(text, true, true);
  size_t kept = 0;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool between = kept > 0 && i + 1 < digits.size() && digits[i + 1] != '_';
    if (digits[i] == '_' && between && std::isxdigit(static_cast<unsigned char>(digits[kept - 1])) != 0) continue;
    digits[kept++] = digits[i];
  }
  digits.resize(kept);
  if (!digits.empty() && digits[0] == '+' && digits.size() > 1 && digits[1] != '-' && digits[1] != '+')
    digits.erase(0, 1);
  if constexpr (std::is_same_v<Number, int64_t>) {
    const size_t sign = !digits.empty() && digits[0] == '-' ? 1 : 0;
    if (digits.size() > sign + 2 && digits[sign] == '0') {
      const char mark = static_cast<char>(digits[sign + 1] | 0x20);
      if ((base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b'))
        digits.erase(sign, 2);
    }
    const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), out, base);
    return done.ec == std::errc() && done.ptr == digits.data() + digits.size();
  } else {
    const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    if (done.ptr != digits.data() + digits.size()) return false;
    // Out of range: strtod knows whether that is zero or infinity.
    if (done.ec == std::errc::result_out_of_range) out = std::strtod(digits.c_str(), nullptr);
    return done.ec != std::errc::invalid_argument;
  }
}

bool float_to_int(double value, int64_t& out) {
  if (!(std::fabs(value) < 9.2e18)) return false;
  out = static_cast<int64_t>(value);
  return true;
}

// Python's round: exact halves go to the even neighbour, judged by the decimal
// text of the value.
double round_decimal(double value, int precision) {
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision < 0) {
    const double power = std::pow(10.0, -precision);
    return std::nearbyint(value / power) * power;
  }
  char buffer[700];
  std::snprintf(buffer, sizeof buffer, "%.*f", precision, value);  // printf rounds exactly, halves to even
  double out = 0;
  std::from_chars(buffer, buffer + std::char_traits<char>::length(buffer), out);
  return out;
}

}  // namespace

JinjaValue filter_int(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "int", arguments, {"default", "base"}, 0, a)) return {};
  if (value.is_undefined()) return run.fail(value.undefined_hint());
  const int64_t base = a[1].is_int() ? a[1].as_int() : 10;
  if (base < 2 || base > 36) return run.fail("the base of int must lie between 2 and 36");
  int64_t result = 0;
  if (value.is_int()) return JinjaValue(value.as_int());
  if (value.kind() == Kind::kFloat && float_to_int(value.as_float(), result)) return JinjaValue(result);
  if (value.is_string()) {
    if (!run.read(6 * value.as_string().size()) || !run.allocate(2 * value.as_string().size())) return {};
    if (read_all(value.as_string(), result, static_cast<int>(base))) return JinjaValue(result);
    double real = 0;
    if (read_all(value.as_string(), real, 10) && float_to_int(real, result)) return JinjaValue(result);
  }
  return a[0].is_undefined() ? JinjaValue(0) : a[0];
}

JinjaValue filter_float(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "float", arguments, {"default"}, 0, a)) return {};
  if (value.is_undefined()) return run.fail(value.undefined_hint());
  double result = 0;
  if (value.is_number()) return JinjaValue(value.as_float());
  if (value.is_string()) {
    if (!run.read(4 * value.as_string().size()) || !run.allocate(value.as_string().size())) return {};
    if (read_all(value.as_string(), result, 10)) return JinjaValue(result);
  }
  return a[0].is_undefined() ? JinjaValue(0.0) : a[0];
}

JinjaValue filter_abs(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  if (value.is_int()) return value.as_int() < 0 ? negate(run, value) : JinjaValue(value.as_int());
  if (value.is_number()) return JinjaValue(std::fabs(value.as_float()));
  return run.fail(value.is_undefined() ? value.undefined_hint()
                                       : "abs needs a number, not a value of type '" + type_name(value) + "'");
}

JinjaValue filter_round(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "round", arguments, {"precision", "method"}, 0, a)) return {};
  if (!value.is_number()) return run.fail("round needs a number, not a value of type '" + type_name(value) + "'");
  const int64_t precision = a[0].is_int() ? std::clamp<int64_t>(a[0].as_int(), -300, 300) : 0;
  const std::string method = a[1].is_string() ? a[1].as_string() : "common";
  if (method == "common") {
    const double rounded = round_decimal(value.as_float(), static_cast<int>(precision));
    return value.is_int()
               ? JinjaValue(static_cast<int64_t>(precision >= 0 ? value.as_int() : static_cast<int64_t>(rounded)))
               : JinjaValue(rounded);
  }
  if (method != "ceil" && method != "floor") return run.fail("the method of round must be common, ceil or floor");
  const double power = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.as_float() * power;
  return JinjaValue((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power);
}

JinjaValue filter_filesizeformat(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "filesizeformat", arguments, {"binary"}, 0, a)) return {};
  if (!value.is_number())
    return run.fail("filesizeformat needs a number, not a value of type '" + type_name(value) + "'");
  const bool is_binary = truthy(a[0]);
  const double base = is_binary ? 1024 : 1000;
  const double bytes = value.as_float();
  if (bytes == 1) return JinjaValue("1 Byte");
  char buffer[400];
  if (bytes < base) {
    std::snprintf(buffer, sizeof buffer, "%.0f Bytes", std::max(-1e300, bytes));
    return run.make_string(buffer);
  }
  static constexpr const char* kUnits[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                               {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
  double unit = base * base;
  int index = 0;
  for (; index < 7 && bytes >= unit; ++index) unit *= base;
  std::snprintf(buffer, sizeof buffer, "%.1f %s", base * bytes / unit, kUnits[is_binary ? 1 : 0][index]);
  return run.make_string(buffer);
}

}  // namespace loralei::jinja

// SPDX-License-Identifier: Apache-2.0
// Arithmetic of template values: Python's int, float, str and list operators, and "%"
// formatting of strings.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/utf8.h"
#include "template/jinja_call.h"
#include "template/jinja_ops.h"
#include "template/jinja_text.h"

namespace loralei::jinja {

using Kind = JinjaValue::Kind;
using Shape = JinjaList::Shape;

namespace {

const char* op_text(char op) {
  return op == 'f'   ? "//"
         : op == 'p' ? "**"
         : op == '+' ? "+"
         : op == '-' ? "-"
         : op == '*' ? "*"
         : op == '/' ? "/"
                     : "%";
}

JinjaValue overflow(JinjaRun& run) { return run.fail("the integer result does not fit into 64 bits"); }

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? quotient - 1 : quotient;
}

JinjaValue int_power(JinjaRun& run, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return run.fail("zero cannot be raised to a negative power");
    return JinjaValue(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return overflow(run);
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow(run);
  }
  return JinjaValue(result);
}

JinjaValue int_binary(JinjaRun& run, char op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case '+':
      return __builtin_add_overflow(a, b, &result) ? overflow(run) : JinjaValue(result);
    case '-':
      return __builtin_sub_overflow(a, b, &result) ? overflow(run) : JinjaValue(result);
    case '*':
      return __builtin_mul_overflow(a, b, &result) ? overflow(run) : JinjaValue(result);
    case 'p':
      return int_power(run, a, b);
    default:
      break;
  }
  if (b == 0) return run.fail("division by zero");
  if (op == '/') return JinjaValue(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {  // INT64_MIN / -1 overflows
    if (op == '%') return JinjaValue(int64_t{0});
    return __builtin_sub_overflow(int64_t{0}, a, &result) ? overflow(run) : JinjaValue(result);
  }
  const int64_t quotient = floor_divide(a, b);
  return JinjaValue(op == 'f' ? quotient : a - quotient * b);
}

JinjaValue float_binary(JinjaRun& run, char op, double a, double b) {
  switch (op) {
    case '+':
      return JinjaValue(a + b);
    case '-':
      return JinjaValue(a - b);
    case '*':
      return JinjaValue(a * b);
    case 'p':
      if (a == 0 && b < 0) return run.fail("zero cannot be raised to a negative power");
      return JinjaValue(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return run.fail("division by zero");
  if (op == '/') return JinjaValue(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && ((b < 0) != (remainder < 0))) remainder += b;
  if (op == '%') return JinjaValue(remainder == 0 ? std::copysign(0.0, b) : remainder);
  const double exact = (a - remainder) / b;
  const double floor = std::floor(exact);
  return JinjaValue(exact - floor > 0.5 ? floor + 1 : floor);
}

JinjaValue repeat(JinjaRun& run, const JinjaValue& value, int64_t count) {
  if (count < 0) count = 0;
  if (value.is_string()) {
    const std::string& text = value.as_string();
    const int64_t size = static_cast<int64_t>(text.size());
    int64_t total = 0;
    if (__builtin_mul_overflow(size, count, &total) || !run.allocate(static_cast<size_t>(total))) {
      return run.fail("a repeated string is too long");
    }
    std::string out;
    out.reserve(total);
    if (!text.empty()) {
      if (!run.touch_values(static_cast<size_t>(count))) return {};
      for (int64_t i = 0; i < count; ++i) out += text;
    }
    return run.make_string(std::move(out));
  }
  const auto& items = value.as_list().items;
  int64_t total = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(items.size()), count, &total) || total > (1 << 24) ||
      !run.allocate_values(static_cast<size_t>(total))) {
    return run.fail("a repeated list is too long");
  }
  std::vector<JinjaValue> out;
  if (!items.empty()) {
    for (int64_t i = 0; i < count; ++i) out.insert(out.end(), items.begin(), items.end());
  }
  return run.make_list(std::move(out), value.as_list().shape);
}

bool is_plain_list(const JinjaValue& value) {
  return value.is_list() && (value.as_list().shape == Shape::kList || value.as_list().shape == Shape::kTuple);
}

}  // namespace

JinjaValue binary(JinjaRun& run, char op, const JinjaValue& a, const JinjaValue& b) {
  const JinjaRun::Operation operation(run);
  if (!run.step()) return {};
  if (a.is_number() && b.is_number()) {
    if (a.is_int() && b.is_int()) return int_binary(run, op, a.as_int(), b.as_int());
    return float_binary(run, op, a.as_float(), b.as_float());
  }
  if (op == '+' && a.is_string() && b.is_string()) {
    if (!run.allocate(a.as_string().size() + b.as_string().size())) return {};
    return run.make_string(a.as_string() + b.as_string());
  }
  if (op == '+' && is_plain_list(a) && is_plain_list(b) && a.as_list().shape == b.as_list().shape) {
    if (!run.allocate_values(a.as_list().items.size() + b.as_list().items.size())) return {};
    std::vector<JinjaValue> items = a.as_list().items;
    items.insert(items.end(), b.as_list().items.begin(), b.as_list().items.end());
    return run.make_list(std::move(items), a.as_list().shape);
  }
  if (op == '*') {
    if ((a.is_string() || is_plain_list(a)) && b.is_int()) return repeat(run, a, b.as_int());
    if ((b.is_string() || is_plain_list(b)) && a.is_int()) return repeat(run, b, a.as_int());
  }
  if (op == '%' && a.is_string()) return format_percent(run, a.as_string(), b);
  if (a.is_undefined()) return run.fail(a.undefined_hint());
  if (b.is_undefined()) return run.fail(b.undefined_hint());
  if (op == '+' && (a.is_string() || b.is_string())) {
    return run.fail("a string and a value of type '" + type_name(a.is_string() ? b : a) +
                    "' cannot be added; use ~ to join them");
  }
  return run.fail(std::string("'") + op_text(op) + "' is not supported between '" + type_name(a) + "' and '" +
                  type_name(b) + "'");
}

JinjaValue negate(JinjaRun& run, const JinjaValue& value) {
  if (value.is_undefined()) return run.fail(value.undefined_hint());
  if (!value.is_number()) return run.fail("'-' is not supported for a value of type '" + type_name(value) + "'");
  if (value.is_int()) return int_binary(run, '-', 0, value.as_int());
  return JinjaValue(-value.as_float());
}

namespace {

constexpr int kMaxFieldWidth = 4096;

// One "%" conversion: flags, width, precision and its letter.
struct Conversion {
  bool left = false, zero = false, sign = false, space = false, alternate = false;
  int width = 0;
  int precision = -1;
  char letter = 's';
};

std::string pad(std::string text, const Conversion& conversion, bool number) {
  const int64_t missing = conversion.width - code_point_count(text);
  if (missing <= 0) return text;
  if (conversion.left) return text + std::string(missing, ' ');
  if (conversion.zero && number) {
    const size_t digits = !text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == ' ') ? 1 : 0;
    return text.insert(digits, std::string(missing, '0'));
  }
  return std::string(missing, ' ') + text;
}

std::string with_sign(std::string digits, bool negative, const Conversion& conversion) {
  if (negative) return "-" + digits;
  return conversion.sign ? "+" + digits : conversion.space ? " " + digits : digits;
}

std::string convert(JinjaRun& run, const Conversion& conversion, const JinjaValue& value) {
  switch (conversion.letter) {
    case 's':
    case 'r':
    case 'a': {
      std::string text = conversion.letter == 's' ? to_str(run, value) : to_repr(run, value);
      if (!run.read(2 * text.size()) || !run.allocate(4 * text.size())) return {};
      if (conversion.precision >= 0) {
        const std::u32string cut = decode_utf8(text).substr(0, conversion.precision);
        text = encode_utf8(cut);
      }
      return pad(std::move(text), conversion, false);
    }
    case 'c':
      if (value.is_string() && run.touch(value.as_string().size()) && code_point_count(value.as_string()) == 1)
        return pad(value.as_string(), conversion, false);
      break;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      if (!value.is_number() || (value.kind() == Kind::kFloat &&
                                 (conversion.letter == 'x' || conversion.letter == 'X' || conversion.letter == 'o'))) {
        break;
      }
      const double real = value.as_float();
      if (value.kind() == Kind::kFloat && !(std::fabs(real) < 9e18)) break;
      const int64_t number = value.is_int() ? value.as_int() : static_cast<int64_t>(real);
      const uint64_t size = number < 0 ? ~static_cast<uint64_t>(number) + 1 : static_cast<uint64_t>(number);
      char buffer[32];
      const char* form = conversion.letter == 'x'   ? "%lx"
                         : conversion.letter == 'X' ? "%lX"
                         : conversion.letter == 'o' ? "%lo"
                                                    : "%lu";
      std::snprintf(buffer, sizeof buffer, form, size);
      std::string digits = buffer;
      if (conversion.precision > static_cast<int>(digits.size()))
        digits.insert(0, conversion.precision - digits.size(), '0');
      if (conversion.alternate && conversion.letter != 'd') digits.insert(0, conversion.letter == 'o' ? "0o" : "0x");
      return pad(with_sign(std::move(digits), number < 0, conversion), conversion, true);
    }
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G': {
      if (!value.is_number()) break;
      const char form[] = {'%', '.', '*', conversion.letter, 0};
      char buffer[512];  // the longest double has 309 digits before the point; the precision is at most 100
      std::snprintf(buffer, sizeof buffer, form, conversion.precision < 0 ? 6 : conversion.precision,
                    std::fabs(value.as_float()));
      return pad(with_sign(buffer, std::signbit(value.as_float()), conversion), conversion, true);
    }
    default:
      run.fail(std::string("the format character '") + conversion.letter + "' is not supported");
      return {};
  }
  run.fail(std::string("%") + conversion.letter + " cannot format a value of type '" + type_name(value) + "'");
  return {};
}

int read_number(const std::string& text, size_t& at) {
  int value = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9')
    value = std::min(value * 10 + (text[at++] - '0'), 1 << 20);
  return value;
}

}  // namespace

JinjaValue format_percent(JinjaRun& run, const std::string& format, const JinjaValue& arguments) {
  const bool is_tuple = arguments.is_list() && arguments.as_list().shape == Shape::kTuple;
  const JinjaRun::Operation operation(run);
  if (!run.read(format.size()) || !run.allocate(format.size())) return {};
  std::string out;
  size_t used = 0;
  const auto next_argument = [&]() -> JinjaValue {
    if (is_tuple) {
      if (used < arguments.as_list().items.size()) return arguments.as_list().items[used++];
    } else if (used++ == 0) {
      return arguments;
    }
    return run.fail("not enough arguments for the format string");
  };
  bool named = false;
  for (size_t at = 0; at < format.size() && !run.failed();) {
    if (format[at] != '%') {
      out += format[at++];
      continue;
    }
    ++at;
    if (!run.step()) return {};  // a conversion
    JinjaValue value;
    bool has_value = false;
    if (at < format.size() && format[at] == '(') {
      const size_t close = format.find(')', at);
      if (close == std::string::npos || !arguments.is_dict())
        return run.fail("a named format needs a dict and a closing ')'");
      const JinjaValue* found =
          find_in(run, arguments.as_dict(), std::string_view(format).substr(at + 1, close - at - 1));
      if (found == nullptr) return run.fail("the format names a key that the dict does not have");
      value = *found;
      has_value = named = true;
      at = close + 1;
    }
    Conversion conversion;
    for (; at < format.size(); ++at) {
      const char c = format[at];
      if (c == '-')
        conversion.left = true;
      else if (c == '0')
        conversion.zero = true;
      else if (c == '+')
        conversion.sign = true;
      else if (c == ' ')
        conversion.space = true;
      else if (c == '#')
        conversion.alternate = true;
      else
        break;
    }
    conversion.width = read_number(format, at);
    if (at < format.size() && format[at] == '.') {
      ++at;
      conversion.precision = read_number(format, at);
    }
    if (at >= format.size()) return run.fail("the format string ends inside a '%'");
    conversion.letter = format[at++];
    if (conversion.width > kMaxFieldWidth || conversion.precision > 100)
      return run.fail("a format width above 4096 or precision above 100 is not supported");
    if (conversion.letter == '%') {
      out += '%';
      continue;
    }
    if (!has_value) value = next_argument();
    const std::string text = convert(run, conversion, value);
    if (!run.allocate(text.size())) return {};
    out += text;
  }
  if (run.failed()) return {};
  const size_t given = is_tuple ? arguments.as_list().items.size() : arguments.is_dict() || named ? used : 1;
  if (used < given) return run.fail("not all arguments were used by the format string");
  return run.make_string(std::move(out));
}

namespace {

// "[[fill]align][sign][#][0][width][.precision][type]" of str.format, as far as the
// conversions of "%" reach.
JinjaValue format_field(JinjaRun& run, const JinjaValue& value, const std::string& spec) {
  if (!run.read(2 * spec.size()) || !run.allocate(6 * spec.size())) return {};
  Conversion conversion;
  conversion.letter = value.is_int() ? 'd' : value.is_number() ? 'g' : 's';
  conversion.left = !value.is_number();
  std::u32string form = decode_utf8(spec);
  size_t at = 0;
  char32_t fill = ' ';
  char32_t align = 0;
  const auto is_align = [](char32_t c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (form.size() > 1 && is_align(form[1])) {
    fill = form[0];
    align = form[1];
    at = 2;
  } else if (!form.empty() && is_align(form[0])) {
    align = form[at++];
  }
  if (at < form.size() && (form[at] == '+' || form[at] == ' ' || form[at] == '-')) {
    conversion.sign = form[at] == '+';
    conversion.space = form[at] == ' ';
    ++at;
  }
  if (at < form.size() && form[at] == '#') conversion.alternate = ++at != 0;
  const std::string rest = encode_utf8(form.substr(at));
  at = 0;
  if (!rest.empty() && rest[0] == '0') conversion.zero = align == 0;
  const int width = read_number(rest, at);
  bool has_type = false;
  if (at < rest.size() && rest[at] == '.') {
    ++at;
    conversion.precision = read_number(rest, at);
    if (value.kind() == Kind::kFloat) has_type = true;
  }
  if (at < rest.size()) {
    conversion.letter = rest[at++];
    has_type = true;
  }
  if (at != rest.size() || width > kMaxFieldWidth || conversion.precision > 100)
    return run.fail("the format '" + spec.substr(0, 80) + "' is not supported");
  std::string text;
  if (conversion.letter == '%' && value.is_number()) {
    conversion.letter = 'f';
    text = convert(run, conversion, JinjaValue(value.as_float() * 100)) + "%";
  } else if (value.kind() == Kind::kFloat && !has_type) {
    text = with_sign(format_float(std::fabs(value.as_float())), std::signbit(value.as_float()), conversion);
  } else {
    if (conversion.zero) conversion.width = width;
    text = convert(run, conversion, value);
  }
  if (run.failed() || !run.touch(text.size())) return {};
  const int64_t missing = width - code_point_count(text);
  if (missing > 0) {
    if (!run.allocate(text.size() + 4 * static_cast<size_t>(missing))) return {};
    std::string padding;
    utf8_append(padding, fill);
    const auto times = [&](int64_t count) {
      std::string out;
      for (int64_t i = 0; i < count; ++i) out += padding;
      return out;
    };
    if (align == 0) align = value.is_number() ? U'>' : U'<';
    if (align == '=') return run.fail("the alignment '=' is not supported");
    const int64_t left = align == '<' ? 0 : align == '>' ? missing : missing / 2;
    text = times(left) + text + times(missing - left);
  }
  return run.make_string(std::move(text));
}

}  // namespace

// Fields "{}", "{0}", "{name}" with an optional "!r" or "!s" and format; attribute paths
// and nested fields are refused.
JinjaValue format_braces(JinjaRun& run, const std::string& text, const Arguments& arguments) {
  const JinjaRun::Operation operation(run);
  if (!run.read(2 * text.size()) || !run.allocate(text.size())) return {};
  std::string out;
  size_t next = 0;
  bool automatic = false;
  bool manual = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '{' && text[at] != '}') {
      out += text[at];
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == text[at]) {
      out += text[at++];
      continue;
    }
    const size_t close = text.find('}', at);
    if (text[at] == '}' || close == std::string::npos) return run.fail("a format string has a single brace");
    if (!run.step() || !run.allocate(3 * (close - at))) return {};
    const std::string field = text.substr(at + 1, close - at - 1);
    const size_t colon = std::min(field.find(':'), field.size());
    const size_t mark = std::min(field.substr(0, colon).find('!'), colon);
    const std::string name = field.substr(0, mark);
    at = close;
    const JinjaValue* value = nullptr;
    const bool number = std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (number) {
      (name.empty() ? automatic : manual) = true;
      if (automatic && manual) return run.fail("a format string numbers some of its fields only");
      size_t begin = 0;
      const size_t index = name.empty() ? next++ : static_cast<size_t>(read_number(name, begin));
      if (index < arguments.positional.size()) value = &arguments.positional[index];
    } else {
      if (!run.touch_values(arguments.named.size()) || !run.touch(arguments.named.size() * name.size())) return {};
      for (const auto& [key, candidate] : arguments.named) {
        if (key == name) value = &candidate;
      }
    }
    if (value == nullptr)
      return run.fail("the format field '{" + field.substr(0, 80) + "}' has no argument or is not supported");
    JinjaValue shown = *value;
    if (mark < colon) {
      const std::string how = field.substr(mark, colon - mark);
      if (how != "!r" && how != "!s") return run.fail("the conversion '" + how.substr(0, 80) + "' is not supported");
      shown = run.make_string(how == "!r" ? to_repr(run, shown) : to_str(run, shown));
    }
    const std::string spec = colon < field.size() ? field.substr(colon + 1) : std::string();
    const JinjaValue formatted = spec.empty() ? run.make_string(to_str(run, shown)) : format_field(run, shown, spec);
    if (run.failed() || !run.allocate(formatted.as_string().size())) return {};
    out += formatted.as_string();
  }
  return run.make_string(std::move(out));
}

}  // namespace loralei::jinja

// SPDX-License-Identifier: Apache-2.0
// The global functions: range, dict, namespace, joiner, cycler, raise_exception,
// strftime_now.
#include <algorithm>
#include <ctime>

#include "template/jinja_builtin_names.h"
#include "template/jinja_call.h"
#include "template/jinja_ops.h"

namespace loralei::jinja {

using Shape = JinjaList::Shape;

namespace {

constexpr std::string_view kGlobals[] = {"range",  "dict",         "namespace",      "joiner",
                                         "cycler", "strftime_now", "raise_exception"};
constexpr int64_t kMaxRange = 100000;  // jinja2's sandbox refuses more

JinjaValue make_range(JinjaRun& run, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "range", arguments, {"start", "stop", "step"}, 1, a)) return {};
  for (const JinjaValue& given : arguments.positional) {
    if (!need_int(run, "range", given)) return {};
  }
  for (const auto& [name, given] : arguments.named) {
    if (!need_int(run, "range", given)) return {};
  }
  const bool one = a[1].is_undefined();  // not given
  const int64_t start = one ? 0 : a[0].as_int();
  const int64_t stop = one ? a[0].as_int() : a[1].as_int();
  const int64_t step = a[2].is_undefined() ? 1 : a[2].as_int();
  if (step == 0) return run.fail("the step of range cannot be zero");
  std::vector<JinjaValue> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (!run.allocate_values(1)) return {};
    items.emplace_back(i);
    if (static_cast<int64_t>(items.size()) > kMaxRange)
      return run.fail("range is longer than " + std::to_string(kMaxRange));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return run.make_list(std::move(items), Shape::kRange);
}

JinjaValue make_dict(JinjaRun& run, const Arguments& arguments) {
  std::vector<JinjaDict::Item> items;
  if (arguments.positional.size() > 1) return run.fail("dict takes at most one positional argument");
  if (!arguments.positional.empty()) {
    const JinjaValue& source = arguments.positional[0];
    if (source.is_dict()) {
      if (!run.allocate_values(2 * source.as_dict().items.size())) return {};
      items = source.as_dict().items;
    } else {
      for (const JinjaValue& pair : elements(run, source)) {
        if (!run.step() || !run.allocate(sizeof(JinjaDict::Item))) return {};
        const std::vector<JinjaValue> two = elements(run, pair);
        if (two.size() != 2) return run.fail("dict needs pairs");
        items.emplace_back(two[0], two[1]);
      }
    }
  }
  if (!run.allocate_values(2 * arguments.named.size())) return {};
  for (const auto& [name, value] : arguments.named) items.emplace_back(run.make_string(name), value);
  return run.failed() ? JinjaValue() : run.make_dict(std::move(items));
}

// joiner(sep): '' at the first call, then sep. cycler(a, b ...): .next() and .current.
JinjaValue make_stepper(JinjaRun& run, const std::string& name, const Arguments& arguments) {
  auto callable = std::make_shared<JinjaCallable>();
  callable->type = JinjaCallable::Type::kStepper;
  callable->name = name;
  callable->state = std::make_shared<JinjaStepper>();
  if (name == "joiner") {
    std::vector<JinjaValue> a;
    if (!bind(run, name, arguments, {"sep"}, 0, a)) return {};
    callable->state->items = {JinjaValue(""), a[0].is_undefined() ? JinjaValue(", ") : a[0]};
  } else {
    if (arguments.positional.empty() || !arguments.named.empty())
      return run.fail("cycler needs the values to cycle through");
    if (!run.touch_values(arguments.positional.size()) || !run.hold(arguments.positional.size() * sizeof(JinjaValue)))
      return {};
    callable->state->items = arguments.positional;
  }
  for (const JinjaValue& item : callable->state->items) {
    if (!item.is_string() && !item.is_number() && !item.is_none())
      return run.fail(name + " takes strings, numbers and none only");
  }
  return JinjaValue(std::shared_ptr<const JinjaCallable>(std::move(callable)));
}

JinjaValue make_namespace(JinjaRun& run, const Arguments& arguments) {
  const JinjaValue source = make_dict(run, arguments);
  if (run.failed()) return {};
  std::shared_ptr<JinjaNamespace> space = run.make_namespace();
  if (!space) return {};
  for (const auto& [key, value] : source.as_dict().items) {
    if (!key.is_string()) return run.fail("namespace attributes need names");
    if (!run.touch(key.as_string().size()) || !run.hold(key.as_string().size() + 64)) return {};
    space->attributes.emplace_back(key.as_string(), value);
  }
  return JinjaValue(std::move(space));
}

JinjaValue format_time(JinjaRun& run, const Arguments& arguments, int64_t unix_time_s) {
  std::vector<JinjaValue> a;
  if (!bind(run, "strftime_now", arguments, {"format"}, 1, a) || !need_string(run, "strftime_now", a[0])) return {};
  const std::string& format = a[0].as_string();
  if (format.size() > 512) return run.fail("the format of strftime_now is longer than 512 bytes");
  if (format.empty()) return JinjaValue("");
  if (!run.read(8192) || !run.allocate(8192)) return {};  // what it may make
  const std::time_t time = unix_time_s;
  std::tm parts{};
  if (gmtime_r(&time, &parts) == nullptr) return run.fail("the time is out of range");
  std::string out(8192, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &parts));
  return run.make_string(std::move(out));
}

}  // namespace

std::span<const std::string_view> global_names() { return kGlobals; }

bool is_global_name(const std::string& name) {
  return std::find(std::begin(kGlobals), std::end(kGlobals), name) != std::end(kGlobals);
}

JinjaValue call_global(JinjaRun& run, const std::string& name, const Arguments& arguments, int64_t unix_time_s) {
  const JinjaRun::Operation operation(run);
  if (!run.step()) return {};
  if (name == "range") return make_range(run, arguments);
  if (name == "dict") return make_dict(run, arguments);
  if (name == "namespace") return make_namespace(run, arguments);
  if (name == "joiner" || name == "cycler") return make_stepper(run, name, arguments);
  if (name == "strftime_now") return format_time(run, arguments, unix_time_s);
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"message"}, 1, a)) return {};
  const std::string message = to_str(run, a[0]);
  return run.failed() ? JinjaValue() : run.fail_raised(message);
}

}  // namespace loralei::jinja

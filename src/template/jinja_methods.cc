// SPDX-License-Identifier: Apache-2.0
// Argument binding, attributes of every value, and methods of dicts and lists;
// jinja_string_methods.cc has those of strings.
#include <algorithm>

#include "template/jinja_ast.h"
#include "template/jinja_builtin_names.h"
#include "template/jinja_call.h"
#include "template/jinja_ops.h"
#include "template/jinja_string_methods.h"

namespace loralei::jinja {

using Kind = JinjaValue::Kind;
using Shape = JinjaList::Shape;

bool bind(JinjaRun& run, const std::string& callee, const Arguments& arguments, const std::vector<const char*>& names,
          size_t required, std::vector<JinjaValue>& out) {
  out.assign(names.size(), JinjaValue());
  std::vector<bool> given(names.size(), false);
  if (arguments.positional.size() > names.size()) {
    run.fail(callee + " takes at most " + std::to_string(names.size()) + " arguments, not " +
             std::to_string(arguments.positional.size()));
    return false;
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    out[i] = arguments.positional[i];
    given[i] = true;
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    const size_t i = found - names.begin();
    if (found == names.end() || given[i]) {
      run.fail(callee + (found == names.end() ? " has no argument '" : " got two values for '") + name + "'");
      return false;
    }
    out[i] = value;
    given[i] = true;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!given[i]) {
      run.fail(callee + " needs the argument '" + names[i] + "'");
      return false;
    }
  }
  return true;
}

bool need_string(JinjaRun& run, const std::string& callee, const JinjaValue& value) {
  if (value.is_string()) return true;
  run.fail(value.is_undefined() ? value.undefined_hint()
                                : callee + " needs a string, not a value of type '" + type_name(value) + "'");
  return false;
}

bool need_int(JinjaRun& run, const std::string& callee, const JinjaValue& value) {
  if (value.is_int()) return true;
  run.fail(value.is_undefined() ? value.undefined_hint()
                                : callee + " needs an integer, not a value of type '" + type_name(value) + "'");
  return false;
}

namespace {

constexpr std::string_view kDictMethods[] = {"items", "keys", "values", "get", "copy"};
constexpr std::string_view kListMethods[] = {"index", "count", "copy"};
constexpr std::string_view kChangingMethods[] = {"append", "extend",  "insert", "pop",        "remove", "clear",
                                                 "sort",   "reverse", "update", "setdefault", "popitem"};

template <size_t N>
bool is_in(const std::string_view (&names)[N], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

JinjaValue make_method(const JinjaValue& value, const std::string& name) {
  auto method = std::make_shared<JinjaCallable>();
  method->type = JinjaCallable::Type::kMethod;
  method->name = name;
  method->receiver = value;
  return JinjaValue(std::shared_ptr<const JinjaCallable>(std::move(method)));
}

JinjaValue dict_method(JinjaRun& run, const JinjaValue& value, const std::string& name, const Arguments& arguments) {
  const JinjaDict& dict = value.as_dict();
  std::vector<JinjaValue> a;
  if (name == "get") {
    if (!bind(run, name, arguments, {"key", "default"}, 1, a)) return {};
    const JinjaValue* found = find_in(run, dict, a[0]);
    if (found != nullptr) return *found;
    return arguments.positional.size() + arguments.named.size() < 2 ? JinjaValue::none() : a[1];
  }
  if (!bind(run, name, arguments, {}, 0, a)) return {};
  if (name == "copy") return value;
  if (!run.allocate_values(dict.items.size())) return {};
  std::vector<JinjaValue> items;
  for (const auto& [key, item] : dict.items) {
    if (name == "keys")
      items.push_back(key);
    else if (name == "values")
      items.push_back(item);
    else
      items.push_back(run.make_list({key, item}, Shape::kTuple));
    if (run.failed()) return {};
  }
  auto view = std::make_shared<JinjaList>();
  view->shape = Shape::kView;
  view->view_name = "dict_" + name;
  view->held = JinjaHeld(run, items.capacity() * sizeof(JinjaValue) + sizeof(JinjaList));
  view->items = std::move(items);
  view->depth = dict.depth + 2;
  return JinjaValue(std::shared_ptr<const JinjaList>(std::move(view)));
}

JinjaValue list_method(JinjaRun& run, const JinjaValue& value, const std::string& name, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (name == "copy") return bind(run, name, arguments, {}, 0, a) ? value : JinjaValue();
  if (!bind(run, name, arguments, {"value"}, 1, a)) return {};
  int64_t count = 0;
  const auto& items = value.as_list().items;
  for (size_t i = 0; i < items.size() && !run.failed(); ++i) {
    if (!equals(run, items[i], a[0])) continue;
    if (name == "index") return JinjaValue(static_cast<int64_t>(i));
    ++count;
  }
  if (name == "index") return run.fail("the value is not in the list");
  return JinjaValue(count);
}

}  // namespace

std::span<const std::string_view> dict_method_names() { return kDictMethods; }
std::span<const std::string_view> list_method_names() { return kListMethods; }

JinjaValue find_method(const JinjaValue& value, const std::string& name) {
  bool found = false;
  if (value.is_string()) found = is_string_method(name);
  if (value.is_dict()) found = found || is_in(kDictMethods, name);
  if (value.is_list() && value.as_list().is_sequence()) found = found || is_in(kListMethods, name);
  return found ? make_method(value, name) : JinjaValue();
}

JinjaValue call_method(JinjaRun& run, const JinjaValue& receiver, const std::string& name, const Arguments& arguments) {
  const JinjaRun::Operation operation(run);
  if (!run.step()) return {};
  if (receiver.is_string()) return call_string_method(run, receiver.as_string(), name, arguments);
  if (receiver.is_dict()) return dict_method(run, receiver, name, arguments);
  if (receiver.is_int()) {
    std::vector<JinjaValue> none;
    if (!bind(run, name, arguments, {}, 0, none)) return {};
    const int64_t number = receiver.as_int();
    const uint64_t size = number < 0 ? ~static_cast<uint64_t>(number) + 1 : static_cast<uint64_t>(number);
    return JinjaValue(size == 0 ? 0 : 64 - __builtin_clzll(size));
  }
  return list_method(run, receiver, name, arguments);
}

namespace {

JinjaValue loop_attribute(const JinjaValue& value, const std::string& name) {
  JinjaLoop& loop = *value.as_loop();
  const auto all = [&] { return static_cast<int64_t>(loop.count(SIZE_MAX)); };
  const auto has_next = [&] { return static_cast<int64_t>(loop.count(loop.index0 + 2)) > loop.index0 + 1; };
  if (name == "index") return JinjaValue(loop.index0 + 1);
  if (name == "index0") return JinjaValue(loop.index0);
  if (name == "revindex") return JinjaValue(all() - loop.index0);
  if (name == "revindex0") return JinjaValue(all() - loop.index0 - 1);
  if (name == "first") return JinjaValue(loop.index0 == 0);
  if (name == "last") return JinjaValue(!has_next());
  if (name == "length") return JinjaValue(all());
  if (name == "depth") return JinjaValue(static_cast<int64_t>(loop.depth0 + 1));
  if (name == "depth0") return JinjaValue(static_cast<int64_t>(loop.depth0));
  if (name == "previtem")
    return loop.index0 > 0 ? loop.items[loop.index0 - 1] : JinjaValue::undefined("there is no previous item");
  if (name == "nextitem")
    return has_next() ? loop.items[loop.index0 + 1] : JinjaValue::undefined("there is no next item");
  if (name == "cycle" || name == "changed") return make_method(value, name);
  return JinjaValue::undefined("'loop' has no attribute '" + name.substr(0, 80) + "'");
}

JinjaValue callable_attribute(JinjaRun& run, const JinjaValue& value, const std::string& name) {
  const JinjaCallable& callable = value.as_callable();
  if (callable.state && name == "current") return callable.state->items[callable.state->next];
  if (callable.state && name == "next") return value;
  if (callable.macro != nullptr && name == "name") return JinjaValue(callable.name);
  if (callable.macro != nullptr && name == "caller") return JinjaValue(callable.macro->uses_caller);
  if (callable.macro != nullptr && name == "arguments") {
    std::vector<JinjaValue> names;
    if (!run.allocate_values(4 * callable.macro->parameters.size())) return {};
    for (const Parameter& parameter : callable.macro->parameters) names.push_back(run.make_string(parameter.name));
    return run.make_list(std::move(names), Shape::kTuple);
  }
  return JinjaValue::undefined("a value of type 'function' has no attribute '" + name.substr(0, 80) + "'");
}

}  // namespace

JinjaValue get_attribute(JinjaRun& run, const JinjaValue& value, const std::string& name) {
  if (!run.step()) return {};
  switch (value.kind()) {
    case Kind::kUndefined:
      return run.fail(value.undefined_hint());
    case Kind::kLoop:
      return loop_attribute(value, name);
    case Kind::kNamespace:
      if (!run.touch(name.size() * value.as_namespace()->attributes.size()) ||
          !run.touch_values(value.as_namespace()->attributes.size()))
        return {};
      for (const auto& [key, attribute] : value.as_namespace()->attributes) {
        if (key == name) return attribute;
      }
      return JinjaValue::undefined("the namespace has no attribute '" + name.substr(0, 80) + "'");
    case Kind::kDict:
    case Kind::kList:
    case Kind::kString: {
      JinjaValue method = find_method(value, name);
      if (!method.is_undefined()) return method;
      if (is_in(kChangingMethods, name) && !value.is_string()) {
        return JinjaValue::undefined("'" + name + "' would change a value, which chat templates may not do");
      }
      if (value.is_list() && value.as_list().is_group && (name == "grouper" || name == "list")) {
        return value.as_list().items[name == "grouper" ? 0 : 1];
      }
      break;
    }
    case Kind::kCallable:
      return callable_attribute(run, value, name);
    case Kind::kInt:
      if (name == "bit_length") return make_method(value, name);
      break;
    default:
      break;
  }
  if (value.is_dict()) {
    if (const JinjaValue* found = find_in(run, value.as_dict(), std::string_view(name))) return *found;
  }
  return JinjaValue::undefined("a value of type '" + type_name(value) + "' has no attribute '" + name.substr(0, 80) +
                               "'");
}

JinjaValue get_subscript(JinjaRun& run, const JinjaValue& value, const JinjaValue& key) {
  JinjaValue item = get_item(run, value, key);
  if (!item.is_undefined() || !key.is_string() || run.failed()) return item;
  if (value.is_dict() && find_in(run, value.as_dict(), key) != nullptr) return item;
  return get_attribute(run, value, key.as_string());
}

}  // namespace loralei::jinja

// SPDX-License-Identifier: Apache-2.0
// What a template can call: arguments, callables, loops, and the built-ins by name.
//
// Thread: one render. Callables and loops live as long as a value names them; frames
// that a macro closes over are kept by the interpreter until the render ends, so `frame`
// is a plain pointer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "template/jinja_value.h"

namespace loralei {

namespace jinja {
struct MacroDef;
struct Frame;
struct Stmt;
}  // namespace jinja

// What joiner and cycler count: scalars only, so that no circle of owners can arise.
struct JinjaStepper {
  std::vector<JinjaValue> items;
  size_t next = 0;
};

struct JinjaCallable {
  enum class Type : uint8_t { kGlobal, kMethod, kMacro, kStepper };
  Type type = Type::kGlobal;
  std::string name;
  JinjaValue receiver;                     // kMethod
  const jinja::MacroDef* macro = nullptr;  // kMacro
  jinja::Frame* frame = nullptr;           // kMacro: where it was defined
  std::shared_ptr<JinjaStepper> state;     // kStepper
};

struct JinjaLoop {
  // Those whose turn has come, and, where the loop has no condition, all. A condition
  // is asked when an item's turn comes, as what it depends on may have changed by then,
  // or when the template asks for more: find() then puts that many there, as far as there
  // are. Empty beside no condition, and once the loop has ended.
  std::vector<JinjaValue> items;
  std::function<void(size_t)> find;
  size_t count(size_t wanted) {
    if (find) find(wanted);
    return items.size();
  }
  int64_t index0 = 0;
  int depth0 = 0;
  bool changed_once = false;
  JinjaValue last_changed;
  JinjaHeld held;
  const jinja::Stmt* recursive = nullptr;  // the loop that loop(...) runs again
  jinja::Frame* frame = nullptr;
};

namespace jinja {

struct Arguments {
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> named;
};

// Binds arguments to `names` as Python does. absent entries stay undefined; false (after
// fail) for unknown, doubled or too many arguments, or fewer than `required`.
bool bind(JinjaRun& run, const std::string& callee, const Arguments& arguments, const std::vector<const char*>& names,
          size_t required, std::vector<JinjaValue>& out);
// Whether an argument has the type that `callee` needs; false (after fail) when not.
bool need_string(JinjaRun& run, const std::string& callee, const JinjaValue& value);
bool need_int(JinjaRun& run, const std::string& callee, const JinjaValue& value);

JinjaValue apply_filter(JinjaRun& run, const std::string& name, const JinjaValue& value, const Arguments& arguments);
bool apply_test(JinjaRun& run, const std::string& name, const JinjaValue& value, const Arguments& arguments);

// A method of a string, dict or list as a callable; undefined when there is
// none of that name.
JinjaValue find_method(const JinjaValue& value, const std::string& name);
JinjaValue call_method(JinjaRun& run, const JinjaValue& receiver, const std::string& name, const Arguments& arguments);

// value.name: method first, then element; value[key] the other way round.
// Undefined when absent.
JinjaValue get_attribute(JinjaRun& run, const JinjaValue& value, const std::string& name);
JinjaValue get_subscript(JinjaRun& run, const JinjaValue& value, const JinjaValue& key);

// str.format.
JinjaValue format_braces(JinjaRun& run, const std::string& text, const Arguments& arguments);

// range, dict, namespace, joiner, cycler, raise_exception, strftime_now.
bool is_global_name(const std::string& name);
JinjaValue call_global(JinjaRun& run, const std::string& name, const Arguments& arguments, int64_t unix_time_s);

}  // namespace jinja
}  // namespace loralei

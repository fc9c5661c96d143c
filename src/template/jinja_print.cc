// SPDX-License-Identifier: Apache-2.0
// Template values as text: Python's str and repr, and JSON as json.dumps writes it.
#include <algorithm>
#include <cmath>

#include "template/jinja_call.h"
#include "template/jinja_ops.h"
#include "template/jinja_text.h"

namespace loralei::jinja {

using Kind = JinjaValue::Kind;
using Shape = JinjaList::Shape;

namespace {

class Printer {
 public:
  Printer(JinjaRun& run, std::string& out) : run_(run), out_(out) {}

  void repr(const JinjaValue& value, int depth) {
    // Values share parts, so that a small one may print without end: the text itself
    // is what is paid for.
    if (!run_.step() || !run_.allocate(16)) return;
    switch (value.kind()) {
      case Kind::kUndefined:
        out_ += "Undefined";
        return;
      case Kind::kNone:
        out_ += "None";
        return;
      case Kind::kBool:
        out_ += value.as_bool() ? "True" : "False";
        return;
      case Kind::kInt:
        out_ += std::to_string(value.as_int());
        return;
      case Kind::kFloat:
        out_ += format_float(value.as_float());
        return;
      case Kind::kString:
        quoted(value.as_string());
        return;
      case Kind::kList:
        list(value.as_list(), depth);
        return;
      case Kind::kDict:
        dict(value.as_dict(), depth);
        return;
      case Kind::kNamespace:
        space(*value.as_namespace(), depth);
        return;
      case Kind::kLoop:
        out_ += "<LoopContext>";
        return;
      case Kind::kCallable:
        out_ += "<function " + value.as_callable().name + ">";
        return;
    }
  }

 private:
  void quoted(const std::string& text) {
    if (!run_.map_text(text.size()) || !run_.allocate(text.size())) return;
    const std::string quoted = quote_repr(text);
    if (run_.allocate(quoted.size())) out_ += quoted;
  }

  void list(const JinjaList& list, int depth) {
    if (list.shape == Shape::kGenerator) {
      out_ += "<generator>";
      return;
    }
    const bool tuple = list.shape == Shape::kTuple;
    out_ += list.shape == Shape::kView ? list.view_name + "([" : std::string(tuple ? "(" : "[");
    for (size_t i = 0; i < list.items.size() && !run_.failed(); ++i) {
      if (i != 0) out_ += ", ";
      repr(list.items[i], depth + 1);
    }
    if (tuple && list.items.size() == 1) out_ += ",";
    out_ += list.shape == Shape::kView ? "])" : tuple ? ")" : "]";
  }

  void dict(const JinjaDict& dict, int depth) {
    out_ += "{";
    bool first = true;
    for (const auto& [key, value] : dict.items) {
      if (run_.failed()) return;
      if (!first) out_ += ", ";
      first = false;
      repr(key, depth + 1);
      out_ += ": ";
      repr(value, depth + 1);
    }
    out_ += "}";
  }

  // Namespaces may hold each other in a circle, so their nesting is counted here.
  void space(const JinjaNamespace& space, int depth) {
    if (depth > kMaxValueDepth) {
      run_.fail("a namespace that holds itself cannot be printed");
      return;
    }
    out_ += "<Namespace {";
    bool first = true;
    for (const auto& [key, value] : space.attributes) {
      if (run_.failed()) return;
      if (!first) out_ += ", ";
      first = false;
      quoted(key);
      out_ += ": ";
      repr(value, depth + 1);
    }
    out_ += "}>";
  }

  JinjaRun& run_;
  std::string& out_;
};

}  // namespace

std::string to_str(JinjaRun& run, const JinjaValue& value) {
  if (value.is_undefined()) return {};
  if (value.is_string()) return run.allocate(value.as_string().size()) ? value.as_string() : std::string();
  return to_repr(run, value);
}

std::string to_repr(JinjaRun& run, const JinjaValue& value) {
  std::string out;
  Printer(run, out).repr(value, 0);
  return out;
}

namespace {

class JsonWriter {
 public:
  JsonWriter(JinjaRun& run, const JsonStyle& style, std::string& out) : run_(run), style_(style), out_(out) {}

  void write(const JinjaValue& value, int depth) {
    if (!run_.step() || !run_.allocate(16)) return;
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        return;
      case Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        return;
      case Kind::kInt:
        out_ += std::to_string(value.as_int());
        return;
      case Kind::kFloat:
        number(value.as_float());
        return;
      case Kind::kString:
        quoted(value.as_string());
        return;
      case Kind::kList:
        if (value.as_list().shape == Shape::kList || value.as_list().shape == Shape::kTuple) {
          list(value.as_list(), depth);
          return;
        }
        break;
      case Kind::kDict:
        dict(value.as_dict(), depth);
        return;
      default:
        break;
    }
    run_.fail(value.is_undefined() ? value.undefined_hint() + ", so it cannot be written as JSON"
                                   : "a value of type '" + type_name(value) + "' cannot be written as JSON");
  }

 private:
  void quoted(const std::string& text) {
    if (!run_.read(text.size()) || !run_.allocate(text.size())) return;
    const std::string quoted = quote_json(text, style_.ensure_ascii);
    if (!run_.allocate(quoted.size()) || !run_.touch(3 * (quoted.size() - text.size()))) return;
    out_ += quoted;
  }

  // What stands between two items, or between key and value.
  void separator(const std::string& text) {
    if (run_.allocate(text.size())) out_ += text;
  }

  void number(double value) {
    if (std::isnan(value))
      out_ += "NaN";
    else if (std::isinf(value))
      out_ += value > 0 ? "Infinity" : "-Infinity";
    else
      out_ += format_float(value);
  }

  void new_line(int depth) {
    if (!style_.has_indent || !run_.allocate(style_.indent.size() * depth) || !run_.touch_values(depth)) return;
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += style_.indent;
  }

  void list(const JinjaList& list, int depth) {
    out_ += '[';
    for (size_t i = 0; i < list.items.size() && !run_.failed(); ++i) {
      if (i != 0) separator(style_.item_separator);
      new_line(depth + 1);
      write(list.items[i], depth + 1);
    }
    if (!list.items.empty()) new_line(depth);
    out_ += ']';
  }

  void dict(const JinjaDict& dict, int depth) {
    std::vector<const JinjaDict::Item*> items;
    if (!run_.allocate_values(dict.items.size())) return;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return less(run_, a->first, b->first); });
    }
    out_ += '{';
    for (size_t i = 0; i < items.size() && !run_.failed(); ++i) {
      if (i != 0) separator(style_.item_separator);
      new_line(depth + 1);
      key(items[i]->first);
      separator(style_.key_separator);
      write(items[i]->second, depth + 1);
    }
    if (!items.empty()) new_line(depth);
    out_ += '}';
  }

  void key(const JinjaValue& key) {
    if (key.is_string()) {
      quoted(key.as_string());
      return;
    }
    if (!key.is_number() && !key.is_none()) {
      run_.fail("JSON keys must be strings, numbers, booleans or none, not '" + type_name(key) + "'");
      return;
    }
    out_ += '"';
    write(key, 0);
    out_ += '"';
  }

  JinjaRun& run_;
  const JsonStyle& style_;
  std::string& out_;
};

}  // namespace

std::string to_json(JinjaRun& run, const JinjaValue& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(run, style, out).write(value, 0);
  return out;
}

}  // namespace loralei::jinja

// SPDX-License-Identifier: Apache-2.0
// Truth, comparison, and the elements of values; jinja_arith.cc has arithmetic,
// jinja_print.cc values as text.
#include "template/jinja_ops.h"

#include <string.h>

#include <algorithm>

#include "template/jinja_call.h"
#include "template/jinja_text.h"

namespace loralei::jinja {

using Kind = JinjaValue::Kind;
using Shape = JinjaList::Shape;

bool truthy(const JinjaValue& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.as_bool();
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    case Kind::kString:
      return !value.as_string().empty();
    case Kind::kList:
      return value.as_list().shape == Shape::kGenerator || !value.as_list().items.empty();
    case Kind::kDict:
      return !value.as_dict().items.empty();
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kCallable:
      return true;
  }
  return false;
}

std::string type_name(const JinjaValue& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      switch (value.as_list().shape) {
        case Shape::kList:
          return "list";
        case Shape::kTuple:
          return "tuple";
        case Shape::kGenerator:
          return "generator";
        case Shape::kView:
          return "dict view";
        case Shape::kRange:
          return "range";
      }
      return "list";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCallable:
      return "function";
  }
  return "object";
}

namespace {

bool equal_lists(JinjaRun& run, const JinjaList& a, const JinjaList& b) {
  if (&a == &b) return true;
  if (a.shape != b.shape || a.shape == Shape::kGenerator || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equals(run, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool equal_dicts(JinjaRun& run, const JinjaDict& a, const JinjaDict& b) {
  if (&a == &b) return true;
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    const JinjaValue* other = find_in(run, b, key);
    if (other == nullptr || !equals(run, value, *other)) return false;
  }
  return true;
}

}  // namespace

bool equals(JinjaRun& run, const JinjaValue& a, const JinjaValue& b) {
  if (!run.step()) return false;
  if (a.is_number() && b.is_number()) {
    if (a.is_int() && b.is_int()) return a.as_int() == b.as_int();
    return a.as_float() == b.as_float();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      if (a.as_string().size() != b.as_string().size() || !run.touch(a.as_string().size())) return false;
      return a.as_string() == b.as_string();
    case Kind::kList:
      return equal_lists(run, a.as_list(), b.as_list());
    case Kind::kDict:
      return equal_dicts(run, a.as_dict(), b.as_dict());
    default:
      return a.identity() == b.identity();
  }
}

bool less(JinjaRun& run, const JinjaValue& a, const JinjaValue& b, const char* op) {
  if (!run.step()) return false;
  if (a.is_number() && b.is_number()) {
    if (a.is_int() && b.is_int()) return a.as_int() < b.as_int();
    return a.as_float() < b.as_float();
  }
  if (a.is_string() && b.is_string()) {
    if (!run.touch(std::min(a.as_string().size(), b.as_string().size()))) return false;
    return a.as_string() < b.as_string();  // UTF-8 sorts as code points do
  }
  if (a.is_list() && b.is_list() && a.as_list().shape == b.as_list().shape) {
    const auto& left = a.as_list().items;
    const auto& right = b.as_list().items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equals(run, left[i], right[i])) return less(run, left[i], right[i], op);
    }
    return left.size() < right.size();
  }
  for (const JinjaValue* side : {&a, &b}) {
    if (side->is_undefined()) {
      run.fail(side->undefined_hint());
      return false;
    }
  }
  run.fail(std::string("'") + op + "' is not supported between '" + type_name(a) + "' and '" + type_name(b) + "'");
  return false;
}

bool contains(JinjaRun& run, const JinjaValue& container, const JinjaValue& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is_string()) {
        run.fail("'in <string>' needs a string on its left, not '" + type_name(item) + "'");
        return false;
      }
      return find_first(run, container.as_string(), item.as_string()) != std::string::npos;
    case Kind::kDict:
      return find_in(run, container.as_dict(), item) != nullptr;
    case Kind::kList:
      for (const JinjaValue& element : container.as_list().items) {
        if (equals(run, element, item)) return true;
      }
      return false;
    default:
      run.fail("'in' cannot look into a value of type '" + type_name(container) + "'");
      return false;
  }
}

int64_t length(JinjaRun& run, const JinjaValue& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return run.touch(value.as_string().size()) ? code_point_count(value.as_string()) : 0;
    case Kind::kList:
      if (value.as_list().shape != Shape::kGenerator) return static_cast<int64_t>(value.as_list().items.size());
      break;
    case Kind::kDict:
      return static_cast<int64_t>(value.as_dict().items.size());
    case Kind::kLoop:
      return static_cast<int64_t>(value.as_loop()->count(SIZE_MAX));
    default:
      break;
  }
  run.fail("a value of type '" + type_name(value) + "' has no length");
  return 0;
}

std::vector<JinjaValue> elements(JinjaRun& run, const JinjaValue& value) {
  std::vector<JinjaValue> out;
  switch (value.kind()) {
    case Kind::kUndefined:
      return out;
    case Kind::kString: {
      const std::string& text = value.as_string();
      if (!run.read(text.size()) || !run.allocate_values(static_cast<size_t>(code_point_count(text)))) return out;
      for (size_t at = 0; at < text.size() && !run.failed();) {
        const size_t begin = at;
        next_code_point(text, at);
        out.push_back(run.make_string(text.substr(begin, at - begin)));
      }
      return out;
    }
    case Kind::kList: {
      const JinjaList& list = value.as_list();
      if (list.shape == Shape::kGenerator && std::exchange(list.consumed, true)) return out;
      if (!run.allocate_values(list.items.size())) return out;
      return list.items;
    }
    case Kind::kDict:
      if (!run.allocate_values(value.as_dict().items.size())) return out;
      for (const auto& [key, unused] : value.as_dict().items) out.push_back(key);
      return out;
    default:
      run.fail("a value of type '" + type_name(value) + "' cannot be iterated over");
      return out;
  }
}

JinjaValue change_text(JinjaRun& run, const std::string& text, std::string (*change)(std::string_view text)) {
  const JinjaRun::Operation operation(run);
  if (!run.read(text.size()) || !run.allocate(text.size())) return {};
  // Titles are mapped a character at a time; a mapping takes two strings of 16-bit units,
  // of which one has room for three times the text.
  if (!is_ascii(text) && (!run.map_text(3 * text.size()) || !run.allocate(8 * text.size()))) return {};
  std::string out = change(text);
  return run.allocate(out.size()) ? run.make_string(std::move(out)) : JinjaValue();
}

const JinjaValue* find_in(JinjaRun& run, const JinjaDict& dict, std::string_view key) {
  // Looked for in a tree, or in a row of strings of which only those of its
  // length are read.
  const size_t compared = dict.index.empty() ? dict.items.size() : 20;
  if (!run.touch(compared * key.size()) || !run.touch_values(compared)) return nullptr;
  return dict.find(key);
}

const JinjaValue* find_in(JinjaRun& run, const JinjaDict& dict, const JinjaValue& key) {
  if (key.is_string()) return find_in(run, dict, std::string_view(key.as_string()));
  return run.touch_values(dict.items.size()) ? dict.find(key) : nullptr;
}

size_t find_first(JinjaRun& run, std::string_view text, std::string_view sought, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (sought.empty()) return from;
  if (!run.touch(sought.size())) return std::string_view::npos;
  // string_view::find() takes the product of both sizes where they are alike;
  // memmem() does not.
  const void* const found = ::memmem(text.data() + from, text.size() - from, sought.data(), sought.size());
  const size_t at = found == nullptr ? text.size() : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  return run.touch(at - from) && found != nullptr ? at : std::string_view::npos;
}

size_t find_last(JinjaRun& run, std::string_view text, std::string_view sought) {
  if (sought.size() > text.size()) return std::string_view::npos;
  if (sought.empty()) return text.size();
  // The first one from behind.
  const JinjaRun::Operation operation(run);
  if (!run.allocate(text.size() + sought.size())) return std::string_view::npos;
  const std::string mirrored(text.rbegin(), text.rend()), mirrored_sought(sought.rbegin(), sought.rend());
  const size_t found = find_first(run, mirrored, mirrored_sought);
  return found == std::string_view::npos ? found : text.size() - found - sought.size();
}

JinjaValue get_item(JinjaRun& run, const JinjaValue& value, const JinjaValue& key) {
  const auto missing = [&]() -> JinjaValue {
    const std::string name = key.is_string()   ? "'" + key.as_string().substr(0, 80) + "'"
                             : key.is_number() ? to_repr(run, key)
                                               : type_name(key);
    return JinjaValue::undefined("a value of type '" + type_name(value) + "' has no element " + name);
  };
  if (!run.step()) return {};
  switch (value.kind()) {
    case Kind::kUndefined:
      return run.fail(value.undefined_hint());
    case Kind::kDict: {
      const JinjaValue* found = find_in(run, value.as_dict(), key);
      return found != nullptr ? *found : missing();
    }
    case Kind::kList: {
      const JinjaList& list = value.as_list();
      if (!key.is_int() || !list.is_sequence()) return missing();
      int64_t index = key.as_int();
      const auto size = static_cast<int64_t>(list.items.size());
      if (index < 0) index += size;
      if (index < 0 || index >= size) return missing();
      return list.items[index];
    }
    case Kind::kString: {
      if (!key.is_int()) return missing();
      const std::string& text = value.as_string();
      int64_t index = key.as_int();
      if (!run.read(text.size())) return {};
      if (index < 0) index += code_point_count(text);
      if (index < 0) return missing();
      size_t at = 0;
      for (int64_t i = 0; i < index && at < text.size(); ++i) next_code_point(text, at);
      if (at >= text.size()) return missing();
      const size_t begin = at;
      next_code_point(text, at);
      return run.make_string(text.substr(begin, at - begin));
    }
    default:
      return missing();
  }
}

JinjaValue slice(JinjaRun& run, const JinjaValue& value, const JinjaValue& start, const JinjaValue& stop,
                 const JinjaValue& stride) {
  if (value.is_undefined()) return run.fail(value.undefined_hint());
  for (const JinjaValue* bound : {&start, &stop, &stride}) {
    if (!bound->is_none() && !bound->is_int())
      return run.fail("slice bounds must be integers or none, not '" + type_name(*bound) + "'");
  }
  const bool is_list = value.is_list() && value.as_list().is_sequence();
  if (!is_list && !value.is_string()) return run.fail("a value of type '" + type_name(value) + "' cannot be sliced");
  const JinjaRun::Operation operation(run);
  // Decoded, picked from and encoded again: four bytes for each, twice.
  const size_t bytes = is_list ? 0 : value.as_string().size();
  if (!run.read(2 * bytes) || !run.allocate(8 * bytes)) return {};
  const std::u32string characters = is_list ? std::u32string() : decode_utf8(value.as_string());
  const auto size =
      is_list ? static_cast<int64_t>(value.as_list().items.size()) : static_cast<int64_t>(characters.size());
  const int64_t step = stride.is_none() ? 1 : stride.as_int();
  if (step == 0) return run.fail("a slice step cannot be zero");
  const auto clamp = [&](const JinjaValue& bound, int64_t absent) {
    if (bound.is_none()) return absent;
    int64_t index = bound.as_int();
    if (index < 0) index = index < -size ? -1 : index + size;
    return step > 0 ? std::clamp<int64_t>(index, 0, size) : std::clamp<int64_t>(index, -1, size - 1);
  };
  const int64_t first = clamp(start, step > 0 ? 0 : size - 1);
  const int64_t last = clamp(stop, step > 0 ? size : -1);
  std::vector<JinjaValue> items;
  std::u32string text;
  // A step larger than the value ends after the first element; unsigned distance avoids
  // overflow at the extremes.
  for (int64_t i = first; step > 0 ? i < last : i > last;) {
    if (is_list) {
      if (!run.allocate_values(1)) return {};
      items.push_back(value.as_list().items[i]);
    } else {
      text += characters[i];
    }
    const int64_t left = step > 0 ? last - i : i - last;
    if (step > 0 ? step >= left : step <= -left) break;
    i += step;
  }
  if (!is_list) return run.make_string(encode_utf8(text));
  return run.make_list(std::move(items), value.as_list().shape == Shape::kTuple ? Shape::kTuple : Shape::kList);
}

}  // namespace loralei::jinja

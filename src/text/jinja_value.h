// SPDX-License-Identifier: Apache-2.0
// JinjaValue: a Python value as chat templates see it, and the run that pays for making values.
//
// Thread: a value may be read from several threads while nobody renders with it; a JinjaRun belongs to one render.
// Ownership: strings, lists and dicts are immutable and shared; namespaces and loops change while a template runs and
// are owned by the run, which empties them at its end (so that a namespace that holds itself is no leak). Invariants:
// no list or dict nests deeper than kMaxValueDepth (checked when it is made), so recursion over values is safe.
// Failure: operations report through JinjaRun::fail, first error wins; afterwards every operation returns undefined at
// once.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace loralei {

struct JinjaList;
struct JinjaDict;
struct JinjaNamespace;
struct JinjaLoop;
struct JinjaCallable;

class JinjaValue {
 public:
  enum class Kind : uint8_t {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kDict,
    kNamespace,
    kLoop,
    kCallable
  };

  JinjaValue() = default;                                        // undefined without a name
  JinjaValue(bool value) : data_(value) {}                       // NOLINT: implicit by design
  JinjaValue(int64_t value) : data_(value) {}                    // NOLINT
  JinjaValue(int value) : data_(static_cast<int64_t>(value)) {}  // NOLINT
  JinjaValue(double value) : data_(value) {}                     // NOLINT
  JinjaValue(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}  // NOLINT
  JinjaValue(std::string_view value) : JinjaValue(std::string(value)) {}                           // NOLINT
  JinjaValue(const char* value) : JinjaValue(std::string(value)) {}                                // NOLINT
  JinjaValue(std::shared_ptr<const JinjaList> value) : data_(std::move(value)) {}                  // NOLINT
  JinjaValue(std::shared_ptr<const JinjaDict> value) : data_(std::move(value)) {}                  // NOLINT
  JinjaValue(std::shared_ptr<JinjaNamespace> value) : data_(std::move(value)) {}                   // NOLINT
  JinjaValue(std::shared_ptr<JinjaLoop> value) : data_(std::move(value)) {}                        // NOLINT
  JinjaValue(std::shared_ptr<const JinjaCallable> value) : data_(std::move(value)) {}              // NOLINT
  static JinjaValue none() {
    JinjaValue value;
    value.data_ = None{};
    return value;
  }
  // Printing it gives nothing; using it otherwise is an error with this sentence.
  static JinjaValue undefined(std::string hint) {
    JinjaValue value;
    value.data_ = Undefined{std::make_shared<const std::string>(std::move(hint))};
    return value;
  }

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is_undefined() const { return kind() == Kind::kUndefined; }
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_list() const { return kind() == Kind::kList; }
  bool is_dict() const { return kind() == Kind::kDict; }
  bool is_int() const { return kind() == Kind::kInt || kind() == Kind::kBool; }  // bool is an int in Python
  bool is_number() const { return is_int() || kind() == Kind::kFloat; }

  // Each needs the kind it names.
  bool as_bool() const { return std::get<bool>(data_); }
  int64_t as_int() const { return kind() == Kind::kBool ? as_bool() : std::get<int64_t>(data_); }
  double as_float() const { return kind() == Kind::kFloat ? std::get<double>(data_) : static_cast<double>(as_int()); }
  const std::string& as_string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  const JinjaList& as_list() const { return *std::get<std::shared_ptr<const JinjaList>>(data_); }
  const JinjaDict& as_dict() const { return *std::get<std::shared_ptr<const JinjaDict>>(data_); }
  const std::shared_ptr<JinjaNamespace>& as_namespace() const {
    return std::get<std::shared_ptr<JinjaNamespace>>(data_);
  }
  const std::shared_ptr<JinjaLoop>& as_loop() const { return std::get<std::shared_ptr<JinjaLoop>>(data_); }
  const JinjaCallable& as_callable() const { return *std::get<std::shared_ptr<const JinjaCallable>>(data_); }
  std::string undefined_hint() const;
  // Address of the shared part: identity of lists, dicts and objects ("is sameas"); null for scalars.
  const void* identity() const;
  int depth() const;  // 0 for scalars, else 1 + the deepest element

 private:
  struct Undefined {
    std::shared_ptr<const std::string> hint;
  };
  struct None {};
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const JinjaList>, std::shared_ptr<const JinjaDict>, std::shared_ptr<JinjaNamespace>,
               std::shared_ptr<JinjaLoop>, std::shared_ptr<const JinjaCallable>>
      data_;
};

inline constexpr int kMaxValueDepth = 160;  // JSON requests stop at 128; a template may wrap them a little

// Lists, and what Python has beside them: a generator is true even when empty, has no length and can be read once.
struct JinjaList {
  enum class Shape : uint8_t { kList, kTuple, kGenerator, kView, kRange };
  Shape shape = Shape::kList;
  std::vector<JinjaValue> items;
  int depth = 1;
  std::string view_name;          // kView: dict_items, dict_keys, dict_values
  bool is_group = false;          // a (grouper, list) pair of groupby
  mutable bool consumed = false;  // generators: only the one run that made it can reach it

  bool is_sequence() const { return shape != Shape::kGenerator && shape != Shape::kView; }
};

struct JinjaDict {
  using Item = std::pair<JinjaValue, JinjaValue>;
  std::vector<Item> items;                               // in order of insertion; keys differ
  std::unordered_map<std::string_view, uint32_t> index;  // string keys; filled for larger dicts only
  int depth = 1;

  const JinjaValue* find(std::string_view key) const;
  const JinjaValue* find(const JinjaValue& key) const;  // Python's hash equality: 1, 1.0 and True are one key
};

struct JinjaNamespace {
  std::vector<std::pair<std::string, JinjaValue>> attributes;
};

struct JinjaRenderLimits {
  int64_t max_steps = 5'000'000;            // evaluated nodes and touched elements: about a second at most
  int64_t max_output_bytes = 32 << 20;      // a prompt longer than this fits no model
  int64_t max_allocated_bytes = 256 << 20;  // all strings and containers made in one render, together
  int max_depth = 256;                      // nested evaluation: expressions, blocks, macro calls
};

// What one render may use and the error that ended it.
class JinjaRun {
 public:
  explicit JinjaRun(const JinjaRenderLimits& limits) : limits_(limits) {}
  ~JinjaRun();
  JinjaRun(const JinjaRun&) = delete;
  JinjaRun& operator=(const JinjaRun&) = delete;

  bool failed() const { return error_.has_value(); }
  const std::optional<Error>& error() const { return error_; }
  // Ends the render with this sentence and the current line. Returns undefined, to be returned on.
  JinjaValue fail(std::string message);
  JinjaValue fail_raised(std::string message);  // raise_exception's text, as the template's author wrote it

  // False (after fail) when the budget is used up.
  bool step(int64_t count = 1);
  bool allocate(size_t bytes);

  JinjaValue make_string(std::string text);
  JinjaValue make_list(std::vector<JinjaValue> items, JinjaList::Shape shape = JinjaList::Shape::kList);
  // Later equal keys replace the value of the first, as in Python.
  JinjaValue make_dict(std::vector<JinjaDict::Item> items);
  std::shared_ptr<JinjaNamespace> make_namespace();

  const JinjaRenderLimits& limits() const { return limits_; }
  int line = 1;  // of the node that is being evaluated

 private:
  JinjaRenderLimits limits_;
  int64_t steps_ = 0;
  int64_t allocated_bytes_ = 0;
  std::optional<Error> error_;
  std::vector<std::shared_ptr<JinjaNamespace>> namespaces_;
};

// From JSON; numbers beyond int64 become floats. Fails when it is nested deeper than kMaxJsonDepth.
Result<JinjaValue> jinja_from_json(const nlohmann::ordered_json& json);
// Makes a container outside a run (the context of a render). Depths are not checked: callers wrap only a level or two.
JinjaValue jinja_list(std::vector<JinjaValue> items);
JinjaValue jinja_dict(std::vector<std::pair<std::string, JinjaValue>> items);

}  // namespace loralei

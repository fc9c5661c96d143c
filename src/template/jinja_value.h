// SPDX-License-Identifier: Apache-2.0
// JinjaValue: a Python value as chat templates see it, and the run that pays
// for making values.
//
// Thread: a value may be read from several threads while nobody renders with it;
// a JinjaRun belongs to one render.
// Ownership: strings, lists and dicts are immutable and shared; namespaces and loops
// change while a template runs and are owned by the run, which empties them at its end
// (so that a namespace that holds itself is no leak); what a run has made holds bytes of
// it until it dies, and dies before it.
// Invariants: no list or dict nests deeper than kMaxValueDepth (checked when it is made),
// so recursion over values is safe.
// Failure: operations report through JinjaRun::fail, first error wins; afterwards every
// operation returns undefined at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/work.h"

namespace loralei {

class JinjaRun;
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
  JinjaValue(std::shared_ptr<const std::string> value) : data_(std::move(value)) {}                // NOLINT
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
  // Address of the shared part: identity of lists, dicts and objects ("is sameas");
  // null for scalars.
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

// Bytes of a run's memory that a value of the run takes as long as it lives.
class JinjaHeld {
 public:
  JinjaHeld() = default;  // of values that no run has made
  JinjaHeld(JinjaRun& run, size_t bytes);
  JinjaHeld(JinjaHeld&& other) noexcept : run_(std::exchange(other.run_, nullptr)), bytes_(other.bytes_) {}
  JinjaHeld& operator=(JinjaHeld&& other) noexcept {
    std::swap(run_, other.run_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~JinjaHeld();

 private:
  JinjaRun* run_ = nullptr;
  size_t bytes_ = 0;
};

// Lists, and what Python has beside them: a generator is true even when empty, has no
// length and can be read once.
struct JinjaList {
  enum class Shape : uint8_t { kList, kTuple, kGenerator, kView, kRange };
  Shape shape = Shape::kList;
  std::vector<JinjaValue> items;
  int depth = 1;
  std::string view_name;          // kView: dict_items, dict_keys, dict_values
  bool is_group = false;          // a (grouper, list) pair of groupby
  mutable bool consumed = false;  // generators: only the one run that made it can reach it
  JinjaHeld held;

  bool is_sequence() const { return shape != Shape::kGenerator && shape != Shape::kView; }
};

struct JinjaDict {
  using Item = std::pair<JinjaValue, JinjaValue>;
  std::vector<Item> items;                     // in order of insertion; keys differ
  std::map<std::string_view, uint32_t> index;  // string keys; filled for larger dicts only. No key makes it slow
  int depth = 1;
  JinjaHeld held;

  const JinjaValue* find(std::string_view key) const;
  const JinjaValue* find(const JinjaValue& key) const;  // Python's hash equality: 1, 1.0 and True are one key
};

struct JinjaNamespace {
  std::vector<std::pair<std::string, JinjaValue>> attributes;
};

struct JinjaRenderLimits {
  int64_t max_work = 320 << 20;         // bytes touched, a node of the template counting for kNodeWork: under a second
  int64_t max_output_bytes = 32 << 20;  // a prompt longer than this fits no model
  int64_t max_held_bytes = 128 << 20;   // alive at once: the output, values, and what an operation makes on its way
  int max_depth = 256;                  // nested evaluation: expressions, blocks, macro calls
};

// What one render may use and the error that ended it. Every operation says what it
// will touch and what it will allocate before it does so; where the answer is false
// it returns at once.
class JinjaRun {
 public:
  static constexpr int64_t kNodeWork = 32;   // one evaluated node
  static constexpr int64_t kReadWork = 4;    // a byte of text read character by character
  static constexpr int64_t kMapWork = 24;    // a byte of text taken through tables of Unicode
  static constexpr int64_t kValueWork = 16;  // a value copied or looked at

  JinjaRun(const JinjaRenderLimits& limits, Work& work)
      : limits_(limits), work_(work), work_limit_(work, limits.max_work) {}
  ~JinjaRun();
  JinjaRun(const JinjaRun&) = delete;
  JinjaRun& operator=(const JinjaRun&) = delete;

  bool failed() const { return error_.has_value(); }
  const std::optional<Error>& error() const { return error_; }
  // Ends the render with this sentence and the current line. Returns undefined,
  // to be returned on.
  JinjaValue fail(std::string message);
  JinjaValue fail_raised(std::string message);  // raise_exception's text, as the template's author wrote it

  // False (after fail) when a limit is met, or nobody wants the text any more.
  bool step() { return spend(kNodeWork); }
  bool touch(size_t bytes) { return spend(times(bytes, 1)); }            // compared, searched, copied
  bool read(size_t bytes) { return spend(times(bytes, kReadWork)); }     // character by character
  bool map_text(size_t bytes) { return spend(times(bytes, kMapWork)); }  // cases and classes of characters
  bool touch_values(size_t count) { return spend(times(count, kValueWork)); }
  // Memory that the operation under way makes on top of its values; touching it is
  // paid for as well.
  bool allocate(size_t bytes);
  bool allocate_values(size_t count) { return touch_values(count) && allocate(count * sizeof(JinjaValue)); }

  // An operation under way: what it allocates counts until it ends; what it returns
  // is held by then.
  class Operation {
   public:
    explicit Operation(JinjaRun& run) : run_(run), before_bytes_(run.passing_bytes_) {}
    ~Operation() { run_.passing_bytes_ = before_bytes_; }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    JinjaRun& run_;
    const int64_t before_bytes_;
  };

  JinjaValue make_string(std::string text);
  JinjaValue make_list(std::vector<JinjaValue> items, JinjaList::Shape shape = JinjaList::Shape::kList);
  // Later equal keys replace the value of the first, as in Python.
  JinjaValue make_dict(std::vector<JinjaDict::Item> items);
  std::shared_ptr<JinjaNamespace> make_namespace();
  // For what lives longer than an operation and is no value.
  bool hold(size_t bytes);
  void release(size_t bytes) { held_bytes_ -= static_cast<int64_t>(bytes); }

  const JinjaRenderLimits& limits() const { return limits_; }
  int line = 1;  // of the node that is being evaluated

 private:
  static constexpr size_t kLargest = size_t{1} << 40;  // beyond every limit, and far from overflowing
  static int64_t times(size_t count, int64_t work) { return static_cast<int64_t>(std::min(count, kLargest)) * work; }
  bool spend(int64_t units) { return !error_ && (work_.spend(units) || out_of_work()); }
  bool out_of_work();
  bool check_memory();

  JinjaRenderLimits limits_;
  Work& work_;
  WorkLimit work_limit_;
  int64_t held_bytes_ = 0;
  int64_t passing_bytes_ = 0;  // of the operations under way
  std::optional<Error> error_;
  std::vector<std::shared_ptr<JinjaNamespace>> namespaces_;
};

// Makes a container outside a run (the context of a render). Depths are not checked:
// callers wrap only a level or two.
JinjaValue jinja_list(std::vector<JinjaValue> items);
JinjaValue jinja_dict(std::vector<std::pair<std::string, JinjaValue>> items);

}  // namespace loralei

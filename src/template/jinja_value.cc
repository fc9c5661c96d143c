// SPDX-License-Identifier: Apache-2.0
#include "template/jinja_value.h"

#include <algorithm>

namespace loralei {

namespace {

constexpr size_t kIndexedDictSize = 12;  // below this a linear look is faster than a hash table

// Equality of possible keys: scalars, and tuples of them by identity only (no
// template uses those).
bool same_key(const JinjaValue& a, const JinjaValue& b) {
  if (a.is_string() || b.is_string()) return a.is_string() && b.is_string() && a.as_string() == b.as_string();
  if (a.is_number() && b.is_number()) {
    if (a.is_int() && b.is_int()) return a.as_int() == b.as_int();
    return a.as_float() == b.as_float();
  }
  if (a.kind() != b.kind()) return false;
  return a.is_none() || a.is_undefined() || a.identity() == b.identity();
}

void finish_dict(JinjaDict& dict) {
  int deepest = 0;
  for (const auto& [key, value] : dict.items) deepest = std::max({deepest, key.depth(), value.depth()});
  dict.depth = deepest + 1;
  if (dict.items.size() < kIndexedDictSize) return;
  for (uint32_t i = 0; i < dict.items.size(); ++i) {
    if (dict.items[i].first.is_string()) dict.index.emplace(dict.items[i].first.as_string(), i);
  }
}

}  // namespace

std::string JinjaValue::undefined_hint() const {
  const auto& hint = std::get<Undefined>(data_).hint;
  return hint ? *hint : "an undefined value was used";
}

const void* JinjaValue::identity() const {
  switch (kind()) {
    case Kind::kString:
      return &as_string();
    case Kind::kList:
      return &as_list();
    case Kind::kDict:
      return &as_dict();
    case Kind::kNamespace:
      return as_namespace().get();
    case Kind::kLoop:
      return as_loop().get();
    case Kind::kCallable:
      return &as_callable();
    default:
      return nullptr;
  }
}

int JinjaValue::depth() const {
  if (kind() == Kind::kList) return as_list().depth;
  if (kind() == Kind::kDict) return as_dict().depth;
  return 0;
}

const JinjaValue* JinjaDict::find(std::string_view key) const {
  if (!index.empty()) {
    const auto found = index.find(key);
    return found == index.end() ? nullptr : &items[found->second].second;
  }
  for (const auto& [name, value] : items) {
    if (name.is_string() && name.as_string() == key) return &value;
  }
  return nullptr;
}

const JinjaValue* JinjaDict::find(const JinjaValue& key) const {
  if (key.is_string()) return find(std::string_view(key.as_string()));
  for (const auto& [name, value] : items) {
    if (same_key(name, key)) return &value;
  }
  return nullptr;
}

JinjaHeld::JinjaHeld(JinjaRun& run, size_t bytes) : run_(&run), bytes_(bytes) { run.hold(bytes); }
JinjaHeld::~JinjaHeld() {
  if (run_ != nullptr) run_->release(bytes_);
}

JinjaRun::~JinjaRun() {
  for (auto& space : namespaces_) space->attributes.clear();
}

namespace {

constexpr size_t kMaxMessageBytes = 4096;  // of what a template says: it may be any text of the request

void cut(std::string& message) {
  if (message.size() <= kMaxMessageBytes) return;
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  message.resize(end);
}

}  // namespace

JinjaValue JinjaRun::fail(std::string message) {
  if (!error_) {
    cut(message);
    error_ = invalid_argument("the chat template failed at line " + std::to_string(line) + ": " + std::move(message));
  }
  return {};
}

JinjaValue JinjaRun::fail_raised(std::string message) {
  if (!error_) {
    cut(message);
    error_ = invalid_argument("the chat template refused the request at line " + std::to_string(line) + ": " +
                              std::move(message));
  }
  return {};
}

bool JinjaRun::out_of_work() {
  if (work_.stopped())
    error_ = work_.error();
  else
    fail("it needs more work than a render may do; shorten the conversation or mend the template");
  return false;
}

bool JinjaRun::check_memory() {
  if (held_bytes_ + passing_bytes_ <= limits_.max_held_bytes) return true;
  fail("it makes more than " + std::to_string(limits_.max_held_bytes >> 20) +
       " MiB of intermediate values; shorten the conversation or mend the template");
  return false;
}

bool JinjaRun::allocate(size_t bytes) {
  if (!touch(bytes)) return false;
  passing_bytes_ += times(bytes, 1);
  return check_memory();
}

bool JinjaRun::hold(size_t bytes) {
  if (error_) return false;
  held_bytes_ += times(bytes, 1);
  return check_memory();
}

JinjaValue JinjaRun::make_string(std::string text) {
  struct HeldString {
    std::string text;
    JinjaHeld held;
  };
  if (!step()) return {};
  auto owner = std::make_shared<HeldString>(HeldString{std::move(text), {}});
  owner->held = JinjaHeld(*this, owner->text.capacity() + sizeof(HeldString) + 32);
  if (error_) return {};
  return JinjaValue(std::shared_ptr<const std::string>(owner, &owner->text));
}

JinjaValue JinjaRun::make_list(std::vector<JinjaValue> items, JinjaList::Shape shape) {
  if (!step() || !touch_values(items.size())) return {};
  auto list = std::make_shared<JinjaList>();
  int deepest = 0;
  for (const JinjaValue& item : items) deepest = std::max(deepest, item.depth());
  if (deepest >= kMaxValueDepth)
    return fail("it nests values deeper than " + std::to_string(kMaxValueDepth) + " levels");
  list->held = JinjaHeld(*this, items.capacity() * sizeof(JinjaValue) + sizeof(JinjaList));
  if (error_) return {};
  list->depth = deepest + 1;
  list->shape = shape;
  list->items = std::move(items);
  return JinjaValue(std::shared_ptr<const JinjaList>(std::move(list)));
}

JinjaValue JinjaRun::make_dict(std::vector<JinjaDict::Item> items) {
  if (!step() || !touch_values(items.size())) return {};
  auto dict = std::make_shared<JinjaDict>();
  std::map<std::string_view, size_t> seen;
  for (auto& [key, value] : items) {
    if (key.is_dict() || key.kind() == JinjaValue::Kind::kNamespace ||
        (key.is_list() && key.as_list().shape != JinjaList::Shape::kTuple)) {
      return fail("a dict key must be a string, a number, a boolean or none");
    }
    if (key.is_string()) {
      // In a tree, some twenty comparisons deep at most.
      if (!allocate(96) || !touch(20 * key.as_string().size())) return {};
      const auto [place, fresh] = seen.emplace(key.as_string(), dict->items.size());
      if (!fresh) {
        dict->items[place->second].second = std::move(value);
        continue;
      }
    } else if (!touch_values(dict->items.size())) {
      return {};
    } else if (const JinjaValue* old = dict->find(key)) {
      const_cast<JinjaValue&>(*old) = std::move(value);
      continue;
    }
    dict->items.emplace_back(key, std::move(value));
  }
  finish_dict(*dict);
  if (dict->depth > kMaxValueDepth)
    return fail("it nests values deeper than " + std::to_string(kMaxValueDepth) + " levels");
  dict->held =
      JinjaHeld(*this, dict->items.capacity() * sizeof(JinjaDict::Item) + dict->index.size() * 64 + sizeof(JinjaDict));
  if (error_) return {};
  return JinjaValue(std::shared_ptr<const JinjaDict>(std::move(dict)));
}

std::shared_ptr<JinjaNamespace> JinjaRun::make_namespace() {
  if (!step() || !hold(256)) return nullptr;  // kept until the run ends
  namespaces_.push_back(std::make_shared<JinjaNamespace>());
  return namespaces_.back();
}

JinjaValue jinja_list(std::vector<JinjaValue> items) {
  auto list = std::make_shared<JinjaList>();
  for (const JinjaValue& item : items) list->depth = std::max(list->depth, item.depth() + 1);
  list->items = std::move(items);
  return JinjaValue(std::shared_ptr<const JinjaList>(std::move(list)));
}

JinjaValue jinja_dict(std::vector<std::pair<std::string, JinjaValue>> items) {
  auto dict = std::make_shared<JinjaDict>();
  for (auto& [key, value] : items) dict->items.emplace_back(JinjaValue(std::move(key)), std::move(value));
  finish_dict(*dict);
  return JinjaValue(std::shared_ptr<const JinjaDict>(std::move(dict)));
}

}  // namespace loralei

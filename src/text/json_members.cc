// SPDX-License-Identifier: Apache-2.0
#include "text/json_members.h"

#include <algorithm>
#include <vector>

#include "base/limits.h"

namespace loralei {
namespace {

constexpr int64_t kTakeBytes = 256 * kKiB;  // asked for at a time
// What a value takes, by malloc's sizes: in its parent's list, which doubles, and in
// the line of what is destroyed, which doubles while it is copied; or in an object's node
// with its key. A string and a list have a block of their own. Text grows by doubling;
// the longest also lies in the parser, once as it stands and once as it reads.
constexpr int64_t kValueBytes = 5 * sizeof(Json);
constexpr int64_t kMemberBytes = 128;
constexpr int64_t kBlockBytes = 80;
constexpr int64_t kTextFactor = 2;
constexpr int64_t kLongestFactor = 4;

size_t longest_string(std::string_view text) {
  size_t longest = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '"') continue;
    const size_t begin = i;
    for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
    longest = std::max(longest, i - begin);
  }
  return longest;
}

class MemberBuilder final : public nlohmann::json_sax<Json> {
 public:
  MemberBuilder(std::optional<std::span<const std::string_view>> only, int64_t max_values, const TakeMemory& take)
      : only_(only), max_values_(max_values), take_(take) {}

  Status failure;  // why building ended before the text did; ok where the text is no JSON
  Json root;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return !builds() || (take_text(value.size()) && add(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (depth_ == 1) kept_ = !only_ || std::find(only_->begin(), only_->end(), name) != only_->end();
    if (!builds()) return true;
    if (!take_text(name.size()) || !take(kMemberBytes)) return false;
    member_ = &parents_.back()->get_ref<Json::object_t&>()[std::move(name)];
    *member_ = nullptr;  // named twice: the last counts
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool builds() const { return depth_ == 0 || kept_; }
  bool add(Json&& value) {
    if (!builds()) return true;
    return place(std::move(value)) != nullptr;
  }
  bool open(Json&& value) {
    if (builds()) {
      Json* const placed = place(std::move(value));
      if (placed == nullptr) return false;
      parents_.push_back(placed);
    }
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    if (builds()) parents_.pop_back();
    return true;
  }
  Json* place(Json&& value) {
    if (++values_ > max_values_) {
      failure = too_large("more than " + std::to_string(max_values_) + " values would have to be read of it");
      return nullptr;
    }
    if (!take(kValueBytes + (value.is_structured() ? kBlockBytes : 0))) return nullptr;
    Json* const to = parents_.empty() ? &root : parents_.back()->is_array() ? &append() : member_;
    *to = std::move(value);
    return to;
  }
  // Pointers to open values stay: nothing grows behind an open child.
  Json& append() { return parents_.back()->get_ref<Json::array_t&>().emplace_back(); }

  bool take_text(size_t bytes) { return take(kBlockBytes + kTextFactor * static_cast<int64_t>(bytes)); }
  bool take(int64_t bytes) {
    needed_ += bytes;
    if (needed_ <= taken_ || !take_) return true;
    const int64_t more = std::max(needed_ - taken_, kTakeBytes);
    failure = take_(more);
    if (failure.ok()) taken_ += more;
    return failure.ok();
  }

  const std::optional<std::span<const std::string_view>> only_;
  const int64_t max_values_;
  const TakeMemory& take_;
  int64_t values_ = 0, needed_ = 0, taken_ = 0;
  int depth_ = 0;
  bool kept_ = false;  // the member that is being read
  std::vector<Json*> parents_;
  Json* member_ = nullptr;  // of the innermost object, the one named last
};

}  // namespace

Result<Json> parse_json_members(std::string_view text, const std::string& name,
                                std::optional<std::span<const std::string_view>> only, int64_t max_values,
                                const TakeMemory& take) {
  if (json_too_deep(text)) return corrupt(name + " is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
  if (take) TRY(take(kLongestFactor * static_cast<int64_t>(longest_string(text))));
  MemberBuilder builder(only, max_values, take);
  const bool whole = Json::sax_parse(text.begin(), text.end(), &builder);
  if (!builder.failure.ok()) return std::move(builder.failure).error().with_context("reading " + name);
  if (!whole) return corrupt(name + " is not valid JSON: it is damaged or cut");
  if (!builder.root.is_object()) return corrupt(name + " is not a JSON object");
  return std::move(builder.root);
}

}  // namespace loralei

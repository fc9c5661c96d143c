// SPDX-License-Identifier: Apache-2.0
// From a file's bytes to requests: lines, their JSON, their keys.
#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <memory>
#include <set>
#include <string_view>

#include "base/limits.h"
#include "base/printable.h"
#include "formats/json_util.h"
#include "sys/file.h"
#include "workload/packed_file.h"
#include "workload/workload.h"
#include "workload/workload_rules.h"

namespace loralei {
namespace {

constexpr std::array kKeys = {"t", "adapter", "rank", "prompt_tokens", "output_tokens", "prefix", "app", "key"};
constexpr std::array kPrefixKeys = {"id", "tokens"};

std::string quoted(const std::string& text) { return "\"" + printable(text, 80) + "\""; }

template <size_t N>
std::string listed(const std::array<const char*, N>& keys) {
  std::string text;
  for (size_t i = 0; i < N; ++i) text += (i == 0 ? "" : i + 1 == N ? " and " : ", ") + std::string(keys[i]);
  return text;
}

std::string example_line() { return workload_line({.at_ns = 500'000'000, .prompt_tokens = 100, .output_tokens = 20}); }

// The library keeps the last of two equal keys; here the second one is an error.
Result<Json> parse_line(std::string_view line, const std::string& place) {
  if (json_too_deep(line)) return corrupt(place + ": the line's JSON is nested too deep for a request.");
  std::vector<std::set<std::string>> open;  // keys of the objects that are not closed yet
  std::string twice;
  const auto look = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second && twice.empty())
      twice = quoted(parsed.get<std::string>());
    return true;
  };
  try {
    Json value = Json::parse(line, look);
    if (!value.is_object())
      return corrupt(place + ": the line is no JSON object. A request looks like " + example_line());
    if (!twice.empty()) return corrupt(place + ": the key " + twice + " stands twice. Keep one of them.");
    return value;
  } catch (const std::exception& failure) {
    return corrupt(place + ": the line is not valid JSON (" + std::string(failure.what()).substr(0, 200) +
                   "). A request looks like " + example_line());
  }
}

template <size_t N>
Status check_keys(const Json& object, const std::array<const char*, N>& known, const char* what,
                  const std::string& place) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      return corrupt(place + ": " + quoted(key) + " is no key of a " + what + ". It has " + listed(known) + ".");
  }
  return {};
}

template <typename T>
Result<T> needed(Result<std::optional<T>> found, const char* key, const std::string& place) {
  if (!found.ok()) return std::move(found).error();
  if (found->has_value()) return **found;
  return corrupt(place + ": \"" + key + "\" is missing. Every request states it.");
}

Result<int64_t> time_ns(const Json& object, const std::string& place) {
  TRY_ASSIGN(const double seconds, needed(json_number(object, "t", place), "t", place));
  if (!(seconds >= 0) || seconds > static_cast<double>(kWorkloadSecondsMax))
    return corrupt(place + ": \"t\" is " + json_brief(object["t"]) + "; it must be from 0 to " +
                   std::to_string(kWorkloadSecondsMax) + " seconds.");
  return std::llround(seconds * 1e9);
}

Status read_prefix(const Json& value, const std::string& place, std::vector<WorkloadPrefix>& prefixes) {
  if (!value.is_object())
    return corrupt(place + ": \"prefix\" is an object {\"id\": \"...\", \"tokens\": N} or a list of such, not " +
                   json_brief(value) + ".");
  TRY(check_keys(value, kPrefixKeys, "prefix", place));
  WorkloadPrefix prefix;
  TRY_ASSIGN(prefix.id, needed(json_string(value, "id", place), "id", place));
  TRY_ASSIGN(const int64_t tokens, needed(json_int(value, "tokens", 1, kMaxModelLen, place), "tokens", place));
  prefix.tokens = static_cast<int32_t>(tokens);
  prefixes.push_back(std::move(prefix));
  return {};
}

Result<WorkloadRequest> read_line(std::string_view line, const std::string& place) {
  TRY_ASSIGN(const Json object, parse_line(line, place));
  TRY(check_keys(object, kKeys, "request", place));
  WorkloadRequest request;
  TRY_ASSIGN(request.at_ns, time_ns(object, place));
  const auto tokens = [&](const char* key) {
    return needed(json_int(object, key, 1, kMaxModelLen, place), key, place);
  };
  TRY_ASSIGN(const int64_t prompt, tokens("prompt_tokens"));
  TRY_ASSIGN(const int64_t output, tokens("output_tokens"));
  TRY_ASSIGN(const auto rank, json_int(object, "rank", 1, kMaxLoraRank, place));
  request.prompt_tokens = static_cast<int32_t>(prompt);
  request.output_tokens = static_cast<int32_t>(output);
  request.rank = static_cast<int32_t>(rank.value_or(0));
  const auto name = [&](const char* key, std::string& text) -> Status {
    TRY_ASSIGN(auto found, json_string(object, key, place));
    text = std::move(found).value_or("");
    return {};
  };
  TRY(name("adapter", request.adapter));
  TRY(name("app", request.app));
  TRY(name("key", request.key));
  const Json* const prefix = json_find(object, "prefix");
  if (prefix == nullptr) return request;
  if (!prefix->is_array()) {
    TRY(read_prefix(*prefix, place, request.prefixes));
    return request;
  }
  for (const Json& one : *prefix) TRY(read_prefix(one, place, request.prefixes));
  return request;
}

class WorkloadReader {
 public:
  explicit WorkloadReader(std::string path) : path_(std::move(path)) {}

  // `line` without its end.
  Status add(std::string_view line) {
    if (++line_ > kWorkloadLinesMax)
      return too_large(place() + ": a workload has at most " + std::to_string(kWorkloadLinesMax) +
                       " lines. Split the file.");
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos || line.front() == '#') return {};
    TRY_ASSIGN(WorkloadRequest request, read_line(line, place()));
    if (const Status status = rules_.check(request, line_); !status.ok())
      return Error{status.error()}.with_context(place());
    requests_.push_back(std::move(request));
    return {};
  }
  Error too_long() const {
    return too_large(path_ + ":" + std::to_string(line_ + 1) + ": the line has more than " +
                     std::to_string(kWorkloadLineBytesMax) + " bytes. Is the file one of lines of JSON?");
  }
  Workload take() { return std::move(requests_); }

 private:
  std::string place() const { return path_ + ":" + std::to_string(line_); }

  const std::string path_;
  int64_t line_ = 0;
  WorkloadRules rules_;
  Workload requests_;
};

}  // namespace

Result<Workload> read_workload(const std::string& path) {
  TRY(check_not_packed(path));
  TRY_ASSIGN(const std::unique_ptr<File> file, PosixFileSystem().open(path));
  WorkloadReader reader(path);
  std::string pending;  // the beginning of a line that goes on behind what was read
  std::vector<char> chunk(static_cast<size_t>(kWorkloadLineBytesMax));
  for (int64_t offset = 0; offset < file->size_bytes();) {
    const size_t count = static_cast<size_t>(std::min<int64_t>(kWorkloadLineBytesMax, file->size_bytes() - offset));
    TRY(file->read_exact(offset, std::as_writable_bytes(std::span(chunk.data(), count))));
    offset += static_cast<int64_t>(count);
    std::string_view rest(chunk.data(), count);
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      pending += rest.substr(0, end);
      rest.remove_prefix(end + 1);
      if (pending.size() > static_cast<size_t>(kWorkloadLineBytesMax)) return reader.too_long();
      TRY(reader.add(pending));
      pending.clear();
    }
    pending += rest;
    if (pending.size() > static_cast<size_t>(kWorkloadLineBytesMax)) return reader.too_long();
  }
  if (!pending.empty()) TRY(reader.add(pending));
  return reader.take();
}

}  // namespace loralei

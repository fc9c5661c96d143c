// SPDX-License-Identifier: Apache-2.0
#include "workload/workload.h"

#include <cstdio>

#include "formats/json_util.h"
#include "sys/write_file.h"
#include "workload/workload_rules.h"

namespace loralei {
namespace {

constexpr size_t kWriteBytes = 1 << 20;  // at a time

std::string string_text(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string prefix_text(const WorkloadPrefix& prefix) {
  return "{\"id\": " + string_text(prefix.id) + ", \"tokens\": " + std::to_string(prefix.tokens) + "}";
}

std::string prefixes_text(const std::vector<WorkloadPrefix>& prefixes) {
  if (prefixes.size() == 1) return prefix_text(prefixes.front());
  std::string text = "[";
  for (const WorkloadPrefix& prefix : prefixes) text += (text.size() == 1 ? "" : ", ") + prefix_text(prefix);
  return text + "]";
}

Status write_lines(WriteFile& file, std::span<const WorkloadRequest> requests) {
  WorkloadRules rules;
  std::string text;
  int64_t line = 0, offset_bytes = 0;
  const auto flush = [&]() -> Status {
    TRY(file.write(offset_bytes, std::as_bytes(std::span(text.data(), text.size()))));
    offset_bytes += static_cast<int64_t>(text.size());
    text.clear();
    return {};
  };
  for (const WorkloadRequest& request : requests) {
    ++line;
    if (const Status status = rules.check(request, line); !status.ok())
      return Error{status.error()}.with_context("the request of line " + std::to_string(line));
    text += workload_line(request) + "\n";
    if (text.size() >= kWriteBytes) TRY(flush());
  }
  return flush();
}

}  // namespace

std::string seconds_text(int64_t ns) {
  const std::string sign = ns < 0 ? "-" : "";
  const uint64_t size = ns < 0 ? uint64_t{0} - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  std::string text = sign + std::to_string(size / kNsPerSecond);
  const uint64_t part = size % kNsPerSecond;
  if (part == 0) return text;
  std::string digits = std::to_string(part);
  digits.insert(0, 9 - digits.size(), '0');
  return text + "." + digits.substr(0, digits.find_last_not_of('0') + 1);
}

std::string workload_line(const WorkloadRequest& request) {
  std::string text = "{\"t\": " + seconds_text(request.at_ns);
  if (!request.adapter.empty()) text += ", \"adapter\": " + string_text(request.adapter);
  if (request.rank != 0) text += ", \"rank\": " + std::to_string(request.rank);
  text += ", \"prompt_tokens\": " + std::to_string(request.prompt_tokens);
  text += ", \"output_tokens\": " + std::to_string(request.output_tokens);
  if (!request.prefixes.empty()) text += ", \"prefix\": " + prefixes_text(request.prefixes);
  if (!request.app.empty()) text += ", \"app\": " + string_text(request.app);
  if (!request.key.empty()) text += ", \"key\": " + string_text(request.key);
  return text + "}";
}

Status write_workload(const std::string& path, std::span<const WorkloadRequest> requests) {
  if (static_cast<int64_t>(requests.size()) > kWorkloadLinesMax)
    return too_large("A workload has at most " + std::to_string(kWorkloadLinesMax) + " requests, and this one has " +
                     std::to_string(requests.size()) + ". Ask for fewer.");
  TRY_ASSIGN(WriteFile file, WriteFile::open(path + ".part"));
  Status status = file.resize(0);
  if (status.ok()) status = write_lines(file, requests);
  if (status.ok()) status = file.commit(path);
  if (!status.ok()) TRY(remove_file(path + ".part"));
  return status;
}

}  // namespace loralei

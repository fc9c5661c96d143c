// SPDX-License-Identifier: Apache-2.0
// The log's lines of requests, as metrics.h declares them.
#include <algorithm>

#include "base/printable.h"
#include "serve/metrics.h"

namespace loralei {
namespace {

constexpr size_t kSentenceBytes = 500;  // of a sentence in a log line: it may repeat what the client sent

}  // namespace

std::string_view known_method(std::string_view method) {
  static constexpr std::string_view kMethods[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"};
  const bool known = std::find(std::begin(kMethods), std::end(kMethods), method) != std::end(kMethods);
  return known ? method : "other";
}

void log_request(LogSink& log, const RequestRecord& r) {
  LogFields fields = {{"kind", r.kind},
                      {"id", r.id},
                      {"adapter", r.adapter},
                      {"version", r.version},
                      {"prompt", r.prompt_tokens},
                      {"cached", r.cached_tokens},
                      {"out", r.output_tokens},
                      {"queue_ms", r.queue_s * 1e3},
                      {"ttft_ms", std::max(0.0, r.ttft_s) * 1e3},
                      {"total_ms", r.total_s * 1e3},
                      {"choices", r.choices},
                      {"end", r.end}};
  if (!r.key.empty()) fields.emplace_back("key", r.key);
  log.event(LogLevel::kInfo, "request", fields);
}

void log_refusal(LogSink& log, const std::string& id, std::string_view method, const char* route, int status,
                 std::string_view sentence, const std::string& key) {
  LogFields fields = {{"id", id}, {"method", known_method(method)}, {"route", route}, {"status", status}};
  if (!key.empty()) fields.emplace_back("key", key);
  log.event(LogLevel::kInfo, "request refused", fields, printable(sentence, kSentenceBytes));
}

}  // namespace loralei

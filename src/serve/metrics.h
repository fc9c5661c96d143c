// SPDX-License-Identifier: Apache-2.0
// Metrics: what /metrics shows, in Prometheus' text format: loralei_* names, and the same
// figures under vLLM's names so that its dashboards and the inference gateways read them.
//
// Thread-safe.
// Ownership: owns its registry; the engine's and the listener's figures are handed to
// render() as snapshots.
// Invariants: no label holds a client's string: adapters appear under registered names
// only, at most `adapters_max` of them as a label's value (the first that were used,
// until they are unloaded; the rest together as "other"); methods, handlers and
// reasons come from fixed sets. Counters never fall. Each render holds exactly one
// lora_requests_info series. Histograms have vLLM's buckets.
// Failure: none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/log.h"
#include "engine/api.h"
#include "http/server.h"
#include "serve/recent_times.h"

namespace loralei {

// One finished request, as metrics and the request log line report it.
struct RequestRecord {
  std::string id;
  std::string adapter;  // registered name, "+"-joined for sums; empty = the base
  size_t adapters = 1;  // names in `adapter`; more than one: a sum
  std::string version;
  const char* kind = "chat";  // chat, completion, embedding
  bool generates = true;      // false: an embedding
  bool admitted = false;      // the engine began with it: something other than an error came
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  int64_t borrowed_tokens = 0;
  int64_t longest_output = 0;  // tokens of its longest choice
  // From arrival: until the engine began with the first of it that was heard of, until
  // the first token (< 0: none came), until the end.
  double queue_s = 0, ttft_s = -1, total_s = 0;
  const char* end = "stop";  // stop, length, tool_calls, abort, error
  int choices = 1;
  int64_t max_tokens = 0;
  std::string key;  // the name of the key that it came with; empty: it has none
};
// "request kind=... id=... adapter=...": no prompt text.
void log_request(LogSink& log, const RequestRecord& record);
// "request refused id=... method=... route=... status=...: sentence": one that never
// became a RequestRecord.
void log_refusal(LogSink& log, const std::string& id, std::string_view method, const char* route, int status,
                 std::string_view sentence, const std::string& key = {});
std::string_view known_method(std::string_view method);  // "other" for what is none of HTTP's

// Of the adapter store, where there is one.
struct AdapterStoreFigures {
  int64_t adapters = 0, bytes = 0;
  uint64_t fetched = 0, failed = 0, fetched_bytes = 0;  // from peers
};

struct MetricsOptions {
  std::string model_name;
  int64_t max_model_len = 0;
  int adapters_max = 100;
  bool vllm_names = true;
  // Whether an adapter of this name exists. Called with the metrics' lock held.
  std::function<bool(const std::string&)> registered = [](const std::string&) { return true; };
};

class Metrics {
 public:
  explicit Metrics(const MetricsOptions& options);
  ~Metrics();

  void http_request(const char* handler, std::string_view method, int status);
  // One that was never admitted counts by its end alone: its times and tokens are
  // those of nothing.
  void request_done(const RequestRecord& record);
  // It is registered no longer: its counters end, and its place is another's.
  void adapter_gone(const std::string& name);
  void inter_token(double seconds);
  void unknown_fields(size_t count);
  void refused(const char* reason);  // queue_full, draining
  void default_adapters_set();
  void adapter_store(const AdapterStoreFigures& figures);  // as they are now
  // What /metrics has as histograms since the start, of the last seconds; on no page of
  // it.
  RecentAnswerTimes& recent() { return recent_; }

  std::string render(const EngineStats& engine, const AdapterList& adapters, const HttpServerStats& http,
                     double unix_time_s, const LogState& log = {}, bool ready = true) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  RecentAnswerTimes recent_;
};

// The same page as OpenMetrics 1.0 has it: families without "_total", an end. Counters
// that do not end so, or whose family would be that of a gauge, are "unknown".
std::string as_openmetrics(std::string_view page);

}  // namespace loralei

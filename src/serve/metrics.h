// SPDX-License-Identifier: Apache-2.0
// Metrics: what /metrics shows, in Prometheus' text format: loralei_* names, and the same figures under vLLM's names so
// that its dashboards and the inference gateways read them.
//
// Thread-safe. Ownership: owns its registry; the engine's and the listener's figures are handed to render() as
// snapshots. Invariants: no label holds a client's string: adapters appear under registered names only, at most
// `adapters_max` of them (the busiest), the rest together as "other"; methods, handlers and reasons come from fixed
// sets. Each render holds exactly one lora_requests_info series. Histograms have vLLM's buckets. Failure: none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/api.h"
#include "http/server.h"

namespace loralei {

// One finished generation request, as metrics and the request log line report it.
struct RequestRecord {
  std::string id;
  std::string adapter;  // registered name, "+"-joined for sums; empty = the base
  size_t adapters = 1;  // names in `adapter`; more than one: a sum
  std::string version;
  const char* kind = "chat";  // chat, completion, embedding
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  int64_t longest_output = 0;  // tokens of its longest choice
  double queue_s = 0;
  double ttft_s = -1;  // < 0: no token came
  double total_s = 0;
  const char* end = "stop";  // stop, length, tool_calls, abort, error
  int choices = 1;
  int64_t max_tokens = 0;
};
// "request id=... adapter=... ": one line, no prompt text.
std::string request_log_line(const RequestRecord& record);

struct MetricsOptions {
  std::string model_name;
  int64_t max_model_len = 0;
  int adapters_max = 100;
  bool vllm_names = true;
};

class Metrics {
 public:
  explicit Metrics(const MetricsOptions& options);
  ~Metrics();

  void http_request(const char* handler, std::string_view method, int status);
  void request_done(const RequestRecord& record);
  void inter_token(double seconds);
  void unknown_fields(size_t count);
  void refused(const char* reason);  // queue_full, draining

  std::string render(const EngineStats& engine, const HttpServerStats& http, double unix_time_s) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// A fleet that is there at once, and a gateway's messages for its picker. One thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fixed_byte_budget.h"
#include "base/log_test_util.h"
#include "epp/exchange.h"

namespace loralei {

struct PickerWorld {
  explicit PickerWorld(size_t replicas, FleetOptions options = {}) : fleet(first_fit(std::move(options)), clock, log) {
    clock.advance_ns(1'000'000'000);
    for (size_t i = 0; i < replicas; ++i) add({});
    world.memory = memory;
    world.max_body_bytes = 100'000;
    world.suspect = [this](size_t replica) { suspects.push_back(replica); };
  }
  // So that a test knows who is asked first.
  static FleetOptions first_fit(FleetOptions options) {
    options.policy = RoutePolicy::kFirstFit;
    options.profile.step.linear = {{1, 0.01}};
    return options;
  }
  // 10.0.0.1:8080 and so on.
  void add(std::vector<ReplicaAdapter> adapters) {
    const size_t replica = fleet.add({"10.0.0." + std::to_string(fleet.size() + 1), 8080});
    ReplicaReport report;
    report.boot = "boot", report.cursor = 1, report.models = {"base"};
    report.sequences_max = 8, report.kv_tokens = 1 << 20;
    report.adapters = std::move(adapters);
    fleet.take(replica, report);
  }
  int32_t running() const {
    int32_t sum = 0;
    for (const ReplicaState& state : fleet.states()) sum += state.sent;
    return sum;
  }
  uint64_t picks() const {
    uint64_t sum = 0;
    for (const ReplicaState& state : fleet.states()) sum += state.picks;
    return sum;
  }

  ManualClock clock;
  CollectingLog log;
  RouterMetrics metrics;
  Fleet fleet;
  std::shared_ptr<FixedByteBudget> memory = std::make_shared<FixedByteBudget>(1 << 20);
  std::vector<size_t> suspects;
  PickWorld world{.fleet = fleet, .metrics = metrics, .clock = clock, .log = log};
};

using GatewayMessage = ext_proc::ProcessingRequest;
using PickerAnswer = ext_proc::ProcessingResponse;
using Fields = std::vector<std::pair<std::string, std::string>>;

inline void add_fields(ext_proc::HttpHeaders& headers, const Fields& fields) {
  for (const auto& [name, value] : fields) {
    ext_proc::HeaderValue& field = *headers.mutable_headers()->add_headers();
    field.set_key(name);
    field.set_raw_value(value);
  }
}

inline GatewayMessage head_of(const std::string& method, const std::string& path, bool ends, const Fields& more = {}) {
  GatewayMessage message;
  add_fields(*message.mutable_request_headers(), {{":method", method}, {":path", path}});
  add_fields(*message.mutable_request_headers(), more);
  message.mutable_request_headers()->set_end_of_stream(ends);
  return message;
}
inline GatewayMessage post(const Fields& more = {}, const std::string& path = "/v1/chat/completions") {
  return head_of("POST", path, false, more);
}
inline GatewayMessage body(const std::string& bytes, bool ends = false) {
  GatewayMessage message;
  message.mutable_request_body()->set_body(bytes);
  message.mutable_request_body()->set_end_of_stream(ends);
  return message;
}
inline GatewayMessage trailers() {
  GatewayMessage message;
  message.mutable_request_trailers();
  return message;
}
inline GatewayMessage answer_head(int status, const std::string& type = "application/json", bool ends = false) {
  GatewayMessage message;
  add_fields(*message.mutable_response_headers(), {{":status", std::to_string(status)}, {"content-type", type}});
  message.mutable_response_headers()->set_end_of_stream(ends);
  return message;
}
inline GatewayMessage answer_body(const std::string& bytes, bool ends = false) {
  GatewayMessage message;
  message.mutable_response_body()->set_body(bytes);
  message.mutable_response_body()->set_end_of_stream(ends);
  return message;
}
inline GatewayMessage answer_trailers() {
  GatewayMessage message;
  message.mutable_response_trailers();
  return message;
}

// All that it says to a message.
inline std::vector<PickerAnswer> say(PickExchange& exchange, GatewayMessage message) {
  exchange.take(message);
  std::vector<PickerAnswer> answers;
  for (PickerAnswer answer; exchange.next(answer);) answers.push_back(answer);
  return answers;
}

inline std::string field_of(const ext_proc::HeaderMutation& mutation, const std::string& name) {
  for (const ext_proc::HeaderValueOption& option : mutation.set_headers()) {
    if (option.header().key() == name) return option.header().raw_value();
  }
  return "";
}
// Where a request goes, by the header; "" where that is not what is said.
inline std::string endpoint_of(const PickerAnswer& answer) {
  return field_of(answer.request_headers().response().header_mutation(), kEndpointHeader);
}
inline const std::string& piece_of(const ext_proc::BodyResponse& answer) {
  return answer.response().body_mutation().streamed_response().body();
}

}  // namespace loralei

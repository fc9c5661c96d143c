// SPDX-License-Identifier: Apache-2.0
#include "serve/queues.h"

#include <optional>
#include <utility>

#include "wire/errors.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

using IdOf = std::function<std::string(RequestId)>;

const char* name_of(SchedulePolicy policy) {
  switch (policy) {
    case SchedulePolicy::kFifo:
      return "fifo";
    case SchedulePolicy::kSjf:
      return "sjf";
    case SchedulePolicy::kWrs:
      return "wrs";
    case SchedulePolicy::kPriority:
      return "priority";
  }
  return "unknown";
}

void put(JsonOut& out, const char* key, std::optional<double> value) {
  out.key(key);
  value ? out.real(*value) : out.null();
}

void put(JsonOut& out, const char* key, std::optional<int64_t> value) {
  out.key(key);
  value ? out.number(*value) : out.null();
}

void put_sequences(JsonOut& out, const char* key, const std::vector<QueuedSequence>& sequences, const IdOf& id_of) {
  out.key(key).begin_array();
  for (const QueuedSequence& sequence : sequences) {
    out.begin_object().key("id").string_or_null(id_of(sequence.request)).key("choice").number(sequence.choice);
    out.key("adapter").string_or_null(sequence.adapter);
    out.key("input_tokens").number(sequence.input_tokens).key("output_tokens").number(sequence.output_tokens);
    put(out, "output_predicted", sequence.output_predicted);
    if (sequence.cause) {
      out.key("waited_s").real(sequence.since_arrival_s);
      out.key("cause").string(kWaitCauseNames[static_cast<size_t>(*sequence.cause)]);
    } else {
      out.key("since_arrival_s").real(sequence.since_arrival_s).key("running_s").real(sequence.running_s);
    }
    out.end_object();
  }
  out.end_array();
}

void put_queue(JsonOut& out, int number, const QueueState& queue, const IdOf& id_of) {
  out.begin_object().key("queue").number(number);
  out.key("size_from").real(queue.size_from).key("size_to").real(queue.size_to);  // no end: null
  put(out, "quota_tokens", queue.quota_tokens);
  out.key("taken_tokens").number(queue.taken_tokens);
  put(out, "least_tokens", queue.least_tokens);
  put(out, "wanted_s", queue.wanted_s);
  put(out, "arrivals_per_s", queue.arrivals_per_s);
  out.key("waiting").number(queue.waiting).key("set_aside").number(queue.set_aside);
  out.key("running").number(queue.running).key("longest_wait_s").real(queue.longest_wait_s);
  put_sequences(out, "first_waiting", queue.first_waiting, id_of);
  put_sequences(out, "first_running", queue.first_running, id_of);
  out.end_object();
}

}  // namespace

std::string queues_body(const QueuesState& state, const IdOf& id_of) {
  JsonOut out;
  out.begin_object().key("policy").string(name_of(state.policy));
  out.key("prediction");
  state.prediction ? out.string(kLengthPredictionNames[static_cast<size_t>(*state.prediction)]) : out.null();
  out.key("tokens_total").number(state.tokens_total).key("refits").number(static_cast<int64_t>(state.refits));
  put(out, "refit_ago_s", state.refit_ago_s);
  put(out, "refit_in_s", state.refit_in_s);
  put(out, "refit_in_requests", state.refit_in_requests);
  out.key("queues").begin_array();
  int number = 0;
  for (const QueueState& queue : state.queues) put_queue(out, ++number, queue, id_of);
  out.end_array();
  out.key("unplaced").begin_object().key("waiting").number(state.unplaced);
  put_sequences(out, "first_waiting", state.first_unplaced, id_of);
  out.end_object().key("held").number(state.held).end_object();
  return out.take();
}

void show_queues(const ServeContext& context, std::shared_ptr<Reply> reply) {
  const auto answer = [reply, &dispatcher = context.dispatcher](const CommandReply& answered) {
    if (!answered.status.ok()) return reply->refuse(to_api_error(answered.status.error()));
    reply->json(200, queues_body(*answered.queues, [&](RequestId id) { return dispatcher.request_id(id); }));
  };
  const Status status = context.dispatcher.command(QueuesCommand{}, answer);
  if (!status.ok()) reply->refuse(to_api_error(status.error()));
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// Relay: one request on its way to a replica and its answer on the way back.
//
//   client ──► start_relay() ──► Fleet::place() ──► Upstream ──► replica
//   client ◄── ResponseWriter ◄── AnswerReader ◄── UpstreamListener ◄──┘
//
// A request whose replica breaks off, or says that it cannot take it, is sent to another
// one as long as nothing but comments has gone to the client. After that a stream gets
// one error event behind its last whole event, and anything else is cut off. With hedges
// a stream that does not begin may be on two replicas at a time; the first that says
// something is heard, and the other one cancelled.
//
// Thread: start_relay() from an I/O thread of the server; the rest by itself, on the
// threads of Upstream and of the server. Never blocks.
// Ownership: keeps itself until its answer has ended; borrows what RelayWorld names,
// which outlives Upstream.
// Invariants: every request has one answer, or its connection is cut; what Fleet::place()
// counted is taken back once; what is kept of an answer belongs to its request's share of
// the memory, and passes as it comes where there is none; a client that is slow makes its
// replica wait, one that leaves cancels its request there.
// Failure: told to the client, in its API's form.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "http/server.h"
#include "http/upstream.h"
#include "router/fleet.h"
#include "router/hedges.h"
#include "router/relay_board.h"
#include "router/router_metrics.h"
#include "wire/errors.h"

namespace loralei {

// Whose clients ask: in what form they read an error.
enum class RelayForm : uint8_t { kOpenAi, kAnthropic };

struct RelayWorld {
  Fleet& fleet;
  Upstream& upstream;
  RouterMetrics& metrics;
  const Clock& clock;
  LogSink& log;
  RelayBoard& board;
  int retries = 2;           // on other replicas
  Hedges* hedges = nullptr;  // null: no request is on two replicas
};

struct RelayRequest {
  HttpRequest http;
  std::string id;  // X-Request-Id
  const char* route = "";
  RelayForm form = RelayForm::kOpenAi;
  RouteObjectives objectives;
  // Of an answer that is good: what its body is instead (the replica's word is that this
  // client may have it). Absent: it is its own.
  std::function<std::string()> body_instead = {};
};

void start_relay(const RelayWorld& world, RelayRequest request, std::shared_ptr<ResponseWriter> writer);

// What an error looks like to such a client.
std::string relay_error_body(RelayForm form, const ApiError& error, const std::string& id);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// A request that every replica is to do: loading and unloading adapters. Each is asked at
// once; the answer comes when all have answered.
//
// Thread: start_fan_out() from any; the rest on the threads of Upstream.
// Ownership: keeps itself until the last answer; borrows what FanOutWorld names.
// Invariants: one answer. Where all say the same, that is it; else it is status 502 and
// says what each did, so that nobody takes a part for the whole: one that comes back
// later would answer with what it had before. Replicas that are left out at the moment
// are not asked, and count as ones that did not do it; the header X-Loralei-Replicas says
// how many were asked. One that has done it already (FanOutRequest::first) is not asked
// and counts as one that was. One that stops answering looks meanwhile has broken off.
// Failure: told to the client.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "http/server.h"
#include "http/upstream.h"
#include "router/fleet.h"
#include "router/relay.h"
#include "router/router_metrics.h"

namespace loralei {

struct FanOutWorld {
  Fleet& fleet;
  Upstream& upstream;
  RouterMetrics& metrics;
  RelayBoard& board;
};

struct FanOutRequest {
  HttpRequest http;
  std::string id;  // X-Request-Id
  const char* route = "";
  // Who has done it before, and said so: where the others do it too that is the answer.
  struct First {
    UpstreamAddress address;
    int status = 200;
    std::string type, body;
  };
  std::optional<First> first = std::nullopt;
};
// Of the one answer, once, on any thread.
using FanOutDone = std::function<void(int status, HttpHeaders headers, std::string body)>;

void start_fan_out(const FanOutWorld& world, FanOutRequest request, FanOutDone done);
void start_fan_out(const FanOutWorld& world, FanOutRequest request, std::shared_ptr<ResponseWriter> writer);

}  // namespace loralei

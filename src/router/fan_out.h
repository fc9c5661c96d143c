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
// how many were asked.
// Failure: told to the client.
#pragma once

#include <memory>
#include <string>

#include "http/server.h"
#include "http/upstream.h"
#include "router/fleet.h"
#include "router/router_metrics.h"

namespace loralei {

struct FanOutWorld {
  Fleet& fleet;
  Upstream& upstream;
  RouterMetrics& metrics;
};

struct FanOutRequest {
  HttpRequest http;
  std::string id;  // X-Request-Id
  const char* route = "";
};

void start_fan_out(const FanOutWorld& world, FanOutRequest request, std::shared_ptr<ResponseWriter> writer);

}  // namespace loralei

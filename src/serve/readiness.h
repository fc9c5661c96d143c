// SPDX-License-Identifier: Apache-2.0
// Readiness: what the server cannot do now, and why. A pure function of what is
// known of its parts.
//
// Some of it concerns every request: then the server is not ready. The rest is told
// beside "ready". All of it is looked at anew each time, so that it is over when its
// reason is.
// Failure: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/heartbeats.h"
#include "base/log.h"
#include "base/result.h"
#include "engine/api.h"

namespace loralei {

struct Impediment {
  std::string what;     // that cannot be done: "requests", "adapters", "logs"
  std::string why;      // a sentence
  int64_t since_s = 0;  // 0: not known, or just now
  bool all = false;     // no request can be answered
};

struct ServerState {
  Status health;  // Engine::health()
  bool draining = false;
  int max_queued = 0;
  EngineStats stats;
  AdapterList adapters;
  LogState log;
  std::vector<Heartbeats::Silence> silences;  // of all threads
};

std::vector<Impediment> impediments(const ServerState& state);
bool is_ready(const std::vector<Impediment>& impediments);
// {"status":"ready"}, with what cannot be done beside it.
std::string readiness_body(const std::vector<Impediment>& impediments);
// The engine's thread does nothing any more: only another start helps.
bool engine_is_stuck(const ServerState& state);

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// ServeContext: what every request object needs of the server.
// Thread: everything in it is thread-safe. Ownership: borrowed; all of it outlives
// the requests.
#pragma once

#include "base/clock.h"
#include "base/log.h"
#include "engine/api.h"
#include "serve/dispatcher.h"
#include "serve/metrics.h"

namespace loralei {

struct ServeContext {
  Engine& engine;
  Dispatcher& dispatcher;
  Metrics& metrics;
  const Clock& clock;
  LogSink& log;
  int64_t ping_interval_ns;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// --kv-events and its companions: where it is published what the KV cache holds.
//
// Thread: one, at start and at the end.
// Ownership: the caller's; what publishes goes before whoever knows the names.
// Failure: a sentence with the flag.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "events/kv_event_publisher.h"

namespace loralei {

void add_kv_events_options(CLI::App& command, KvEventsOptions& options, const std::string& group);

// Both null where nobody is to be told.
struct KvEventsUse {
  std::unique_ptr<KvEventSockets> sockets;
  std::shared_ptr<KvEvents> events;
};
// Before the model is loaded, which may take minutes.
Result<KvEventsUse> open_kv_events(const KvEventsOptions& options, LogSink& log);
// Null where there are no sockets.
Result<std::unique_ptr<KvEventPublisher>> publish_kv_events(KvEventsUse use, AdapterNameOf name_of, const Clock& clock);

}  // namespace loralei

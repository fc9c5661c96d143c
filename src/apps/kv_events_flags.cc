// SPDX-License-Identifier: Apache-2.0
#include "apps/kv_events_flags.h"

#include <utility>

namespace loralei {

void add_kv_events_options(CLI::App& command, KvEventsOptions& options, const std::string& group) {
  constexpr int kMost = 10'000'000;
  command
      .add_option("--kv-events", options.endpoint,
                  "ZMQ address at which it is published what the KV cache holds, as vLLM does: tcp://*:5557 to be "
                  "connected to, tcp://HOST:5557 to connect")
      ->group(group);
  command
      .add_option("--kv-events-replay", options.replay_endpoint,
                  "ZMQ address at which earlier messages of --kv-events are said again")
      ->group(group);
  command.add_option("--kv-events-topic", options.topic, "topic of these messages; llm-d wants kv@POD_IP:PORT@MODEL")
      ->group(group);
  command.add_option("--kv-events-buffer-steps", options.buffer_steps, "messages that are kept for --kv-events-replay")
      ->capture_default_str()
      ->check(CLI::Range(1, kMost))
      ->group(group);
  command
      .add_option("--kv-events-hwm", options.hwm,
                  "messages that wait for a subscriber that is slow; beyond them it misses some")
      ->capture_default_str()
      ->check(CLI::Range(1, kMost))
      ->group(group);
  command
      .add_option("--kv-events-max-queue-size", options.max_queue_size,
                  "blocks that wait for being published; beyond them all is told anew")
      ->capture_default_str()
      ->check(CLI::Range(16, kMost))
      ->group(group);
}

Result<KvEventsUse> open_kv_events(const KvEventsOptions& options, LogSink& log) {
  KvEventsUse use;
  TRY(check_kv_events(options));
  if (options.endpoint.empty()) return use;
  TRY_ASSIGN(use.sockets, KvEventSockets::open(options));
  use.events = std::make_shared<KvEvents>(static_cast<size_t>(options.max_queue_size));
  const std::string replay = use.sockets->replay_endpoint();
  log.log(LogLevel::kInfo, "what the KV cache holds is published " +
                               std::string(kv_events_binds(options.endpoint) ? "at " : "to ") +
                               use.sockets->endpoint() + (replay.empty() ? "" : ", and said again at " + replay) +
                               "; the tokens of prompts are among it, so let only those connect who may read them");
  return use;
}

Result<std::unique_ptr<KvEventPublisher>> publish_kv_events(KvEventsUse use, AdapterNameOf name_of,
                                                            const Clock& clock) {
  if (use.sockets == nullptr) return std::unique_ptr<KvEventPublisher>();
  return KvEventPublisher::start(std::move(use.sockets), std::move(use.events), std::move(name_of), clock);
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// KvEventSockets: where KV cache events are published (--kv-events) and said again
// (--kv-events-replay), in the frames of vLLM's publisher.
//
//   PUB      topic | sequence number, 8 bytes, the highest first | message
//   ROUTER   asked with a number; answers with each kept message from that one on, as
//            topic | number | message, and then "" | 2^64 - 1 | ""
//
// Thread: one at a time. Ownership: owns its sockets and the last messages, which are
// shared with what waits for slow readers.
// Invariants: numbers count from 0 without a gap. A reader that does not read holds
// nobody up: what is behind him is dropped beyond `hwm`, which he sees by the numbers.
// Of kept messages there are at most buffer_steps and kBufferBytesMost.
// Failure: open() refuses with a sentence what is no address and what cannot be had.
// Requests that are none are not answered.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace loralei {

// The names are vLLM's (KVEventsConfig).
struct KvEventsOptions {
  std::string endpoint;         // --kv-events; empty: nobody is told
  std::string replay_endpoint;  // empty: nothing is said again
  std::string topic;
  int buffer_steps = 10'000;     // messages that are kept
  int hwm = 10'000;              // messages that wait for one reader
  int max_queue_size = 100'000;  // events that wait for being published
};

// An address as vLLM takes it: it is listened at where it holds '*' or "::" or begins
// with ipc://, and connected to otherwise.
bool kv_events_binds(const std::string& endpoint);
Status check_kv_events(const KvEventsOptions& options);

class KvEventSockets {
 public:
  static constexpr int64_t kBufferBytesMost = 64 << 20;

  static Result<std::unique_ptr<KvEventSockets>> open(const KvEventsOptions& options);
  ~KvEventSockets();
  KvEventSockets(const KvEventSockets&) = delete;
  KvEventSockets& operator=(const KvEventSockets&) = delete;

  // Where they listen, or connect to, as the system says it.
  std::string endpoint() const;
  std::string replay_endpoint() const;  // empty: there is none

  void publish(const std::string& message);
  // Waits at most so long for a request and answers those that are there, a few at most;
  // how many.
  int answer(int timeout_ms);

 private:
  struct Parts;
  explicit KvEventSockets(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace loralei

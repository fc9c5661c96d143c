// SPDX-License-Identifier: Apache-2.0
// KvEventPublisher: the thread that takes what a KV cache tells (kv/kv_events.h), says it
// as vLLM does (kv_event_message.h) and sends it (kv_event_sockets.h). Nobody waits for
// it: where it is behind, the cache tells all anew.
//
// Thread: start and destroy from one; the work is its own thread's.
// Ownership: owns sockets and thread, shares the events; `name_of` is called on its
// thread and must not outlive what it looks at: destroy the publisher before.
// Invariants: events go out in their order, at most kEventsMost in a message. A message
// waits for the name of an adapter that was never seen before, since a cache may tell of
// its blocks before anybody else knows its version; at most kNameWaitNs, and once for
// each version. At the end what had come is sent.
// Failure: start() where there is no thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/result.h"
#include "events/kv_event_message.h"
#include "events/kv_event_sockets.h"
#include "kv/kv_events.h"

namespace loralei {

class KvEventPublisher {
 public:
  static constexpr size_t kEventsMost = 128;
  static constexpr int kLookMs = 5;                       // between two looks where nothing comes
  static constexpr int64_t kNamesKeptNs = 1'000'000'000;  // how long a name is taken for the same
  static constexpr int64_t kNameWaitNs = 2'000'000'000;
  static constexpr size_t kVersionsMost = 100'000;  // that are known to have been seen

  static Result<std::unique_ptr<KvEventPublisher>> start(std::unique_ptr<KvEventSockets> sockets,
                                                         std::shared_ptr<KvEvents> events, AdapterNameOf name_of,
                                                         const Clock& clock);
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

 private:
  KvEventPublisher(std::unique_ptr<KvEventSockets> sockets, std::shared_ptr<KvEvents> events, AdapterNameOf name_of,
                   const Clock& clock);
  void run();
  bool publish_some();
  void take_batch();
  bool names_are_known();
  std::string name_of(const Digest& version);

  const std::unique_ptr<KvEventSockets> sockets_;
  const std::shared_ptr<KvEvents> events_;
  const AdapterNameOf look_up_;
  const Clock& clock_;
  std::vector<KvEvent> batch_;
  int64_t batch_since_ns_ = 0;
  std::unordered_map<std::string, std::string> names_;  // by the version's bytes
  std::unordered_set<std::string> seen_;                // versions that had a name once, or were waited for
  int64_t names_since_ns_ = 0;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// WaitTimes: what requests have waited for, before anything of them was computed.
//
//   turn          the step under way when they came
//   rows          others' rows filled the steps
//   kv            blocks of the KV cache
//   slots         as many sequences ran as may run together
//   quota         their queue's part of the server (sched/size_queues.h)
//   adapter_load  their adapter's way into memory
//   adapter_room  their adapter's place: room that an older load waits for, or its way
//                 to the device
//   grammar       the first mask of their grammar
//
// Those in the queue all wait for what ended the last planning, whoever that was: their
// share of it is the difference of one clock between two moments, so that a planning
// costs nothing for each of them.
//
// Thread: one. Plain values; time is an argument that never goes back (CHECK).
// Invariant: the totals are the times of all requests between arrival and none, each
// counted once. No failure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace loralei {

enum class WaitCause : uint8_t { kTurn, kRows, kKv, kSlots, kQuota, kAdapterLoad, kAdapterRoom, kGrammar, kKvDisk };
inline constexpr std::array<const char*, 9> kWaitCauseNames = {
    "turn", "rows", "kv", "slots", "quota", "adapter_load", "adapter_room", "grammar", "kv_disk"};
inline constexpr size_t kWaitCauses = kWaitCauseNames.size();

// Of one request. kTurn: it is in the queue.
class WaitClock {
 public:
  std::optional<WaitCause> cause() const { return cause_; }

 private:
  friend class WaitTimes;
  static constexpr size_t kQueueCauses = 5;  // the first ones
  std::optional<WaitCause> cause_;
  int64_t since_ns_ = 0;
  std::array<int64_t, kQueueCauses> queue_ns_{};  // of the queue's clocks, then
};

class WaitTimes {
 public:
  // What everybody in the queue waits for from now on: one of the first five.
  void queue_waits_for(WaitCause cause, int64_t now_ns);
  WaitCause queue_cause() const { return queue_cause_; }
  // A request that came while a step was under way is looked at now.
  void came(int64_t arrived_ns, int64_t now_ns);
  // What a request waits for from now on; none: nothing, or it is not to be counted.
  void waits_for(WaitClock& clock, std::optional<WaitCause> cause, int64_t now_ns);
  // Of all requests, up to their last change of cause.
  const std::array<int64_t, kWaitCauses>& totals_ns() const { return totals_ns_; }

 private:
  void advance(int64_t now_ns);

  WaitCause queue_cause_ = WaitCause::kTurn;
  int64_t queue_since_ns_ = 0;
  std::array<int64_t, WaitClock::kQueueCauses> queue_ns_{};
  std::array<int64_t, kWaitCauses> totals_ns_{};
};

}  // namespace loralei

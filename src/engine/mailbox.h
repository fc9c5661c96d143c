// SPDX-License-Identifier: Apache-2.0
// The two crossings of the engine: messages in, ordered by arrival, and output, ordered
// by event. Values in bounded queues.
//
// Thread-safe. Inbox: any number of producers, the engine thread takes everything at
// once. Outbox: the engine thread puts, one consumer waits. Bounds: the inbox is bounded
// by what submit() and command() admit, and one HeaderCheck for every adapter that is
// looked at; the outbox by its capacity, at which the engine pauses.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "adapters/load_pool.h"
#include "engine/api.h"
#include "engine/device_tier.h"
#include "engine/step_batch.h"
#include "kv/kv_disk.h"

namespace loralei {

struct Arrival {
  Submit submit;
  int64_t arrived_ns = 0;
};
struct Cancel {
  RequestId id;
  int32_t choice = kAllChoices;
};
struct Hold {
  RequestId id;
  bool held = false;
};
struct RoomChanged {};  // there may be more memory for adapters: a loan is back
// MemoryControl::prepare() has done its work for another budget, or says why not.
struct BudgetReady {
  MemoryCommand command;
  Status prepared;
};
using Message = std::variant<Arrival, Cancel, Hold, AdapterCommand, QueuesCommand, KvCommand, AppCommand, LoadBegun,
                             LoadDone, HeaderCheck, BudgetReady, UploadDone, RoomChanged, KvFetched, StepDone>;

class Inbox {
 public:
  void put(Message&& message) {
    {
      const std::lock_guard lock(mutex_);
      messages_.push_back(std::move(message));
    }
    changed_.notify_one();
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_one();
  }
  // Swaps out what arrived (`messages` is empty before), after waiting for something up
  // to timeout_ns (kForever: without end). False once stopped.
  static constexpr int64_t kForever = -1;
  bool take(std::vector<Message>& messages, int64_t timeout_ns) {
    std::unique_lock lock(mutex_);
    const auto arrived = [&] { return stopped_ || !messages_.empty(); };
    if (timeout_ns == kForever) {
      changed_.wait(lock, arrived);
    } else if (timeout_ns > 0) {
      changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), arrived);
    }
    std::swap(messages, messages_);
    return !stopped_;
  }
  // Appends what arrived, after waiting for something, stopped or not.
  void take_more(std::vector<Message>& messages) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !messages_.empty(); });
    messages.insert(messages.end(), std::make_move_iterator(messages_.begin()),
                    std::make_move_iterator(messages_.end()));
    messages_.clear();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Message> messages_;
  bool stopped_ = false;
};

class Outbox {
 public:
  explicit Outbox(size_t capacity) : capacity_(capacity) {
    pending_.tokens.reserve(std::min(capacity, kReservedEvents));
  }

  // Moves the contents of `output` in and leaves its capacity.
  void put(EngineOutput& output) {
    if (output.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      append(output.adapters, pending_.adapters);
      append(output.replies, pending_.replies);
      append(output.tokens, pending_.tokens);
    }
    filled_.notify_one();
  }
  // Blocks while the consumer is far behind; close() ends the wait.
  void wait_for_room() {
    std::unique_lock lock(mutex_);
    drained_.wait(lock, [&] { return closed_ || pending_.tokens.size() + pending_.adapters.size() < capacity_; });
  }
  EngineOutput wait(int64_t timeout_ns) {
    EngineOutput output;
    {
      std::unique_lock lock(mutex_);
      // An hour at most: the clock's own arithmetic must not overflow.
      filled_.wait_for(lock, std::chrono::nanoseconds(std::clamp<int64_t>(timeout_ns, 0, 3'600'000'000'000)),
                       [&] { return closed_ || !pending_.empty(); });
      append(pending_.adapters, output.adapters);  // the engine keeps its capacity
      append(pending_.replies, output.replies);
      append(pending_.tokens, output.tokens);
    }
    drained_.notify_one();
    return output;
  }
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    filled_.notify_all();
    drained_.notify_all();
  }

 private:
  template <typename T>
  static void append(std::vector<T>& from, std::vector<T>& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
    from.clear();
  }

  // A consumer that is late by so many events costs the engine no allocation; memory is
  // used when they come.
  static constexpr size_t kReservedEvents = 4096;

  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable filled_, drained_;
  EngineOutput pending_;
  bool closed_ = false;
};

}  // namespace loralei

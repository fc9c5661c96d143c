// SPDX-License-Identifier: Apache-2.0
// Heartbeats: who works on something, and since when without progress. Threads put a mark
// when they begin and beat as they go on; a watchdog reads.
//
// Thread-safe, without locks or allocation for those that work.
// Ownership: a mark borrows the heartbeats, which outlive it.
// Invariant: a thread that waits for work has no mark, or one that rests. With more than
// kMarks at once those beyond go unwatched.
// Failure: none.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace loralei {

class Heartbeats {
  struct Slot {
    std::atomic<bool> taken{false};
    std::atomic<const char*> who{nullptr};
    std::atomic<int64_t> since_ns{kRests};
  };
  static constexpr int64_t kRests = -1;

 public:
  static constexpr size_t kMarks = 256;

  explicit Heartbeats(const Clock& clock) : clock_(clock) {}

  class Mark {
   public:
    // `who` is a literal: "engine". Null heartbeats: nobody watches.
    Mark(Heartbeats* beats, const char* who) : beats_(beats) {
      if (beats_ == nullptr || (slot_ = beats_->take()) == nullptr) return;
      slot_->who.store(who, std::memory_order_relaxed);
      beat();
    }
    ~Mark() {
      if (slot_ == nullptr) return;
      rest();
      slot_->taken.store(false, std::memory_order_release);
    }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

    void beat() {
      if (slot_ != nullptr) slot_->since_ns.store(beats_->clock_.now_ns(), std::memory_order_relaxed);
    }
    void rest() {  // until the next beat: what it waits for is not its own
      if (slot_ != nullptr) slot_->since_ns.store(kRests, std::memory_order_relaxed);
    }

   private:
    Heartbeats* const beats_;
    Slot* slot_ = nullptr;
  };

  struct Silence {
    std::string_view who;
    int64_t ms = 0;
  };
  // For each name the longest time that one of its threads has been at work
  // without progress.
  std::vector<Silence> silences() const {
    std::vector<Silence> all;
    const int64_t now_ns = clock_.now_ns();
    for (const Slot& slot : slots_) {
      const int64_t since_ns = slot.since_ns.load(std::memory_order_relaxed);
      const char* const who = slot.who.load(std::memory_order_relaxed);
      if (since_ns == kRests || who == nullptr) continue;
      const int64_t ms = (now_ns - since_ns) / 1'000'000;
      size_t at = 0;
      while (at < all.size() && all[at].who != who) ++at;
      if (at == all.size()) all.push_back({who, 0});
      if (ms > all[at].ms) all[at].ms = ms;
    }
    return all;
  }

 private:
  Slot* take() {
    for (Slot& slot : slots_) {
      if (!slot.taken.exchange(true, std::memory_order_acquire)) return &slot;
    }
    return nullptr;
  }

  const Clock& clock_;
  std::array<Slot, kMarks> slots_;
};

}  // namespace loralei

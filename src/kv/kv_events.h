// SPDX-License-Identifier: Apache-2.0
// KvEvents: what is told of the prefixes that a KV cache holds, on its way from the
// engine's thread to whoever tells others. One event is one block.
//
//   KvCache::tell() -- put() --> | ring | -- take() --> a thread that encodes and sends
//
// Thread: put() and room() the engine's; take() one other's; counters any.
// Ownership: owns its places, all taken at the making: nothing is allocated later, and
// neither side waits for the other.
// Invariants: events come out in the order they were put, each once. Which is which:
// kRemoved of a hash follows its kStored in that tier; kCleared says that nothing that
// was told before counts any more, and what is there is told anew behind it.
// Failure: put() says no where all places are taken; whoever put loses nothing then, as
// he tells all anew when there is room.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/limits.h"

namespace loralei {

enum class KvTier : uint8_t {
  kMemory,  // in a block of the cache, or encoded beside them
  kDisk,    // in a file of --kv-dir
};

// Whose keys and values a block holds, as far as that can be told (kv/identity.h).
struct KvOwner {
  int32_t adapters = 0;   // 0: the base model
  Digest adapter{};       // of the version; the first where there are several
  float scale = 1.0f;     // the request's, of the first
  uint64_t identity = 0;  // of all together and the salt: equal exactly where one finds the other's blocks
  uint64_t salt = 0;      // a hash of it; 0: there is none

  bool operator==(const KvOwner&) const = default;
};

struct KvEvent {
  enum class Kind : uint8_t { kCleared, kStored, kRemoved };
  Kind kind = Kind::kCleared;
  KvTier tier = KvTier::kMemory;
  // Of the text so far and who computed on it, never 0; parent: of the block before, 0:
  // there is none.
  uint64_t hash = 0, parent = 0;
  // Of kStored in kMemory alone; on disk there lies no text.
  std::array<TokenId, kKvBlockTokens> tokens{};
  KvOwner owner;
};

// What was told so far.
struct KvEventCounts {
  uint64_t stored = 0, removed = 0;  // blocks that were published
  uint64_t batches = 0;              // messages
  uint64_t lost = 0;                 // events for which there was no place
  uint64_t pictures = 0;             // how often all was told anew for that
  uint64_t replays = 0;              // requests for earlier messages
};

class KvEvents {
 public:
  explicit KvEvents(size_t capacity) : places_(capacity < 2 ? 2 : capacity) {}

  size_t capacity() const { return places_.size(); }
  size_t room() const {
    return places_.size() -
           static_cast<size_t>(put_.load(std::memory_order_relaxed) - taken_.load(std::memory_order_acquire));
  }
  bool put(const KvEvent& event) {
    if (room() == 0) return false;
    const uint64_t at = put_.load(std::memory_order_relaxed);
    places_[at % places_.size()] = event;
    put_.store(at + 1, std::memory_order_release);
    return true;
  }
  bool take(KvEvent& event) {
    const uint64_t at = taken_.load(std::memory_order_relaxed);
    if (at == put_.load(std::memory_order_acquire)) return false;
    event = places_[at % places_.size()];
    taken_.store(at + 1, std::memory_order_release);
    return true;
  }

  // By the engine's thread, and by who publishes.
  void count_lost() { add(lost_, 1); }
  void count_picture() { add(pictures_, 1); }
  void count_published(uint64_t stored, uint64_t removed) {
    add(stored_, stored);
    add(removed_, removed);
    add(batches_, 1);
  }
  void count_replay() { add(replays_, 1); }
  KvEventCounts counts() const {
    return {.stored = stored_,
            .removed = removed_,
            .batches = batches_,
            .lost = lost_,
            .pictures = pictures_,
            .replays = replays_};
  }

 private:
  using Counter = std::atomic<uint64_t>;
  static void add(Counter& counter, uint64_t more) { counter.fetch_add(more, std::memory_order_relaxed); }

  std::vector<KvEvent> places_;
  alignas(64) std::atomic<uint64_t> put_{0};
  alignas(64) std::atomic<uint64_t> taken_{0};
  Counter stored_{0}, removed_{0}, batches_{0}, lost_{0}, pictures_{0}, replays_{0};
};

}  // namespace loralei

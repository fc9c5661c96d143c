// SPDX-License-Identifier: Apache-2.0
// Shelf: memory of one use that holds what may be had again, as others see it who need
// room: adapters that nobody uses, prefixes of the KV cache. Whoever needs room compares
// what the shelves would give next (is_worth_less), and takes what is worth least.
//
// Thread: one. Ownership: who asks frees nothing itself; give_up() has the shelf do it.
// Invariant: idle_bytes() is what give_up() gives, called until next() has nothing.
#pragma once

#include <cstdint>
#include <optional>

#include "memory/keep_order.h"

namespace loralei {

class Shelf {
 public:
  virtual ~Shelf() = default;
  virtual int64_t idle_bytes() const = 0;  // all that it could give now
  virtual int64_t most_bytes() const = 0;  // and when those who use the rest have ended
  // Of the memory that it is part of, what is to stay free for those who cannot ask.
  virtual int64_t reserve_bytes() const { return 0; }
  // What it would give first; nullopt: nothing can be had now.
  virtual std::optional<CacheItem> next() = 0;
  // That goes; more than 0 bytes came free. `reason`: for the log, "to make room for X".
  virtual int64_t give_up(const char* reason) = 0;
};

// Who gave memory to whom, since the start.
struct GivenBytes {
  int64_t kv_to_adapters = 0, adapters_to_kv = 0;
  int64_t kv_to_others = 0, adapters_to_others = 0;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// KvTeller: the engine's end of KvEvents, and what to do where there is no place: what
// was told until then does not count any more, and all is told anew as one *picture*,
// behind a kCleared, once there is room.
//
// Thread: the engine's. Ownership: borrows the events.
// Invariants: whoever tells of a block keeps the number of the picture in which he told
// it; it is told exactly while that is picture(). Nothing is put while behind().
// Failure: put() says no, and from then on the picture is another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/kv_events.h"

namespace loralei {

// 0 stands for none.
inline uint64_t kv_event_hash(const Digest& name) {
  uint64_t hash = 0;
  for (size_t i = 0; i < sizeof hash; ++i) hash = hash << 8 | name[i];
  return hash == 0 ? 1 : hash;
}

class KvTeller {
 public:
  // The first event is a kCleared: of an earlier process nothing counts.
  explicit KvTeller(KvEvents& events) : events_(events) { behind_ = !events_.put({}); }

  uint32_t picture() const { return picture_; }
  bool behind() const { return behind_; }
  size_t room() const { return behind_ ? 0 : events_.room(); }
  size_t capacity() const { return events_.capacity(); }

  bool put(const KvEvent& event) {
    if (!behind_ && events_.put(event)) return true;
    miss();
    return false;
  }
  // Something is not told.
  void miss() {
    events_.count_lost();
    if (!behind_) ++picture_;
    behind_ = true;
  }

  // Where half of the places are free: behind this kCleared all that is there is told.
  bool begin_anew() {
    if (!behind_ || events_.room() < events_.capacity() / 2 || !events_.put({})) return false;
    behind_ = false;
    events_.count_picture();
    return true;
  }

 private:
  KvEvents& events_;
  uint32_t picture_ = 1;
  bool behind_ = false;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// Sleeping until one of several descriptors has something to say, or somebody calls.
//
// Thread: raise() from any; the rest belongs to who sleeps.
// Ownership: a WakeEvent has its descriptor.
// Failure: create() where there is none; waiting may come back early.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sys/posix_file.h"

namespace loralei {

// Wakes a thread that sleeps in wait_readable().
class WakeEvent {
 public:
  static Result<WakeEvent> create();
  int descriptor() const { return descriptor_.get(); }
  void raise() const;
  void clear() const;

 private:
  explicit WakeEvent(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}
  Descriptor descriptor_;
};

// Waits until one of these can be read or its other side is gone, at most so long (below
// 0: for ever); which can. A number below 0 is left out.
std::vector<bool> wait_readable(const std::vector<int>& descriptors, int64_t at_most_ns);

}  // namespace loralei

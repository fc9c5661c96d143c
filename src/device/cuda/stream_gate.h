// SPDX-License-Identifier: Apache-2.0
// StreamGate: what a stream waits for that a thread or another stream brings: a number in
// pinned memory, without the device and the host waiting for each other.
//
//   CudaStream::wait_for(gate, 3): what is put on the stream later runs once
//   gate.there >= 3, or gate.ended is not 0.
//
// `there` is raised by one side, a stream (CudaStream::write, behind what it was given
// before) or a thread. `ended` is the host's: it lets every wait pass, whatever is there,
// so nothing that runs behind such a wait may count. The halves never share a write, so
// neither side undoes what the other one said.
//
// Thread: any; both halves are atomic.
// Ownership: StreamGates owns the memory; no stream may be using a gate that is reset, or
// when they go.
// Invariants: each gate is a cache line of its own. Numbers stay below 2^31.
// Failure: create() as PinnedBuffer::allocate.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/check.h"
#include "base/result.h"
#include "device/cuda/cuda_memory.h"

namespace loralei {

// As a stream sees it: one number of 64 bits, the lower half first.
struct alignas(8) StreamGate {
  std::atomic<uint32_t> there{0};
  std::atomic<uint32_t> ended{0};

  bool has(uint32_t count) const { return there.load(std::memory_order_acquire) >= count; }
  void end() { ended.store(1, std::memory_order_release); }
  bool is_ended() const { return ended.load(std::memory_order_acquire) != 0; }
};
static_assert(sizeof(StreamGate) == sizeof(uint64_t) && std::atomic<uint32_t>::is_always_lock_free);

class StreamGates {
 public:
  StreamGates() = default;  // none
  static Result<StreamGates> create(int32_t count);
  static int64_t bytes(int32_t count) { return count * kStrideBytes; }

  int32_t count() const { return count_; }
  StreamGate& operator[](int32_t index) const {
    CHECK(index >= 0 && index < count_);
    return *reinterpret_cast<StreamGate*>(memory_.data() + int64_t{index} * kStrideBytes);
  }

 private:
  static constexpr int64_t kStrideBytes = 64;
  PinnedBuffer memory_;
  int32_t count_ = 0;
};

}  // namespace loralei

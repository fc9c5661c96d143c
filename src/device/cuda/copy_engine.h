// SPDX-License-Identifier: Apache-2.0
// CopyEngine: copies on a stream of their own, beside the compute, with bounded
// bytes in flight.
//
// Thread: one thread.
// Ownership: the engine owns its stream and events; both sides of a copy belong to the
// caller and stay as they are until the copy is reported done.
// Invariants: copies run and are reported in the order of submit; the bytes of copies
// not yet reported never exceed the bound (a copy larger than the bound goes alone);
// no allocation after create().
// Failure: a full queue is an answer (submit returns false: call poll and try again
// later), what the driver refuses is an error.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/cuda/cuda_stream.h"

namespace loralei {

enum class CopyDirection : uint8_t { kToDevice, kToHost };

struct CopyRequest {
  void* to = nullptr;
  const void* from = nullptr;  // host sides should be pinned: else the driver copies through a buffer of its own
  int64_t bytes = 0;
  CopyDirection direction = CopyDirection::kToDevice;
  uint64_t tag = 0;  // comes back when the copy is done
  // In pinned memory: the stream writes it behind the copy. Null: nothing.
  std::atomic<uint32_t>* word = nullptr;
  uint32_t word_value = 0;
};

class CopyEngine {
 public:
  struct Options {
    int64_t bytes_in_flight_max = int64_t{64} << 20;  // enough to keep PCIe busy
    int copies_in_flight_max = 64;
  };
  static Result<CopyEngine> create(const Options& options);

  // False: the bound is reached, nothing was queued. With `after`, the copy begins when
  // that event is done.
  Result<bool> submit(const CopyRequest& request, const CudaEvent* after = nullptr);
  // Writes the tags of copies that are done to `done` (as many as fit), oldest first;
  // returns how many. Never blocks.
  Result<size_t> poll(std::span<uint64_t> done);
  // `stream` runs what it gets from now on after the copy submitted last.
  Status order_after_last(CudaStream& stream);
  // Block until the oldest copy, or every copy, is done; they are still to be
  // reported by poll.
  Status wait_oldest();
  Status wait_all();

  int64_t bytes_in_flight() const { return bytes_in_flight_; }
  size_t copies_in_flight() const { return count_; }

 private:
  struct Slot {
    CudaEvent event;
    int64_t bytes = 0;
    uint64_t tag = 0;
  };
  Options options_;
  CudaStream stream_;
  std::vector<Slot> slots_;  // a ring
  size_t first_ = 0, count_ = 0, last_ = 0;
  bool any_ = false;
  int64_t bytes_in_flight_ = 0;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// CudaAdapters: adapters' low-rank pairs in GPU memory, uploaded when a step first uses them, within a bound.
//
// Pairs are known by their host address, as a step's LoraSource gives it, and the version of their adapter. What is
// uploaded together (the pairs of an adapter that were missing) lies in one piece of memory, a slab. Thread: the
// model's. Ownership: owns device memory; borrows host pairs while ensure() runs. Invariants: bytes() <= the bound; a
// slab used since begin_step() is never given up; the least recently used goes first. Versions are never reused, so a
// pair of another version at a known address is uploaded anew; WHO GIVES NO VERSION (0) CALLS drop() BEFORE FREEING A
// PAIR: another adapter may later lie at the same address (one whose pointers, shape or scaling differ is told apart
// even so, but that is a net, not a promise). Failure: sentences; nothing is half uploaded.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "ops/args.h"
#include "ops/cuda/cuda_ops.h"

namespace loralei {

class CudaAdapters {
 public:
  struct Entry {
    cuda::DeviceLora lora;
    LoraPair host;  // as it was uploaded
    AdapterVersionId version;
    int32_t slab = 0;
  };
  explicit CudaAdapters(int64_t bytes_max) : bytes_max_(bytes_max) {}

  // No work that reads adapters is on the device; what is found or uploaded from now on stays until the next call.
  void begin_step() { ++step_; }
  // Null: not on the device, or not as the pair is now.
  const Entry* find(const LoraPair& pair, AdapterVersionId version = {});
  // Uploads pairs of one adapter that are not on the device. The host's side is no longer read when this returns.
  Status ensure(std::span<const LoraPair* const> pairs, CudaStream& stream, AdapterVersionId version = {});
  // Forgets the pairs [first, first + count): with their slab, so others of it are uploaded again if they are used.
  // Never between begin_step() and the end of that step's work.
  void drop(const LoraPair* first, size_t count);

  int64_t bytes() const { return bytes_; }
  int64_t bytes_max() const { return bytes_max_; }
  int64_t uploads() const { return uploads_; }
  static int64_t pair_bytes(const LoraPair& pair);

 private:
  struct Slab {
    DeviceBuffer memory;
    std::vector<const LoraPair*> pairs;
    uint64_t used = 0;  // step
  };
  Status make_room(int64_t bytes);
  void forget(int32_t slab);

  int64_t bytes_max_;
  int64_t bytes_ = 0, uploads_ = 0;
  uint64_t step_ = 1;
  std::vector<Slab> slabs_;  // empty ones are reused
  std::unordered_map<const LoraPair*, Entry> entries_;
};

}  // namespace loralei

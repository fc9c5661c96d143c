// SPDX-License-Identifier: Apache-2.0
// StagedDeviceGroup: a DeviceGroup over any Collective of the hosts (threads, processes):
// through pinned memory, a chunk at a time. For GPUs that do not reach each other, and
// the oracle of those that do. Its calls wait for the stream.
//
// Thread, invariants: DeviceGroup's.
// Ownership: borrows the Collective, which outlives it; owns the pinned memory, which
// other ranks may read until their threads have ended (thread_group.h).
// Failure: DeviceGroup's and the Collective's; create() as PinnedBuffer::allocate.
#pragma once

#include <memory>

#include "device/cuda/cuda_memory.h"
#include "model/cuda/device_group.h"
#include "parallel/collective.h"

namespace loralei {

class StagedDeviceGroup final : public DeviceGroup {
 public:
  struct Options {
    int64_t chunk_floats = int64_t{1} << 20;  // on their way at a time, of a rank
  };
  static Result<std::unique_ptr<StagedDeviceGroup>> create(Collective& hosts, const Options& options);
  static int64_t pinned_bytes(const Shard& shard, const Options& options);

  int rank() const override { return hosts_.rank(); }
  int size() const override { return hosts_.size(); }
  Status all_reduce_sum(CudaStream& stream, float* values, int64_t count) override;
  Status gather(CudaStream& stream, const float* part, int64_t count, float* all) override;
  Status finish(CudaStream& stream) override;
  void fail(Error why) override { hosts_.fail(std::move(why)); }
  Status health() const override { return hosts_.health(); }

 private:
  StagedDeviceGroup(Collective& hosts, const Options& options, PinnedBuffer pinned)
      : hosts_(hosts), chunk_(options.chunk_floats), pinned_(std::move(pinned)) {}
  float* own() const { return reinterpret_cast<float*>(pinned_.data()); }
  float* all() const { return own() + chunk_; }  // rank 0's, of a gather

  Collective& hosts_;
  const int64_t chunk_;
  PinnedBuffer pinned_;
};

}  // namespace loralei

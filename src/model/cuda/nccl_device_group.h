// SPDX-License-Identifier: Apache-2.0
// NcclDeviceGroup: a DeviceGroup of GPUs that reach each other, by NVIDIA's NCCL. Its
// calls put work on the stream and return.
//
// NCCL moves numbers alone (an all-gather); each rank adds up what came, in the order of
// the ranks, so that sums are those of every other group, whatever NCCL's own order is.
// Two ranks receive as much as NCCL's sum would bring them; four, twice as much.
// Thread: DeviceGroup's; fail() from any.
// Ownership: borrows the Collective, which outlives it and by which the ranks find each
// other and tell of failures; owns the communicator and memory on the device.
// Invariants: DeviceGroup's; nothing waits for ever. Communicators are made not to block,
// and whoever waits asks NCCL, the other hosts and the clock.
// Failure: a sentence, with NCCL's own words. create() fails in all ranks where it fails
// in one.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "device/cuda/cuda_memory.h"
#include "model/cuda/device_group.h"
#include "model/cuda/nccl_library.h"
#include "parallel/collective.h"

namespace loralei {

class NcclDeviceGroup final : public DeviceGroup {
 public:
  struct Options {
    std::string library = "libnccl.so.2";
    int64_t chunk_floats = int64_t{1} << 20;  // on their way at a time, of a rank
    // The others did not come to where this rank waits.
    int64_t late_ns = int64_t{60} * 1'000'000'000;
  };
  // On the thread whose device is the rank's. Returns when all ranks have called it.
  static Result<std::unique_ptr<NcclDeviceGroup>> create(Collective& hosts, const Options& options);
  static int64_t device_bytes(int size, const Options& options);
  ~NcclDeviceGroup() override;

  int rank() const override { return hosts_.rank(); }
  int size() const override { return hosts_.size(); }
  Status all_reduce_sum(CudaStream& stream, float* values, int64_t count) override;
  Status gather(CudaStream& stream, const float* part, int64_t count, float* all) override;
  Status finish(CudaStream& stream) override;
  void fail(Error why) override { hosts_.fail(std::move(why)); }
  Status health() const override { return hosts_.health(); }

 private:
  NcclDeviceGroup(Collective& hosts, const Options& options) : hosts_(hosts), options_(options) {}
  Status prepare();
  Status connect();
  Status all_gather(CudaStream& stream, const float* part, int64_t count);
  Status answer_of(NcclLibrary::Code code, const std::string& what);
  template <typename Done>
  Status await(const std::string& what, Done&& is_done);
  Status end(Error why);
  Error error_of(NcclLibrary::Code code, const std::string& what) const;
  Error late(const std::string& what, int64_t waited_ns) const;
  float* from(int rank, int64_t floats) const { return reinterpret_cast<float*>(received_.data()) + rank * floats; }

  Collective& hosts_;
  const Options options_;
  SteadyClock clock_;
  NcclLibrary library_;
  NcclLibrary::Comm comm_ = nullptr;  // null: not yet, or aborted
  DeviceBuffer received_;             // [size, chunk]
  CudaEvent reached_;
};

}  // namespace loralei

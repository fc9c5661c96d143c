// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/staged_device_group.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loralei {
namespace {

constexpr int64_t kFloat = sizeof(float);

}  // namespace

int64_t StagedDeviceGroup::pinned_bytes(const Shard& shard, const Options& options) {
  return kFloat * options.chunk_floats * (shard.rank == 0 ? 1 + shard.size : 1);
}

Result<std::unique_ptr<StagedDeviceGroup>> StagedDeviceGroup::create(Collective& hosts, const Options& options) {
  CHECK(options.chunk_floats > 0);
  TRY_ASSIGN(PinnedBuffer pinned, PinnedBuffer::allocate(pinned_bytes({hosts.rank(), hosts.size()}, options)));
  return std::unique_ptr<StagedDeviceGroup>(new StagedDeviceGroup(hosts, options, std::move(pinned)));
}

// A chunk's copy to the device is done when the next one has come to the host: they are
// on one stream.
Status StagedDeviceGroup::all_reduce_sum(CudaStream& stream, float* values, int64_t count) {
  TRY(health());
  for (int64_t done = 0; done < count; done += chunk_) {
    const int64_t floats = std::min(chunk_, count - done);
    TRY(copy_to_host(own(), values + done, kFloat * floats, stream));
    TRY(stream.synchronize());
    TRY(hosts_.all_reduce_sum({own(), static_cast<size_t>(floats)}));
    TRY(copy_to_device(values + done, own(), kFloat * floats, stream));
  }
  return {};
}

Status StagedDeviceGroup::gather(CudaStream& stream, const float* part, int64_t count, float* all_parts) {
  TRY(health());
  for (int64_t done = 0; done < count; done += chunk_) {
    const int64_t floats = std::min(chunk_, count - done);
    const auto each = static_cast<size_t>(floats), of_all = each * static_cast<size_t>(size());
    TRY(copy_to_host(own(), part + done, kFloat * floats, stream));
    TRY(stream.synchronize());
    TRY(hosts_.gather({own(), each}, {all(), rank() == 0 ? of_all : 0}));
    for (int from = 0; from < size() && rank() == 0; ++from)
      TRY(copy_to_device(all_parts + from * count + done, all() + from * floats, kFloat * floats, stream));
  }
  return {};
}

Status StagedDeviceGroup::finish(CudaStream& stream) {
  TRY(stream.synchronize());
  return health();
}

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// DeviceGroup: what the ranks of a model do together on memory of their GPUs, in the
// order of a stream. The twin of Collective (parallel/collective.h), which it has for
// what the hosts say to each other. Unproven on GPUs so far: the tests run it on emulated
// ones, and the engine refuses --tensor-parallel beside --device.
//
// Thread: the rank's own, whose device is the rank's; the calls of all ranks come in one
// order, each rank's on one stream. fail() from any.
// Ownership: memory is the caller's, and stays as it is until finish() has returned.
// Invariants: sums add the ranks in their order, lowest first, so every rank gets the
// same bits, and every implementation those of Collective. No call allocates. What is put
// on the stream later runs after the call, what was put on it before has run.
// Failure: a sentence. A rank that fails, is late or gone ends the group; every later
// call of any rank answers the same. What a failed call was to write is undefined.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "device/cuda/cuda_stream.h"
#include "parallel/shard.h"

namespace loralei {

class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // values[i] = sum over the ranks of theirs. As many in every rank.
  virtual Status all_reduce_sum(CudaStream& stream, float* values, int64_t count) = 0;
  // Rank r's `count` floats to all + r * count, at rank 0; the others' `all` is not
  // looked at. Rank 0's own part may lie where it goes.
  virtual Status gather(CudaStream& stream, const float* part, int64_t count, float* all) = 0;
  // Waits until everything on the stream is done, or the group has ended; the stream
  // reads and writes nothing any more when this returns.
  virtual Status finish(CudaStream& stream) = 0;
  // This rank cannot go on: every call of every rank answers that. The first one counts.
  virtual void fail(Error why) = 0;
  // Ok, or what the group has ended of.
  virtual Status health() const = 0;

  Shard shard() const { return {rank(), size()}; }
};

}  // namespace loralei

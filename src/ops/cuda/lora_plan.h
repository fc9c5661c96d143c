// SPDX-License-Identifier: Apache-2.0
// LoraPlan: a step's LoRA segments in the order the GPU's kernels want them
// (cuda_ops.h, LoraStep).
//
// Thread: one.
// Ownership: owns its arrays, which the caller copies to the device once a
// step.
// Invariants: fill allocates nothing within the limits given to reserve; all parts,
// runs and segments beyond the step's own have no rows.
// Failure: fill answers false when the step exceeds the limits (the caller takes
// a larger bucket).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/args.h"
#include "ops/cuda/cuda_ops.h"

namespace loralei::cuda {

class LoraPlan {
 public:
  struct Limits {
    int32_t rows = 0, segments = 0;
    int32_t entries = 0;  // (segment, row) pairs
  };
  explicit LoraPlan(const Limits& limits);

  [[nodiscard]] bool fill(std::span<const LoraSegment> segments, int32_t rows);

  std::span<const DeviceLoraSegment> segments() const { return segments_; }
  std::span<const DeviceLoraPart> parts() const { return parts_; }
  std::span<const DeviceLoraRun> runs() const { return runs_; }
  std::span<const int32_t> order() const { return order_; }

 private:
  Limits limits_;
  std::vector<DeviceLoraSegment> segments_;  // [limits.segments]
  std::vector<DeviceLoraPart> parts_;        // [limits.entries]: a part has at least a row
  std::vector<DeviceLoraRun> runs_;          // [limits.rows]
  std::vector<int32_t> order_;               // [limits.entries]
};

}  // namespace loralei::cuda

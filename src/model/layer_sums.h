// SPDX-License-Identifier: Apache-2.0
// LayerSums: who computes in host memory what an adapter adds to rows of a layer input,
// while its copy for a device is on the way (mechanisms §6, CaraServe §4). The device
// computes x W, this x A B.
//
// Thread: the executor's. Ownership: what parts point to stays as it is during add().
// Invariants: every target gets what OpTable::lora would add; no row is left out.
// Failure: none: who cannot be helped is computed on the caller's thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "model/layer_inputs.h"
#include "ops/args.h"

namespace loralei {

// Rows of one adapter.
struct LayerSumsPart {
  AdapterVersionId version;
  LayerInput input;                     // its segments are one: all of the rows
  std::span<const LoraTarget> targets;  // [input.modules], added to; their sources are not read
};

class LayerSums {
 public:
  virtual ~LayerSums() = default;
  // Whether it knows this one, and may be asked about it in this step.
  virtual bool computes(AdapterVersionId version) const = 0;
  // Of all parts, side by side as far as that goes.
  virtual void add(std::span<const LayerSumsPart> parts) = 0;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// LayerInputs: how a step gets what adapters add while these are still on their way: it
// waits for a layer, or has others compute it (mechanisms §6, CaraServe §4). One seam in
// the layer program; a step without one has all of its adapters.
//
//   reach(kEmbeddingLayer)
//   reach(0)  publish, add (q k v)  publish, add (o)  publish, add (gate up)  ...
//   ...
//   reach(layers)
//
// Thread: the executor's. Ownership: what an input points to stays as it is between its
// publish() and its add().
// Invariants: behind reach(layer) the tensors that an adapter puts in the place of that
// layer's of the model may be read; add() does what OpTable::lora would do once all of
// the adapters are there, bit for bit.
// Failure: a layer that is late or will not come ends the step; nothing of it counts.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/result.h"
#include "ops/op_table.h"

namespace loralei {

// Beside the numbers of layers: what comes before the first. Their count stands for what
// comes behind the last one: final norm and head.
inline constexpr int32_t kEmbeddingLayer = -1;

// What a step met of adapters that were on their way.
struct StepWaits {
  int32_t layers = 0;  // that were waited for
  int64_t ns = 0;
  int32_t assisted_layers = 0;  // that helpers have computed, of some rows
  int32_t handover_layer = -1;  // the first after these, if any, of which all was there
  // The step ended with this one's layers, which were late or will not come; none: it did
  // not.
  AdapterVersionId ended_by;
};

// What several modules of a layer read.
struct LayerInput {
  int32_t layer = 0;
  std::span<const Module> modules;
  const float* x = nullptr;  // [rows, in]
  int64_t x_stride = 0;
  int32_t in = 0;
  std::span<const LoraSegment> segments;
};

class LayerInputs {
 public:
  virtual ~LayerInputs() = default;
  virtual Status reach(int32_t layer) = 0;
  // Never waits.
  virtual Status publish(const LayerInput& input) = 0;
  // Of the input published last: its targets are those of its modules.
  virtual Status add(const OpTable& ops, OpContext& context, const LayerInput& input,
                     std::span<const LoraTarget> targets) = 0;
};

}  // namespace loralei

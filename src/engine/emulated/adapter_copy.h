// SPDX-License-Identifier: Apache-2.0
// AdapterCopy: an adapter as it lies in one range of a device's memory that the cores can
// read: the same pairs and tensors, with pointers into the range.
//
// Arrays lie one behind the other in the order in which a pass reads them, so that a
// layer is a run of bytes: layer 0 with the embedding's before it, layer 1, ..., and
// behind the last layer final norm and head ("layer" kLayers of a model of so many). What
// is no number of a matrix (ranks, scales, token ids) is in the value itself.
//
// Thread: any. Ownership: a plain value that points into a range which is the caller's;
// it does not move, since its views point into it.
// Invariants: every array begins at a multiple of 64 bytes, as the loader lays them; the
// copy owns no storage, and nothing of it points to the source's. No failure.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "adapters/adapter.h"
#include "base/layer_norm.h"
#include "device/emulated/link.h"
#include "formats/model_config.h"

namespace loralei {

// What an adapter does not say of its arrays.
struct CopyShape {
  int32_t layers = 0, hidden = 0;
  std::array<int32_t, kLayerNorms> norms{};  // [LayerNorm] their widths
};
CopyShape copy_shape_of(const ModelConfig& config);

struct AdapterCopy {
  AdapterCopy() = default;
  AdapterCopy(const AdapterCopy&) = delete;
  AdapterCopy& operator=(const AdapterCopy&) = delete;

  Adapter adapter;
  WeightPanel embed, lm_head;  // of adapter.saved
};

// Of the range.
int64_t copy_bytes(const Adapter& source, const CopyShape& shape);

// What is to be copied for it, layer by layer (shape.layers + 1 of them).
struct CopyPlan {
  std::unique_ptr<AdapterCopy> copy;
  std::vector<LinkPart> parts;
  std::vector<int32_t> layer_parts;  // how many of the parts each layer has
};

// A copy at [to, to + copy_bytes()), whose numbers are still to be brought. The parts
// point into the source's storage.
CopyPlan plan_copy(const Adapter& source, const CopyShape& shape, std::byte* to);

}  // namespace loralei

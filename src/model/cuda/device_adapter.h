// SPDX-License-Identifier: Apache-2.0
// An adapter in device memory: how its low-rank pairs and the full tensors it has in the
// place of the model's (SavedTensors) lie there, one behind the other in one range, in
// the order in which a pass reads them. So layers can come, and be used, one by one:
// piece 0 has what the embedding and layer 0 have, piece l what layer l has, and piece
// `layers` what comes behind the last one, final norm and head.
//
// Thread: any.
// Ownership: plain values; the memory belongs to who gave it.
// Invariants: every array begins at a multiple of 16 bytes (what vector loads want);
// matrices are plain, in the format that the adapter's file has. No failure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda/uploader.h"
#include "ops/args.h"
#include "ops/cuda/cuda_ops.h"

namespace loralei {

// As SavedTensors: what the adapter leaves as it is, is null, empty or a
// weight of no rows.
struct DeviceSaved {
  cuda::DeviceWeight embed, lm_head;         // [vocab', hidden]; one and the same where tied
  cuda::DeviceWeight embed_rows, head_rows;  // f32 [tokens, hidden]: trained tokens
  const int32_t* head_tokens = nullptr;      // [head_rows.rows]
  const float* final_norm = nullptr;
  std::vector<const float*> input_norm, post_attention_norm, q_norm, k_norm;  // [layers], entries may be null; or empty
};

// What a pair does not say of the tensors and pairs beside it.
struct SavedShape {
  int32_t hidden = 0, head_dim = 0;
  int32_t layers = 0;
};

// A pair and what it changes, numbered as ModelBatch::sources has it.
struct ModulePair {
  int32_t module = 0;
  const LoraPair* pair = nullptr;
};

struct DevicePlaces {
  std::vector<cuda::DeviceLora> pairs;  // beside those that were put
  DeviceSaved saved;
  std::vector<int64_t> piece_ends;  // [layers + 1], of the bytes
};

// Gives places in an upload's target and notes what is to be copied there; without an
// upload it only counts.
class AdapterLayout {
 public:
  explicit AdapterLayout(const SavedShape& shape, Upload* upload = nullptr) : shape_(shape), upload_(upload) {}

  // Once. `pairs` by their modules; `saved` may be null; `head_tokens`: those of `saved`,
  // where the upload finds them until its end.
  DevicePlaces put(std::span<const ModulePair> pairs, const SavedTensors* saved, const TokenId* head_tokens);
  int64_t bytes() const { return bytes_; }

 private:
  cuda::DeviceLora put(const LoraPair& pair);
  void put_embedding(const SavedTensors& saved, DeviceSaved& to);
  void put_layer(const SavedTensors& saved, size_t layer, DeviceSaved& to);
  void put_head(const SavedTensors& saved, const TokenId* head_tokens, DeviceSaved& to);
  const void* bytes_of(const void* host, int64_t bytes);  // null: nothing
  // So many rows, which lie `stride` apart there and side by side here: of a whole factor
  // or of a rank's part of one (LoraPair::a_width).
  const void* rows_of(const void* host, int64_t rows, int64_t bytes, int64_t stride);
  const float* floats(const float* host, int64_t count);
  cuda::DeviceWeight matrix(const WeightView& view);
  cuda::DeviceWeight rows(const float* host, size_t count);

  SavedShape shape_;
  Upload* upload_;
  int64_t bytes_ = 0;
};

// Whether it changes anything.
inline bool present(const LoraPair& pair) { return pair.rank > 0 || pair.bias_delta != nullptr; }

}  // namespace loralei

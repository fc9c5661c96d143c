// SPDX-License-Identifier: Apache-2.0
// WeightStore: residency of the base model's tensors. The layer program pins a tensor just before its use and unpins
// right after, even when everything is resident; how the bytes came there is this room's business (FlexInfer,
// mechanisms §2).
//
// Thread: pin/unpin from the executor thread; loading happens before. Ownership: owns the bytes under a ledger grant; a
// WeightPin is a move-only lease and must not outlive the store. Invariant: between pin and unpin every waited-for
// panel's bytes are valid and unchanged. Failure: load() answers a sentence (too large for the budget, with the
// numbers; short file; unsupported dtype).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/base_model.h"
#include "memory/ledger.h"
#include "tensor/weight_view.h"

namespace loralei {

using TensorSlot = int32_t;  // index of a tensor in the store; -1: the model has none of that name
inline constexpr TensorSlot kNoTensor = -1;

class WeightStore;

class [[nodiscard]] WeightPin {
 public:
  WeightPin() = default;
  WeightPin(WeightPin&& other) noexcept;
  WeightPin& operator=(WeightPin&& other) noexcept;
  ~WeightPin();

  const WeightView& view() const { return *view_; }
  // Blocks until panel `index` may be read. Resident tensors answer at once.
  Status wait_panel(int32_t index) const;

 private:
  friend class WeightStore;
  WeightPin(WeightStore* store, TensorSlot slot, const WeightView* view) : store_(store), slot_(slot), view_(view) {}
  WeightStore* store_ = nullptr;
  TensorSlot slot_ = kNoTensor;
  const WeightView* view_ = nullptr;
};

struct WeightOptions {
  std::optional<DType> quantise;  // --quant q8_0|q4_0: matrices are re-encoded on load (norms and biases stay f32)
  // Layout of quantised matrices. An embedding that is not also the head is only looked up and stays plain.
  LayoutId quantised_layout = LayoutId::kTile16;
  int threads = 1;
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;  // called from the loading thread
};

class WeightStore {
 public:
  // Reads every tensor of the model into memory (parallel, un-permuting GGUF q/k rows where the file says so).
  static Result<std::unique_ptr<WeightStore>> load(const BaseModelFile& model, Ledger& ledger,
                                                   const WeightOptions& options);
  ~WeightStore();

  TensorSlot find(const std::string& name) const;  // canonical name
  WeightPin pin(TensorSlot slot);
  // One-dimensional tensors (norms, biases) and any other small tensor as f32, resident for ever. [count]
  const float* vector(const std::string& name) const;
  int64_t resident_bytes() const;
  // Formats of the matrices in a layout, each once.
  std::vector<DType> formats(LayoutId layout) const;
  // Hex digest that names these weights in system_fingerprint: SHA-free fast hash of index and bytes.
  const std::string& fingerprint() const;
  void check() const;  // no pin outstanding is an idle invariant

 private:
  friend class WeightPin;
  WeightStore();
  void unpin(TensorSlot slot);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace loralei

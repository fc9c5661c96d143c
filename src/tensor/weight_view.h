// SPDX-License-Identifier: Apache-2.0
// WeightView: a non-owning view of one weight matrix [rows = out features, cols = in
// features], in panels.
//
// A panel is a contiguous run of rows, its row count a multiple of the kernels' row tile
// except in the last panel; kernels loop over panels, so that a matrix may be partly
// locked and partly streamed.
// Thread: immutable while pinned, any reader.
// Ownership: the bytes belong to weights/ (WeightPin) or to an adapter version
// (AdapterPin); a view never outlives its pin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace loralei {

inline constexpr int kRowTile = 16;  // rows a kernel takes together; panels are multiples of it

// Layout of the bytes inside a panel. Few and named, independent of batch size
// (architecture decision 3).
enum class LayoutId : uint8_t {
  kPlain = 0,  // rows one after another, each row_bytes(dtype, cols), in the file's block format
  kTile16,     // quantised formats only: tiles of sixteen interleaved rows (tensor/tile_layout.h)
};

struct WeightPanel {
  const std::byte* data = nullptr;  // [row_count, cols] in the view's dtype and layout
  int32_t row_begin = 0;
  int32_t row_count = 0;
};

struct WeightView {
  DType dtype = DType::kF32;
  LayoutId layout = LayoutId::kPlain;
  int32_t rows = 0;
  int32_t cols = 0;
  std::span<const WeightPanel> panels;  // ordered, without gaps, covering [0, rows)

  bool empty() const { return rows == 0; }
};

}  // namespace loralei

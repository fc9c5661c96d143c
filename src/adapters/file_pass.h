// SPDX-License-Identifier: Apache-2.0
// FilePass: reads an adapter's weights file layer by layer, whatever order it lies in:
// each planned tensor is checked, converted and put where the plan says, and every byte
// is hashed.
//
// Thread: one. Ownership: borrows all it is given, which must outlive it. Invariants:
// every byte is read once; tensors of a layer by their offset in the file, the layers one
// after the other from 0 on, the rest of the file behind them; beside the storage nothing
// is held but a window of the file, whose pages are hashed together. What stays as it is
// read is read into its place, and is looked at there before its layer counts. The digest
// does not depend on that order, and is that of adapter.h. Failure: sentences with the
// file, and the tensor where one is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "adapters/load_plan.h"
#include "base/digest.h"
#include "base/page_hash.h"
#include "base/result.h"
#include "sys/file.h"

namespace loralei {

// Where a file is cut into parts: at the beginning and the end of each tensor of its
// header that has any bytes.
class FileCuts {
 public:
  void add(int64_t offset, int64_t bytes);  // of a tensor
  // Begins of all parts and the end of the last one, in order; no part is empty.
  std::vector<int64_t> finish(int64_t file_bytes) &&;

 private:
  std::vector<int64_t> cuts_;
};

class FilePass {
 public:
  // The plan's tensors are parts, or empty.
  FilePass(const File& file, std::vector<int64_t> cuts, const LoadPlan& plan, std::byte* storage);
  FilePass(const FilePass&) = delete;
  FilePass& operator=(const FilePass&) = delete;

  const std::vector<int64_t>& layer_bytes() const { return layer_bytes_; }  // of the file; [layers + 1]
  Status read_layer(int32_t layer);                                         // the next one
  Status read_rest();                                                       // behind the last layer
  Digest digest(const std::string& config_text) const;                      // when all is read

 private:
  using Group = std::span<const Placement* const>;  // all of one tensor: several when a fused projection is split

  // Rows of a tensor that have been read and are nothing yet.
  struct Piece {
    Group group;
    size_t part = 0;
    int64_t row = 0, count = 0;
    std::span<const std::byte> bytes;  // in buffer_, or in the storage
    bool placed = false;               // in the storage, where they stay
    bool last = false;                 // of its part
    PageHash hash;                     // of the part up to here
  };

  Group group_at(size_t first) const;
  size_t part_at(int64_t offset) const;
  void announce(int32_t layer) const;
  Status read_tensor(Group group);
  Status finish_window();
  Status place(const Piece& piece);
  void decode(const TensorInfo& info, const std::byte* source, int64_t count);
  void cross(const TensorInfo& info, DType format, const Piece& piece, const std::byte* source);
  const std::byte* move_cols(const Placement& placement, DType format, int64_t count, const std::byte* source);
  void quantise_rows(const Placement& placement, int64_t row, int64_t count, const float* source);

  const File& file_;
  const std::vector<int64_t> cuts_;
  std::vector<Digest> digests_;  // of the parts
  std::vector<bool> hashed_;     // these are
  std::byte* const storage_;
  std::vector<const Placement*> placements_;  // those with bytes: by layer, and in it by offset
  std::vector<size_t> layer_begin_;           // in placements_; [layers + 2]
  std::vector<int64_t> layer_bytes_;
  std::vector<std::byte> buffer_;  // of a window
  std::vector<Piece> window_;      // in the order of the file; each is another tensor's
  std::vector<PageHash::Piece> hashed_pieces_;
  int64_t window_bytes_ = 0, buffer_used_ = 0;
  PageHash open_;  // of the part that goes on in the next window
  std::vector<float> decoded_;
  std::vector<std::byte> crossed_;  // of a tensor that the file holds transposed: what was read of it, as it is meant
  std::vector<std::byte> moved_;    // rows whose columns were put in order
  std::vector<float> staged_;       // rows of B whose run is not complete, transposed
};

}  // namespace loralei

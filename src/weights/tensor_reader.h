// SPDX-License-Identifier: Apache-2.0
// TensorReader: rows of a model file's tensors into memory, converted to the format
// they are held in.
//
// Thread: read_rows may be called from several threads on one reader.
// Ownership: owns the open files; targets belong to the caller.
// Failure: read errors name file and offset (io, corrupt). Conversion goes through f32
// and is exact where the target holds the source's numbers. GGUF files of the llama
// architecture and files of GLM hold the rows of q and k in interleaved-rope order; they
// are put in half-split order here (qk_row).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/base_model.h"
#include "parallel/shard.h"
#include "sys/file.h"
#include "tensor/dtype.h"
#include "tensor/weight_view.h"

namespace loralei {

struct TensorTarget {
  DType dtype = DType::kF32;
  LayoutId layout = LayoutId::kPlain;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t source_rows = 0;  // the tensor's; `rows` of them are held, from row_begin on
  int64_t source_row_bytes = 0;
  int64_t row_begin = 0, col_begin = 0;  // where what is held begins (parallel/shard.h)
  bool cut_cols = false;                 // of every row a part is held
  int32_t permuted_heads = 0;            // 0: rows stand as they are
};

class TensorReader {
 public:
  static Result<TensorReader> open(const BaseModelFile& model);

  // Heads of a q or k tensor whose rows the file permutes, else 0.
  int32_t permuted_heads(const std::string& name) const;

  // A unit of rows that can be read on its own begins at a multiple of this: whole row
  // tiles, and whole heads where they are permuted.
  static int64_t unit_rows(const TensorTarget& target);

  // Rows [row_begin, row_begin + row_count) of the tensor that are held, counted from the
  // first that is.
  static ShardPart held_rows(const TensorTarget& target, int64_t row_begin, int64_t row_count);

  // What read_rows(info, target, ...) of so many rows needs of `buffer`; 0: they are read
  // where they are to be held. Of a tensor that is stored in parts it is bounded by a
  // unit, too (weights/stored_rows.h).
  static int64_t buffer_bytes(const TensorInfo& info, const TensorTarget& target, int64_t row_count);

  // Reads rows [row_begin, row_begin + row_count) of the tensor; those that are held go
  // to `out`. Answers a hash of name, place and source bytes, to be summed over units; of
  // a tensor that is stored in parts, of the blocks that they make.
  // `buffer` is the calling thread's and is kept between calls.
  Result<uint64_t> read_rows(const TensorInfo& info, const TensorTarget& target, int64_t row_begin, int64_t row_count,
                             std::byte* out, std::vector<std::byte>& buffer) const;

 private:
  static bool in_place(const TensorInfo& info, const TensorTarget& target);
  Status fetch(const TensorInfo& info, const TensorTarget& target, int64_t row_begin, int64_t row_count, std::byte* to,
               std::span<std::byte> scratch) const;

  std::vector<std::shared_ptr<File>> files_;
  bool permuted_qk_ = false;
  int32_t heads_ = 0;
  int32_t kv_heads_ = 0;
  int32_t rotary_dim_ = 0;
};

}  // namespace loralei

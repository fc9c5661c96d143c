// SPDX-License-Identifier: Apache-2.0
// The packed file: the matrices of one base model in the order of their use and in the kernels' layout, made to be
// streamed (mechanisms §2). It stands beside its source, which keeps config, vocabulary and vectors.
//
//   0   "LORAPACK", u32 version, u32 0, u64 bytes of the description, u64 hash of description and checks
//   32  the description: JSON, {layout, quantise, fingerprint, sources [{name, bytes, mtime_ns}], checks_at, data_at,
//       file_bytes, done, matrices [{name, dtype, layout, rows, cols, at}]}
//   checks_at  u32 for each row tile of each matrix in turn: the low half of fast_hash(tile, seed = its number)
//   data_at    the matrices, each from a multiple of 4096 on; the file ends at such a multiple
//
// Thread: pure functions on values. Failure: parse answers a sentence for anything that is not such a file (kCorrupt:
// damaged; kUnsupported: of another version or layout); what it accepts lies within the file and fits its shapes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "sys/file.h"
#include "tensor/dtype.h"
#include "tensor/weight_view.h"

namespace loralei {

inline constexpr int64_t kPackedAlign = 4096;

struct PackedSource {
  std::string name;  // without its folder
  int64_t bytes = 0;
  int64_t mtime_ns = 0;
  friend bool operator==(const PackedSource&, const PackedSource&) = default;
};

struct PackedMatrix {
  std::string name;  // canonical
  DType dtype = DType::kF32;
  LayoutId layout = LayoutId::kPlain;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t at = 0;           // from the start of the file
  int64_t first_check = 0;  // of its tiles
  int64_t tile_bytes() const;
  int64_t tiles() const;
  int64_t bytes() const;  // the last tile of a plain matrix may be short
  int64_t bytes_of_tile(int64_t tile) const;
};

struct PackedIndex {
  std::string quantise;     // what --quant asked for, or ""
  std::string fingerprint;  // of the source's bytes (weights/)
  std::vector<PackedSource> sources;
  std::vector<PackedMatrix> matrices;
  int64_t checks_at = 0;
  int64_t data_at = 0;
  int64_t file_bytes = 0;
  int64_t done = 0;  // matrices whose bytes and checks are in place; fewer than all in a file that is still being made
  std::vector<uint32_t> checks;
};

// The places of matrices whose name, dtype, layout and shape stand; the fingerprint may still be empty.
void place_matrices(PackedIndex& index);
// Everything before data_at, whose size does not depend on checks, `done` and a fingerprint of sixteen letters.
std::string packed_head(const PackedIndex& index);
Result<PackedIndex> parse_packed(const File& file);
uint32_t tile_check(std::span<const std::byte> tile, int64_t number);

}  // namespace loralei

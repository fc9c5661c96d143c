// SPDX-License-Identifier: Apache-2.0
// The packed file: the matrices of one base model in the order of their use and in the
// kernels' layout, made to be streamed (mechanisms §2). It stands beside its source,
// which keeps config, vocabulary and vectors.
//
//   0          "LORAPACK", u32 version, u32 0, u64 bytes of the description,
//              u64 hash of description and checks
//   32         the description: JSON, see below
//   checks_at  u32 for each row tile of each matrix in turn: the low half of
//              fast_hash(tile, seed = its number)
//   data_at    the matrices, each from a multiple of 4096 on; the file ends at such
//              a multiple
//
//   description  {layout, quantise, fingerprint, sources [source], checks_at, data_at,
//                file_bytes, done, shrink, matrices [matrix]}
//   source       {name, bytes, mtime_ns}
//   matrix       {name, dtype, layout, rows, cols, at, shrunk {symbols, tile_bytes}}
//
// A matrix of 16-bit numbers may be shrunk (tensor/shrink.h): then each of its tiles
// takes `tile_bytes`, the short last one too, so that every place can still be computed.
// Tiles and their checks are meant as they are stored.
//
// Thread: pure functions on values.
// Failure: parse answers a sentence for anything that is not such a file (kCorrupt:
// damaged; kUnsupported: of another version or layout); what it accepts lies within the
// file and fits its shapes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "sys/file.h"
#include "tensor/dtype.h"
#include "tensor/shrink.h"
#include "tensor/weight_view.h"

namespace loralei {

inline constexpr int64_t kPackedAlign = 4096;

struct PackedSource {
  std::string name;  // without its folder
  int64_t bytes = 0;
  int64_t mtime_ns = 0;
  friend bool operator==(const PackedSource&, const PackedSource&) = default;
};

inline constexpr int64_t kShrunkTileAlign = 64;

struct ShrunkForm {
  ShrinkCode code;
  int64_t tile_bytes = 0;  // stored
  friend bool operator==(const ShrunkForm&, const ShrunkForm&) = default;
};

struct PackedMatrix {
  std::string name;  // canonical
  DType dtype = DType::kF32;
  LayoutId layout = LayoutId::kPlain;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t at = 0;           // from the start of the file
  int64_t first_check = 0;  // of its tiles
  std::optional<ShrunkForm> shrunk;
  int64_t tiles() const;
  // As stored:
  int64_t tile_bytes() const;
  int64_t bytes() const;  // the last tile of a plain matrix that is not shrunk may be short
  int64_t bytes_of_tile(int64_t tile) const;
  // As the kernels take them:
  int64_t held_tile_bytes() const;
  int64_t held_bytes_of_tile(int64_t tile) const;
  // One shrunk tile to held_bytes_of_tile(tile) bytes; damage is a sentence.
  Status restore_tile(int64_t tile, std::span<const std::byte> stored, std::byte* out) const;
};

// Of a shrunk tile; 0 where the matrix is stored as it is held.
inline int64_t shrunk_tile_bytes(const PackedMatrix& matrix) { return matrix.shrunk ? matrix.shrunk->tile_bytes : 0; }

struct PackedIndex {
  std::string quantise;     // what --quant asked for, or ""
  std::string fingerprint;  // of the source's bytes (weights/)
  bool shrink = false;      // matrices are shrunk where that is worth it
  std::vector<PackedSource> sources;
  std::vector<PackedMatrix> matrices;
  int64_t checks_at = 0;
  int64_t data_at = 0;
  int64_t file_bytes = 0;
  int64_t done = 0;  // matrices whose bytes and checks are in place; fewer than all in a file that is still being made
  std::vector<uint32_t> checks;
};

// The places of matrices whose name, dtype, layout, shape and shrunk form stand; the
// fingerprint may still be empty.
void place_matrices(PackedIndex& index);
// Everything before data_at, whose size does not depend on checks, `done` and a
// fingerprint of sixteen letters.
std::string packed_head(const PackedIndex& index);
Result<PackedIndex> parse_packed(const File& file);
uint32_t tile_check(std::span<const std::byte> tile, int64_t number);
// Tiles one after the other, as stored, against their checks; the first that is damaged
// is a sentence (kCorrupt).
Status check_tiles(const PackedIndex& index, const PackedMatrix& matrix, int64_t first_tile, int64_t tiles,
                   const std::byte* stored);

}  // namespace loralei

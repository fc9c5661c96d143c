// SPDX-License-Identifier: Apache-2.0
// Packing: a base model's matrices written into a packed file (formats/packed_index.h),
// and found again.
//
// Thread: one caller; packs on several threads.
// Failure: sentences; kUnavailable when it was stopped, or another
// process packs the same file.
// Invariants: the file appears under its name only when it is complete and on disk;
// one process packs it at a time; an interrupted packing leaves NAME.part once there is
// something in it that the next one can go on from. One that is stale (its source has
// changed), damaged or of another layout is made again, never misread: what its head says
// is known here; its tiles are checked by those who read them, and a file with one that
// is damaged is removed (WeightStore).
//
// A matrix of f16 numbers that are all numbers of bf16 is written as bf16, as
// WeightStore holds it: f16 matrices are read once more to know, up to the first
// number that is another.
//
// Matrices of 16-bit numbers are shrunk where the options say so, or, with auto,
// where decoding is fast enough for the disk; that takes one more reading of them,
// because places are given by the tile that shrinks worst. A form that is not at least 5
// % smaller, and an embedding that is only looked up, stay as they are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "formats/base_model.h"
#include "formats/packed_index.h"
#include "weights/read_units.h"

namespace loralei {

// The packed file of `path` if it is one of this model, held (and, unless auto, shrunk)
// as the options say.
Result<PackedIndex> open_packed(const std::string& path, const BaseModelFile& model, const WeightOptions& options);

Status pack_model(const BaseModelFile& model, const WeightOptions& options, const std::string& path, LogSink& log);

// The most memory that packing this model takes at once, bookkeeping and every
// thread's buffers.
struct PackMemory {
  int64_t fixed_bytes = 0;
  int64_t thread_bytes = 0;
  int64_t bytes(int threads) const { return fixed_bytes + threads * thread_bytes; }
};
Result<PackMemory> pack_memory(const BaseModelFile& model, const WeightOptions& options);

struct PackedFile {
  std::string path;
  PackedIndex index;
};
// Where it is looked for: beside the model, then in `cache_dir` (may be empty).
std::vector<std::string> packed_paths(const BaseModelFile& model, const WeightOptions& options,
                                      const std::string& cache_dir);
// The first that fits.
std::optional<PackedFile> find_packed(const BaseModelFile& model, const WeightOptions& options,
                                      const std::string& cache_dir, LogSink& log);
// One made in the first place that can be written to.
Result<PackedFile> make_packed(const BaseModelFile& model, const WeightOptions& options, const std::string& cache_dir,
                               LogSink& log);
// The one or the other.
Result<PackedFile> find_or_pack(const BaseModelFile& model, const WeightOptions& options, const std::string& cache_dir,
                                LogSink& log);

}  // namespace loralei

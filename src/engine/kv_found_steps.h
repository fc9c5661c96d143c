// SPDX-License-Identifier: Apache-2.0
// The steps of a KV cache that a server found for itself (KvCache::grid), where nobody
// has measured any: kept in --kv-dir, so that the next one reads what this one encoded.
// Nobody knows what they do to answers, and nothing here says so.
//
//   DIR/FINGERPRINT-FORMAT.kv-grid      FORMAT: of the cache's numbers (f32, f16, bf16)
//
//   head      a few lines: version, model, shape
//   steps     [layers][2][channels], 2 bytes each: the upper half of an f32 (kv_grid.h)
//   checksum  SHA-256 of all before it
//
// Thread: pure functions but for the disk. Ownership: values.
// Failure: a file that is cut, changed, of another version, model or shape is a sentence
// in `note`, and not used; none is an answer. A file is found whole or not at all, and is
// its owner's alone; of two processes that write at once one is refused, the other's is
// there.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "codec/kv_grid.h"
#include "sys/file.h"

namespace loralei {

// `fingerprint`: of the base (WeightStore::fingerprint).
std::string kv_found_steps_path(const std::string& dir, const std::string& fingerprint, DType dtype);

struct KvFoundSteps {
  std::optional<KvGrid> grid;
  std::string note;  // why not, where there is a file
};
KvFoundSteps read_kv_found_steps(const FileSystem& files, const std::string& path, const std::string& fingerprint,
                                 const KvGridShape& shape);

// Takes the place of what is there. The folder is there.
Status write_kv_found_steps(const KvGrid& grid, const std::string& fingerprint, const std::string& path);

}  // namespace loralei

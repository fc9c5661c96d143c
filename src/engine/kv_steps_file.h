// SPDX-License-Identifier: Apache-2.0
// Where the steps that `loralei calibrate-kv` has measured lie (codec/kv_steps.h):
//
//   MODEL/kv-steps.json, or MODEL.gguf.kv-steps.json beside a GGUF file
//   CACHE_DIR/FINGERPRINT.kv-steps.json    where the model's folder cannot be written
//
// Thread: pure functions but for the disk, at start. Ownership: values.
// Failure: a file that is there and cannot be used is a sentence in `notes`, and the next
// place is looked at; none found is an answer. Writing is refused with path and reason;
// a file is found whole or not at all.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "codec/kv_steps.h"
#include "sys/file.h"

namespace loralei {

// In the order in which they are looked at; `cache_dir` may be empty. `fingerprint`: of
// the base (WeightStore::fingerprint).
std::vector<std::string> kv_steps_paths(const FileSystem& files, const std::string& model_path,
                                        const std::string& cache_dir, const std::string& fingerprint);

struct FoundKvSteps {
  std::optional<KvSteps> steps;  // none: nothing was measured, safe defaults are to be used
  std::string path;
  std::vector<std::string> notes;
};
FoundKvSteps find_kv_steps(const FileSystem& files, const std::string& model_path, const std::string& cache_dir,
                           const std::string& fingerprint, const KvGridShape& shape);

// Makes the folders that lead to `path`.
Status write_kv_steps(const KvSteps& steps, const std::string& path);

}  // namespace loralei

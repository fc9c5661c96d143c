// SPDX-License-Identifier: Apache-2.0
// FileLock: a lock by name among processes, as flock(2) gives it: the one that
// huggingface_hub takes for the same file, too.
//
// Thread: one at a time. Ownership: the lock goes with the object, however the process
// ends. Invariant: at most one holds a path's lock. Failure: a sentence with the path; a
// file system without locks is used without.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "sys/posix_file.h"

namespace loralei {

class FileLock {
 public:
  // Makes the file where there is none. Nothing: another holds it.
  static Result<std::optional<FileLock>> take(const std::string& path);

 private:
  explicit FileLock(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

}  // namespace loralei

// SPDX-License-Identifier: Apache-2.0
// DirectFile: reads past the page cache (O_DIRECT), for measuring the disk itself and,
// later, for streaming weights.
//
// Thread: read() from any thread at once.
// Ownership: owns its handle.
// Invariant: offset, size and destination are multiples of kDirectAlign.
// Failure: open() says when the file system refuses direct reads (tmpfs, some network
// file systems); read() as File::read_exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace loralei {

inline constexpr int64_t kDirectAlign = 4096;

class DirectFile {
 public:
  static Result<DirectFile> open(const std::string& path);
  ~DirectFile();
  DirectFile(DirectFile&& other) noexcept;
  DirectFile& operator=(DirectFile&& other) noexcept;
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  int64_t size_bytes() const { return size_bytes_; }
  Status read(int64_t offset_bytes, std::span<std::byte> dest) const;

 private:
  DirectFile(int handle, int64_t size_bytes, std::string path)
      : handle_(handle), size_bytes_(size_bytes), path_(std::move(path)) {}
  int handle_ = -1;
  int64_t size_bytes_ = 0;
  std::string path_;
};

}  // namespace loralei

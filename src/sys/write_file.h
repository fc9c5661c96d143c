// SPDX-License-Identifier: Apache-2.0
// WriteFile: a file being made. What is to be found complete or not at all is written
// under another name, synced, and renamed (commit).
//
// Thread: write() from several threads at once; the rest from one.
// Ownership: owns its handle; a file that is not committed stays, so that a
// later run may go on.
// Failure: sentences with path and the system's reason (a full disk
// says so).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loralei {

class WriteFile {
 public:
  // Opens or makes `path`; what it holds stays. One process at a time: another's is
  // refused (kUnavailable). `mode`: of a new one, within the process's umask.
  static Result<WriteFile> open(const std::string& path, unsigned mode = 0644);
  ~WriteFile();
  WriteFile(WriteFile&& other) noexcept;
  WriteFile& operator=(WriteFile&& other) noexcept;
  WriteFile(const WriteFile&) = delete;
  WriteFile& operator=(const WriteFile&) = delete;

  const std::string& path() const { return path_; }
  Result<int64_t> size_bytes() const;
  Status resize(int64_t bytes);
  Status write(int64_t offset_bytes, std::span<const std::byte> bytes);
  // Everything written so far survives a crash, and leaves the page cache: it would crowd
  // out what is in use.
  Status sync();
  // sync(), then `path` becomes its name.
  Status commit(const std::string& path);

 private:
  WriteFile(int handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  int handle_ = -1;
  std::string path_;
};

// `text` becomes the contents of the file at `path`, or what was there stays: written
// beside it and renamed. What a link leads to is written, with the mode it has; what is
// no regular file (a pipe, a terminal) gets the text as it comes.
Status put_file(const std::string& path, std::string_view text);
Status remove_file(const std::string& path);  // one that is not there is removed
Status make_folders(const std::string& path);
// A symbolic link at `path` to `target`, in the place of what is there: whole at any
// time.
Status put_link(const std::string& target, const std::string& path);
Status make_private_folder(const std::string& path);  // for its owner alone, where it is not there yet
bool is_being_written(const std::string& path);       // some WriteFile has it open, of this process or another
int64_t free_disk_bytes(const std::string& folder);   // -1 where the system does not say

}  // namespace loralei
